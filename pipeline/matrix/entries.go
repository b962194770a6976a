package matrix

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// value is the value of a key: words, or yes or no.
type value struct {
	words []string
	yes   bool
	at    Position
}

// text is the value of a key that takes one word.
func (v value) text() string { return strings.Join(v.words, ",") }

// setting is a key with its value.
type setting struct {
	key string
	value
}

// settings are the keys of an entry, in the order of the file.
type settings []setting

// entry returns an Entry with the defaults, replaced by the settings in s.
func (s settings) entry(name string, at Position, defaults settings) Entry {
	e := Entry{Name: name, Position: at, places: map[string]Position{}}
	for _, said := range slices.Concat(defaults, s) {
		for _, k := range keys() {
			if k.name == said.key {
				k.set(&e, said.value)
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
		text := strings.Join(said.words, "+")
		if said.words == nil {
			text = map[bool]string{true: "true", false: "false"}[said.yes]
		}
		words = append(words, said.key+"="+diagnostic.HideCredentials(text))
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
			if name == "" {
				name = said.name()
			}
			if name == "" {
				name = "wheel"
			}
			list.add(said.entry(name, r.Place(n), defaults))
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
	for _, p := range r.Pairs(n, what, known) {
		v, ok := r.readValue(p.Key, p.Node)
		switch {
		case !ok:
		case p.Key == "name":
			name = v.text()
		default:
			said = append(said, setting{p.Key, v})
		}
	}
	keysOf := func(s setting) bool { return s.key == "arch" }
	if slices.ContainsFunc(said, keysOf) {
		if i := slices.IndexFunc(said, func(s setting) bool { return s.key == "gpu" }); i >= 0 {
			r.Add(said[i].at, "", "arch and gpu in %s mean the same: give only one", what)
		}
	}
	return said, name
}

// maxText bounds a value: it becomes part of messages and names.
const maxText = 500

// readValue reads the value of a key. It takes numbers as they are written: 3.10 is a version.
func (r *reader) readValue(key string, n yamldoc.Node) (value, bool) {
	at := r.Place(n)
	if key == "keep-debug" {
		yes, ok := yamldoc.Bool(n)
		if !ok {
			r.Wrong(n, key+" must be true or false")
			return value{}, false
		}
		return value{yes: yes, at: at}, true
	}
	nodes := []yamldoc.Node{n}
	if yamldoc.IsList(n) && slices.Contains(lists(), key) {
		nodes = r.Items(n, key)
	}
	var words []string
	for _, one := range nodes {
		word, ok := yamldoc.Scalar(one)
		switch {
		case !ok && slices.Contains(lists(), key):
			r.Wrong(one, key+" must be a text or a list of texts")
			return value{}, false
		case !ok:
			r.Wrong(one, key+" must be a text")
			return value{}, false
		case strings.TrimSpace(word) == "" || strings.ContainsAny(word, "\n\r\x00") || len(word) > maxText:
			r.Add(r.Place(one), "", "%s must be one line of text", key)
			return value{}, false
		}
		words = append(words, word)
	}
	return value{words: words, at: at}, len(words) > 0
}
