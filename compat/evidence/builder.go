package evidence

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// builder is op_builder's description of an op.
type builder struct {
	sources  []string
	includes []string // folders of the tree
	pieces   []Piece
}

// builder reads the class of an op and its base classes: the sources, and all definitions that the methods that create an
// extension use.
func (s *Sources) builder(op string) (builder, error) {
	if b, read := s.builders[op]; read {
		return b, nil
	}
	b, err := s.readBuilder(op)
	if err == nil {
		s.builders[op] = b
	}
	return b, err
}

func (s *Sources) readBuilder(op string) (builder, error) {
	first, err := s.classOf(op)
	if err != nil {
		return builder{}, err
	}
	r := &reach{chain: s.chain(first)}
	for _, root := range []string{"builder", "__init__"} {
		r.member(root, 0)
	}
	b := builder{pieces: r.pieces}
	for _, name := range s.literals(r.chain, "sources") {
		if !slices.Contains([]string{".cpp", ".cc", ".cu", ".c"}, path.Ext(name)) {
			continue
		}
		if s.files[name] == "" {
			name = "deepspeed/" + name
		}
		if s.files[name] == "" {
			return b, fmt.Errorf("%s: names %s, which is missing", first.module.name, strings.TrimPrefix(name, "deepspeed/"))
		}
		b.sources = append(b.sources, name)
	}
	for _, name := range s.literals(r.chain, "include_paths") {
		for _, folder := range []string{name, "deepspeed/" + name} {
			if strings.Contains(name, "/") && s.hasFolder(folder) {
				b.includes = append(b.includes, folder)
			}
		}
	}
	if len(b.sources) == 0 {
		return b, fmt.Errorf("%s: names no sources of %s", first.module.name, op)
	}
	return b, nil
}

func (s *Sources) hasFolder(name string) bool {
	for file := range s.files {
		if strings.HasPrefix(file, path.Clean(name)+"/") {
			return true
		}
	}
	return false
}

// classOf returns the class whose NAME is an op's. It uses a class of op_builder/cpu only if CUDA's accelerator names
// it, or if there is no other.
func (s *Sources) classOf(op string) (*class, error) {
	var found []*class
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if path.Ext(name) != ".py" || name == accelerator {
			continue
		}
		m := s.module(name)
		if m.err != nil {
			return nil, fmt.Errorf("%s: %w", name, m.err)
		}
		for _, class := range slices.Sorted(maps.Keys(m.classes)) {
			is := m.classes[class].members["NAME"]
			if len(is) == 1 && is[0].starts("NAME", "=") && len(is[0].words) == 3 && strings.Trim(is[0].words[2], `"'`) == op {
				found = append(found, m.classes[class])
			}
		}
	}
	for _, c := range found {
		ofCPU := path.Dir(c.module.name) == "op_builder/cpu"
		if ofCPU == strings.Contains(s.files[accelerator], `"`+c.name+`"`) || len(found) == 1 {
			return c, nil
		}
	}
	return nil, errors.New("op_builder: no op " + op)
}

// chain lists a class and its bases, in the order in which Python looks for a method.
func (s *Sources) chain(c *class) []*class {
	out := []*class{c}
	for i := 0; i < len(out) && len(out) < maxDepth; i++ {
		for _, base := range out[i].bases {
			for _, b := range s.classesNamed(base, out[i].module.name) {
				if !slices.Contains(out, b) {
					out = append(out, b)
					break
				}
			}
		}
	}
	return out
}

// classesNamed lists the classes of a name: of the same file, of the same folder, and of op_builder.
func (s *Sources) classesNamed(name, file string) []*class {
	var out []*class
	for rank := range 3 {
		for _, other := range slices.Sorted(maps.Keys(s.files)) {
			near := other == file || rank > 0 && path.Dir(other) == path.Dir(file) || rank > 1 && path.Dir(other) == "op_builder"
			if near && path.Ext(other) == ".py" {
				if c := s.module(other).classes[name]; c != nil {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// reach gathers what methods of a chain of classes use, a piece for each definition.
type reach struct {
	chain  []*class
	pieces []Piece
}

// member adds a method or a variable of the chain, searching from an index.
func (r *reach) member(name string, from int) {
	for at := from; at < len(r.chain); at++ {
		c := r.chain[at]
		if block := c.members[name]; block != nil {
			r.add(c.module.name+":"+c.name+"."+name, block, at)
			return
		}
	}
}

// add adds a definition, and what it uses.
func (r *reach) add(name string, block []statement, at int) {
	if slices.ContainsFunc(r.pieces, func(p Piece) bool { return p.Name == name }) {
		return
	}
	r.pieces = append(r.pieces, Piece{name, Digest(definition(block))})
	for _, s := range block {
		for i, word := range s.words {
			before := func(n int) string { return strings.Join(s.words[max(0, i-n):i], "") }
			switch {
			case !isWord(word[0]):
			case before(2) == "self.", before(2) == "cls.":
				r.member(word, 0)
			case before(4) == "super().":
				r.member(word, at+1)
			case before(1) == ".":
				if i > 1 && slices.ContainsFunc(r.chain, func(c *class) bool { return c.name == s.words[i-2] }) {
					r.member(word, 0)
				}
			default:
				r.global(word)
			}
		}
	}
}

// global adds a function or a variable of the modules of the chain.
func (r *reach) global(name string) {
	for at, c := range r.chain {
		if block := c.module.defs[name]; block != nil {
			r.add(c.module.name+":"+name, block, at)
		}
	}
}

func definition(block []statement) string {
	var lines []string
	for _, s := range block {
		lines = append(lines, s.String())
	}
	return strings.Join(lines, "\n")
}

var insertion = regexp.MustCompile(`\{(\w+)\}`)

// literals lists the strings in a method of the chain, and in the methods that it uses.
func (s *Sources) literals(chain []*class, method string) []string {
	var out []string
	seen := map[string]bool{}
	var visit func(name string, from int)
	visit = func(name string, from int) {
		for at := from; at < len(chain); at++ {
			block := chain[at].members[name]
			if block == nil {
				continue
			}
			key := fmt.Sprint(at, name)
			if seen[key] {
				return
			}
			seen[key] = true
			variables := map[string]string{}
			for _, s := range block {
				for i, word := range s.words {
					switch {
					case isPythonString(word):
						text := insertion.ReplaceAllStringFunc(strings.Trim(strings.TrimLeft(word, "rbufRBUF"), `"'`), func(name string) string {
							return variables[strings.Trim(name, "{}")]
						})
						out = append(out, text)
						if i == 2 && s.words[1] == "=" {
							variables[s.words[0]] = text
						}
					case i > 3 && strings.Join(s.words[i-4:i], "") == "super().":
						visit(word, at+1)
					case i > 1 && s.words[i-2] == "self" && s.words[i-1] == ".":
						visit(word, 0)
					}
				}
			}
			return
		}
	}
	visit(method, 0)
	return out
}
