package ansible

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

var (
	section   = regexp.MustCompile(`^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$`)
	groupName = regexp.MustCompile(`^([^:\]\s]+)\s*(?:#.*)?$`)
	bracketed = regexp.MustCompile(`^\[(.+)\]:([0-9]+)$`)
	hostPort  = regexp.MustCompile(`^((?:[^:\[\]]|\[[^\]]*\])+):([0-9]+)$`)
)

// IsSection reports whether a line begins a section of an INI inventory.
func IsSection(line string) bool { return section.MatchString(strings.TrimSpace(line)) }

// iniReader is on its way through an INI file.
type iniReader struct {
	*data
	kind  string // of the section: hosts, children or vars
	group *group // of the section

	declared map[string]bool             // groups with a section of hosts or children
	used     map[string]mistake.Position // groups that need one
	line     int
	text     string // of the line, without space around it
	indent   int    // runes before it
}

// ReadINI reads the lines of an INI file. Mistakes are noted in wrong.
func ReadINI(file string, lines []string, wrong *mistake.List) *Inventory {
	r := &iniReader{data: newData(file, wrong), kind: "hosts", declared: map[string]bool{"all": true, "ungrouped": true}, used: map[string]mistake.Position{}}
	r.group = r.groups["ungrouped"]
	for i, line := range lines {
		r.line, r.text = i+1, strings.TrimSpace(line)
		r.indent = utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(line, " \t"))
		if r.full {
			return &Inventory{} // too large, which is noted
		}
		if r.text != "" && !strings.ContainsAny(r.text[:1], "#;") {
			r.read()
		}
	}
	for _, g := range r.order {
		if at, ok := r.used[g.name]; ok && !r.declared[g.name] {
			r.Add(at, "", "there is no section [%s]", mistake.Clip(g.name))
		}
	}
	return r.inventory()
}

// at is the position of a rune of the line.
func (r *iniReader) at(offset int) mistake.Position {
	return mistake.Position{File: r.file, Line: r.line, Column: r.indent + offset + 1}
}

func (r *iniReader) read() {
	if m := section.FindStringSubmatch(r.text); m != nil {
		r.begin(m[1], m[2])
		return
	}
	if strings.HasPrefix(r.text, "[") && strings.HasSuffix(r.text, "]") {
		r.Add(r.at(0), "write [GROUP], [GROUP:vars] or [GROUP:children], without spaces", "this is no section")
		return
	}
	switch r.kind {
	case "hosts":
		r.hosts()
	case "vars":
		r.variable()
	case "children":
		m := groupName.FindStringSubmatch(r.text)
		if m == nil {
			r.Add(r.at(0), "", "a name of a group is expected here")
			return
		}
		child := r.named(m[1], r.at(0))
		r.addChild(r.group, child, r.at(0))
	}
}

// named is a group that must have a section somewhere.
func (r *iniReader) named(name string, at mistake.Position) *group {
	if _, ok := r.used[name]; !ok {
		r.used[name] = at
	}
	return r.data.group(name, at)
}

// begin starts a section.
func (r *iniReader) begin(name, kind string) {
	switch kind {
	case "", "hosts":
		r.kind = "hosts"
	case "children", "vars":
		r.kind = kind
	default:
		r.Add(r.at(len("[:")+utf8.RuneCountInString(name)), "there are [GROUP], [GROUP:vars] and [GROUP:children]", "a section of an unknown kind %q", mistake.Clip(kind))
		r.kind = "" // its lines could mean anything
	}
	if r.kind == "vars" {
		r.group = r.named(name, r.at(0))
		return
	}
	r.group = r.data.group(name, r.at(0))
	r.declared[name] = true
}

// hosts reads a line of hosts: a name or a range, then variables.
func (r *iniReader) hosts() {
	words, err := Split(r.text, true)
	var open *SplitError
	if errors.As(err, &open) {
		r.Add(r.at(open.At), "", "%s", open.Message)
		return
	}
	names, port, ok := r.expand(words[0].Text, r.at(0))
	vars := map[string]Var{}
	for _, w := range words[1:] {
		name, value, isVar := strings.Cut(w.Text, "=")
		switch {
		case !isVar:
			r.Add(r.at(w.At), "a # begins a comment; a value with spaces needs quotes", "%s is no variable: NAME=VALUE is expected here", clip(w.Text))
			return
		case kept(name):
			vars[name] = Var{literal(value), r.at(w.At)}
		}
	}
	if !ok {
		return
	}
	for _, name := range names {
		h := r.addHost(name, port, r.group, r.at(0))
		if h == nil {
			return
		}
		r.setAll(h, vars)
	}
}

// variable reads a line of variables of a group.
func (r *iniReader) variable() {
	name, value, ok := strings.Cut(r.text, "=")
	if !ok {
		r.Add(r.at(0), "", "NAME=VALUE is expected here")
		return
	}
	r.set(r.group, strings.TrimSpace(name), Var{literal(strings.TrimSpace(value)), r.at(0)})
}

// maxPattern bounds the text of a range: each of its names is about as long.
const maxPattern = 300

// expand returns the hosts that a pattern stands for, and their port; false if
// the pattern makes no sense.
func (d *data) expand(pattern string, at mistake.Position) (names []string, port int64, ok bool) {
	if d.full {
		return nil, 0, false // too large, which is noted
	}
	for _, form := range []*regexp.Regexp{bracketed, hostPort} {
		if m := form.FindStringSubmatch(pattern); m != nil {
			n, err := strconv.ParseInt(m[2], 10, 64)
			if err != nil {
				d.Add(at, "", "the port %s is out of range", mistake.Clip(m[2]))
				return nil, 0, false
			}
			pattern, port = m[1], n
		}
	}
	if len(pattern) > maxPattern && strings.Contains(pattern, "[") {
		d.Add(at, "", "%s: a range of more than %d characters", clip(pattern), maxPattern)
		return nil, 0, false
	}
	names, err := ranges(pattern, MaxHosts)
	if err != nil {
		d.Add(at, "write gpu[01:16], or gpu[01:16:2] to take every other", "%s: %v", clip(pattern), err)
		return nil, 0, false
	}
	return names, port, true
}
