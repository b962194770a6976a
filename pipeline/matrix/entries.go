package matrix

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// setting is a key with its value: one word or several.
type setting struct {
	key   string
	words []string
	at    Position
}

// text is the value of a key that takes one word.
func (s setting) text() string { return strings.Join(s.words, ",") }

// settings are the keys of an entry, in the order of the file.
type settings []setting

// entry returns an Entry with the defaults, replaced by the settings in s.
func (s settings) entry(name string, at Position, defaults settings) Entry {
	e := Entry{Name: name, Position: at, places: map[string]Position{}}
	for _, said := range slices.Concat(defaults, s) {
		for _, k := range keys() {
			if k.name == said.key {
				k.set(&e, said)
				e.places[k.name] = said.at
			}
		}
	}
	return e
}

// name returns the name of an entry that the file gives none.
func (s settings) name() string {
	var words []string
	for _, said := range s {
		words = append(words, said.key+"="+diagnostic.HideCredentials(strings.Join(said.words, "+")))
	}
	return strings.Join(words, ",")
}

// readDocument reads the whole file.
func (r *reader) readDocument(body yamldoc.Node) []Entry {
	parts := map[string]yamldoc.Pair{}
	for _, p := range r.Pairs(body, "the matrix file", []string{"defaults", "matrix", "exclude", "wheels"}) {
		parts[p.Key] = p
	}
	var defaults settings
	if p, ok := parts["defaults"]; ok {
		defaults, _ = r.readSettings(p.Node, "defaults", false)
	}
	list := &entries{reader: r, first: map[string]Position{}}
	if p, ok := parts["matrix"]; ok {
		list.addProduct(p, parts["exclude"], defaults)
	} else if p, ok := parts["exclude"]; ok {
		r.Add(p.At, "", "exclude needs a matrix")
	}
	if p, ok := parts["wheels"]; ok {
		for _, n := range r.RequiredItems(p.Node, "wheels") {
			before := len(r.Problems)
			said, name := r.readSettings(n, "an entry of wheels", true)
			if len(r.Problems) > before {
				continue
			}
			list.add(said.entry(cmp.Or(name, said.name(), "wheel"), r.Place(n), defaults))
		}
	}
	if len(list.all) == 0 && len(r.Problems) == 0 {
		r.Add(r.Place(body), `give "matrix" or "wheels"`, "the file lists no wheels")
	}
	return list.all
}

// entries collects the entries of a file.
type entries struct {
	*reader
	all   []Entry
	first map[string]Position // where a name was given first
}

func (l *entries) add(e Entry) {
	if len(l.all) == MaxEntries {
		l.Add(e.Position, "", "more than %d wheels", MaxEntries)
	}
	if len(l.all) >= MaxEntries {
		return
	}
	if at, twice := l.first[e.Name]; twice {
		l.Add(e.Position, "give each its own name", "a second entry with the name %q; the first is at %s", diagnostic.Clip(e.Name), at)
		return
	}
	l.first[e.Name] = e.Position
	l.all = append(l.all, e)
}

// readSettings reads the settings of an entry, or the defaults. With named, the entry may have a
// name.
func (r *reader) readSettings(n yamldoc.Node, what string, named bool) (said settings, name string) {
	known := Keys()
	if named {
		known = append([]string{"name"}, known...)
	}
	at := map[string]Position{}
	for _, p := range r.Pairs(n, what, known) {
		switch v, ok := r.readValue(p.Key, p.Node); {
		case !ok:
		case p.Key == "name":
			name = v.text()
		default:
			said, at[p.Key] = append(said, v), v.at
		}
	}
	_, arch := at["arch"]
	if gpu, both := at["gpu"]; both && arch {
		r.Add(gpu, "", "arch and gpu in %s mean the same: give only one", what)
	}
	return said, name
}

// maxText bounds a value: it becomes part of messages and names.
const maxText = 500

// readValue reads the value of a key. It takes numbers as they are written: 3.10 is a version.
func (r *reader) readValue(key string, n yamldoc.Node) (setting, bool) {
	s := setting{key: key, at: r.Place(n)}
	if key == "keep-debug" {
		yes, ok := yamldoc.Bool(n)
		if !ok {
			r.Wrong(n, key+" must be true or false")
		}
		s.words = []string{strconv.FormatBool(yes)}
		return s, ok
	}
	nodes, takes := []yamldoc.Node{n}, " must be a text"
	if slices.Contains([]string{"arch", "gpu", "ops"}, key) {
		takes += " or a list of texts"
		if yamldoc.IsList(n) {
			nodes = r.Items(n, key)
		}
	}
	for _, one := range nodes {
		word, ok := yamldoc.Scalar(one)
		if !ok {
			r.Wrong(one, key+takes)
			return s, false
		}
		if strings.TrimSpace(word) == "" || strings.ContainsAny(word, "\n\r\x00") || len(word) > maxText {
			r.Add(r.Place(one), "", "%s must be one line of text", key)
			return s, false
		}
		s.words = append(s.words, word)
	}
	return s, len(s.words) > 0
}
