package evidence

import (
	"errors"
	"fmt"
	"strings"
)

// macroOf reports whether a macro is defined (as 1), and whether that is certain.
type macroOf func(name string) (defined, certain bool)

// maxDepth bounds how deep conditionals and brackets are nested.
const maxDepth = 200

// conditional is an #if with its branches.
type conditional struct {
	line       int
	conditions []value
	branches   [][]string
	last       bool // there was an #else
}

// tokens returns what a machine sees of a text: the tokens of each line, joined by blanks, and the directives. It
// decides conditionals as far as macro is certain. A conditional that it cannot decide keeps its condition and all
// branches that may be compiled.
func tokens(text string, macro macroOf) ([]string, error) {
	text, err := clean(text)
	if err != nil {
		return nil, err
	}
	open := []*conditional{{branches: [][]string{nil}}} // the first is the file itself
	for i, line := range strings.Split(text, "\n") {
		words := lex(line)
		if len(words) == 0 {
			continue
		}
		c := open[len(open)-1]
		kind := ""
		if words[0] == "#" && len(words) > 1 {
			kind = words[1]
		}
		switch kind {
		case "if", "ifdef", "ifndef":
			if len(open) > maxDepth {
				return nil, fmt.Errorf("#if in line %d is nested too deeply", i+1)
			}
			open = append(open, &conditional{line: i + 1, conditions: []value{decide(kind, words[2:], macro)}, branches: [][]string{nil}})
		case "elif", "elifdef", "elifndef", "else", "endif":
			if len(open) == 1 || c.last && kind != "endif" {
				return nil, fmt.Errorf("#%s without #if in line %d", kind, i+1)
			}
			if kind == "endif" {
				open = open[:len(open)-1]
				open[len(open)-1].append(c.resolve()...)
				continue
			}
			c.last = kind == "else"
			c.conditions = append(c.conditions, decide(strings.TrimPrefix(kind, "el"), words[2:], macro))
			c.branches = append(c.branches, nil)
		case "":
			c.append(strings.Join(words, " "))
		default:
			c.append(directive(line, words))
		}
	}
	if len(open) > 1 {
		return nil, fmt.Errorf("unterminated #if in line %d", open[len(open)-1].line)
	}
	return joined(open[0].branches[0]), nil
}

// joined merges consecutive lines that are not directives, because line breaks between tokens are ignored.
func joined(lines []string) []string {
	var out []string
	for _, line := range lines {
		if n := len(out); n > 0 && line[0] != '#' && out[n-1][0] != '#' {
			out[n-1] += " " + line
			continue
		}
		out = append(out, line)
	}
	return out
}

func (c *conditional) append(lines ...string) {
	last := len(c.branches) - 1
	c.branches[last] = append(c.branches[last], lines...)
}

// resolve returns the branches that may be compiled, with their conditions, or a single branch without one.
func (c *conditional) resolve() []string {
	var out []string
	for i, condition := range c.conditions {
		switch {
		case condition.certain && condition.number == 0:
			continue
		case condition.certain && out == nil:
			return c.branches[i]
		case condition.certain:
			out = append(out, "#else")
		case out == nil:
			out = append(out, "#if "+condition.text)
		default:
			out = append(out, "#elif "+condition.text)
		}
		out = append(out, c.branches[i]...)
		if condition.certain {
			break
		}
	}
	if out == nil {
		return nil
	}
	return append(out, "#endif")
}

// directive returns a directive in a canonical form. A macro with arguments differs from a macro whose value begins
// with a bracket.
func directive(line string, words []string) string {
	if words[1] == "define" && len(words) > 3 && words[3] == "(" {
		_, after, _ := strings.Cut(line, words[2])
		if strings.HasPrefix(after, "(") {
			words = append([]string{"#", "define", words[2] + "("}, words[4:]...)
		}
	}
	return "#" + strings.Join(words[1:], " ")
}

// includesOf lists what the directives include.
func includesOf(lines []string) ([]string, error) {
	var out []string
	for _, line := range lines {
		words := strings.Fields(line)
		if words[0] != "#include" && words[0] != "#include_next" {
			continue
		}
		name := strings.Join(words[1:], "")
		switch {
		case len(name) > 2 && name[0] == '<' && name[len(name)-1] == '>', len(name) > 2 && name[0] == '"' && name[len(name)-1] == '"':
			out = append(out, name)
		default:
			return nil, errors.New("an #include whose file only a compiler knows: " + name)
		}
	}
	return out, nil
}
