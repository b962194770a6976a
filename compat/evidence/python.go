package evidence

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// statement is a logical line of Python: its depth of indentation, and its tokens.
type statement struct {
	depth int
	words []string
}

func (s statement) String() string { return strings.Repeat(" ", s.depth) + strings.Join(s.words, " ") }

// starts reports whether the statement begins with the words.
func (s statement) starts(words ...string) bool {
	return len(s.words) >= len(words) && slices.Equal(s.words[:len(words)], words)
}

// statements reads the logical lines of a module, without comments and docstrings.
func statements(text string) ([]statement, error) {
	var out []statement
	var words []string
	indents, brackets := []int{0}, 0
	fresh := true // at the beginning of a line
	for i, indent := 0, 0; i <= len(text); {
		if i == len(text) || text[i] == '\n' {
			if brackets == 0 || i == len(text) {
				if len(words) > 1 || len(words) == 1 && !isPythonString(words[0]) {
					for indents[len(indents)-1] > indent {
						indents = indents[:len(indents)-1]
					}
					if indents[len(indents)-1] < indent {
						indents = append(indents, indent)
					}
					out = append(out, statement{len(indents) - 1, words})
				}
				words, fresh, indent = nil, true, 0
			}
			i++
			continue
		}
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\f':
			if fresh && c == '\t' {
				indent += 7
			}
			if fresh {
				indent++
			}
			i++
			continue
		case c == '#':
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case c == '\\':
			i++
			for i < len(text) && (text[i] == '\r' || text[i] == '\n') {
				i++
			}
			continue
		case strings.IndexByte("([{", c) >= 0:
			brackets++
		case strings.IndexByte(")]}", c) >= 0:
			brackets = max(0, brackets-1)
		}
		fresh = false
		n := pythonLength(text[i:])
		if n == 0 {
			return nil, fmt.Errorf("unterminated string in line %d", lineAt(text, i))
		}
		words = append(words, text[i:i+n])
		i += n
	}
	if brackets > 0 {
		return nil, errors.New("unterminated bracket")
	}
	return out, nil
}

func isPythonString(word string) bool {
	last := word[len(word)-1]
	return last == '"' || last == '\''
}

// pythonLength returns the length of the first token of a text: a name, a number, a string, or one character. It
// returns 0 for an unterminated string.
func pythonLength(text string) int {
	n := 0
	for n < len(text) && isWord(text[n]) {
		n++
	}
	if n == len(text) || text[n] != '"' && text[n] != '\'' || n > 0 && strings.Trim(strings.ToLower(text[:n]), "rbuf") != "" {
		return max(1, n)
	}
	quote := text[n : n+1]
	if long := strings.Repeat(quote, 3); strings.HasPrefix(text[n:], long) {
		quote = long
	}
	for i := n + len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++
		case strings.HasPrefix(text[i:], quote):
			return i + len(quote)
		case text[i] == '\n' && len(quote) == 1:
			return 0
		}
	}
	return 0
}

// module is a file of op_builder: its classes, and what else it defines.
type module struct {
	name    string
	classes map[string]*class
	defs    definitions
	err     error
}

// definitions are functions and variables by their names.
type definitions map[string][]statement

type class struct {
	module  *module
	name    string
	bases   []string
	members definitions
}

// module reads a file of op_builder.
func (s *Sources) module(name string) *module {
	if s.modules[name] == nil {
		m := &module{name: name, classes: map[string]*class{}, defs: definitions{}}
		var all []statement
		if all, m.err = statements(s.files[name]); m.err == nil {
			for _, b := range blocks(all) {
				m.add(b)
			}
		}
		s.modules[name] = m
	}
	return s.modules[name]
}

// blocks splits statements at the outermost ones. A decorator belongs to the definition that it decorates.
func blocks(all []statement) [][]statement {
	var out [][]statement
	decorated := false
	for _, s := range all {
		if s.depth > all[0].depth || decorated {
			out[len(out)-1] = append(out[len(out)-1], s)
		} else {
			out = append(out, []statement{s})
		}
		if s.depth <= all[0].depth {
			decorated = s.words[0] == "@"
		}
	}
	return out
}

func (m *module) add(block []statement) {
	if !block[0].starts("class") || len(block[0].words) < 2 {
		m.defs.add(block)
		return
	}
	c := &class{module: m, name: block[0].words[1], members: definitions{}}
	for _, word := range block[0].words[2:] {
		if isWord(word[0]) {
			c.bases = append(c.bases, word)
		}
	}
	if len(block) > 1 {
		for _, member := range blocks(block[1:]) {
			c.members.add(member)
		}
	}
	m.classes[c.name] = c
}

// add adds a function or a variable by its name, or an if or try by all names that it defines.
func (d definitions) add(block []statement) {
	for _, s := range block {
		for i, word := range s.words {
			if word == "def" && len(s.words) > i+1 {
				d[s.words[i+1]] = append(d[s.words[i+1]], block...)
			}
			if i == 1 && len(s.words) > 2 && (word == "=" || word == ":") && isWord(s.words[0][0]) {
				d[s.words[0]] = append(d[s.words[0]], block...)
			}
		}
		if slices.Contains(s.words, "def") { // what is inside of a function is not defined here
			return
		}
	}
}
