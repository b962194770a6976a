package ansible

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

var (
	section   = regexp.MustCompile(`^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$`)
	groupName = regexp.MustCompile(`^([^:\]\s]+)\s*(?:#.*)?$`)
	bracketed = regexp.MustCompile(`^\[(.+)\]:([0-9]+)$`)
	hostPort  = regexp.MustCompile(`^((?:[^:\[\]]|\[[^\]]*\])+):([0-9]+)$`)
)

// IsSection reports whether a line begins a section of an INI inventory.
func IsSection(line string) bool { return section.MatchString(strings.TrimSpace(line)) }

// OnlyAnsible is the first place in an INI file that ansible-inventory reads and dsbuild does
// not.
type OnlyAnsible struct {
	At   diagnostic.Position
	What string // names the construct there, for a message
}

// iniReader holds the state of ReadINI.
type iniReader struct {
	*data
	kind  string // of the section: hosts, children or vars
	group *group // of the section

	declared map[string]bool                // groups with a section of hosts or children
	used     map[string]diagnostic.Position // groups that need such a section
	line     int
	text     string // of the line, without space around it
	indent   int    // runes before it
	only     *OnlyAnsible
}

// ReadINI reads the lines of a plain INI file: groups, ranges of hosts, and the variables in
// readVariable with plain values. It records mistakes in wrong. If the file holds anything else,
// inv is incomplete, and only is the place of the first such text.
func ReadINI(file string, lines []string, wrong *diagnostic.List) (inv *Inventory, only *OnlyAnsible) {
	r := &iniReader{data: newData(file, wrong), kind: "hosts", declared: map[string]bool{"all": true, "ungrouped": true}, used: map[string]diagnostic.Position{}}
	r.group = r.groups["ungrouped"]
	for i, line := range lines {
		r.line, r.text = i+1, strings.TrimSpace(line)
		r.indent = utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(line, " \t"))
		if r.full {
			return &Inventory{}, nil // too large, which is noted
		}
		if r.text != "" && !strings.ContainsAny(r.text[:1], "#;") {
			r.readLine()
		}
	}
	for _, g := range r.order {
		if at, ok := r.used[g.name]; ok && !r.declared[g.name] {
			r.Add(at, "", "there is no section [%s]", diagnostic.Clip(g.name))
		}
	}
	return r.inventory(), r.only
}

// at returns the position of a byte of the line.
func (r *iniReader) at(offset int) diagnostic.Position {
	return diagnostic.Position{File: r.file, Line: r.line, Column: r.indent + utf8.RuneCountInString(r.text[:offset]) + 1}
}

// leaveToAnsible records that only Ansible can read the text at a byte of the line.
func (r *iniReader) leaveToAnsible(offset int, what string) {
	if r.only == nil {
		r.only = &OnlyAnsible{r.at(offset), what}
	}
}

func (r *iniReader) readLine() {
	if m := section.FindStringSubmatch(r.text); m != nil {
		r.beginSection(m[1], m[2])
		return
	}
	if strings.HasPrefix(r.text, "[") && strings.HasSuffix(r.text, "]") {
		r.Add(r.at(0), "write [GROUP], [GROUP:vars] or [GROUP:children], without spaces", "this is not a section")
		return
	}
	switch r.kind {
	case "hosts":
		r.hostLine()
	case "vars":
		r.variableLine()
	case "children":
		m := groupName.FindStringSubmatch(r.text)
		if m == nil {
			r.Add(r.at(0), "", "expected the name of a group")
			return
		}
		child := r.declaredLater(m[1], r.at(0))
		r.addChild(r.group, child, r.at(0))
	}
}

// declaredLater returns a group that must have a section somewhere.
func (r *iniReader) declaredLater(name string, at diagnostic.Position) *group {
	if _, ok := r.used[name]; !ok {
		r.used[name] = at
	}
	return r.data.group(name, at)
}

// beginSection starts a section.
func (r *iniReader) beginSection(name, kind string) {
	switch kind {
	case "", "hosts":
		r.kind = "hosts"
	case "children", "vars":
		r.kind = kind
	default:
		r.Add(r.at(len("[:")+len(name)), "write [GROUP], [GROUP:vars] or [GROUP:children]", "unknown kind of section %q", diagnostic.Clip(kind))
		r.kind = "" // its lines could mean anything
	}
	if r.kind == "vars" {
		r.group = r.declaredLater(name, r.at(0))
		return
	}
	r.group = r.data.group(name, r.at(0))
	r.declared[name] = true
}

// word matches a word of a line without quotes.
var word = regexp.MustCompile(`[^ \t\r\n]+`)

// hostLine reads a line of hosts: a name or a range, then variables.
func (r *iniReader) hostLine() {
	if i := strings.IndexAny(r.text, `'"\`); i >= 0 {
		r.leaveToAnsible(i, "quotes")
		return
	}
	text, _, _ := strings.Cut(r.text, "#")
	words := word.FindAllStringIndex(text, -1)
	names, port, ok := r.expand(text[words[0][0]:words[0][1]], r.at(0))
	vars := map[string]Var{}
	for _, w := range words[1:] {
		one := text[w[0]:w[1]]
		name, value, isVar := strings.Cut(one, "=")
		if !isVar {
			r.Add(r.at(w[0]), "a # begins a comment; a value with spaces needs quotes", "%s is not a variable: expected NAME=VALUE", clip(one))
			return
		}
		if v, kept := r.readVariable(name, value, w[0]); kept {
			vars[name] = v
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

// variableLine reads a line of variables of a group.
func (r *iniReader) variableLine() {
	name, value, ok := strings.Cut(r.text, "=")
	if !ok {
		r.Add(r.at(0), "", "expected NAME=VALUE")
		return
	}
	name = strings.TrimSpace(name)
	if v, ok := r.readVariable(name, strings.TrimSpace(value), 0); ok {
		r.set(r.group, name, v)
	}
}

// readVariable reads ansible_host, ansible_user, ansible_port and the variables
// of dsbuild, leaves other variables of Ansible to Ansible, and drops the rest.
func (r *iniReader) readVariable(name, text string, offset int) (v Var, kept bool) {
	switch {
	case name == "ansible_host", name == "ansible_user", name == "ansible_port", strings.HasPrefix(name, "dsbuild_"):
		value, ok := plainValue(text)
		if !ok {
			r.leaveToAnsible(offset, "this value of "+name)
		}
		return Var{value, r.at(offset)}, ok
	case strings.HasPrefix(name, "ansible_"):
		r.leaveToAnsible(offset, "the variable "+strconv.Quote(diagnostic.Clip(name)))
	}
	return Var{}, false
}

// maxPattern bounds the text of a range: each name that it expands to is about as long.
const maxPattern = 300

// expand returns the hosts that a pattern expands to, and their port. It returns false if the
// pattern is invalid.
func (d *data) expand(pattern string, at diagnostic.Position) (names []string, port int64, ok bool) {
	if d.full {
		return nil, 0, false // too large, which is noted
	}
	for _, form := range []*regexp.Regexp{bracketed, hostPort} {
		if m := form.FindStringSubmatch(pattern); m != nil {
			n, err := strconv.ParseInt(m[2], 10, 64)
			if err != nil {
				d.Add(at, "", "the port %s is out of range", diagnostic.Clip(m[2]))
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
		d.Add(at, "write gpu[01:16], or gpu[01:16:2] for every second host", "%s: %v", clip(pattern), err)
		return nil, 0, false
	}
	return names, port, true
}
