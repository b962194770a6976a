package pages

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// mark is one line of a comment that says how the following block is tested.
type mark struct {
	line int
	key  string
	nth  int // the command of the block to which the mark applies, from 1; 0: all
	text string
}

var markLine = regexp.MustCompile(`^(run|dry run|parse|by|not run|file|input|text|output)(?: (\d+))?:\s*(.*)$`)

// parseMarks reads the marks of a comment. A comment of another kind has none.
func parseMarks(comment string) ([]mark, error) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(comment), "<!--")
	if !ok {
		return nil, nil
	}
	inner, ok = strings.CutSuffix(inner, "-->")
	if !ok {
		return nil, nil
	}
	var all []mark
	for line := range strings.Lines(inner) {
		m := markLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			if len(all) > 0 && strings.TrimSpace(line) != "" {
				return nil, fmt.Errorf("%q is not a mark, but stands below one", strings.TrimSpace(line))
			}
			continue
		}
		if m[3] == "" {
			return nil, fmt.Errorf("the mark %q has no text", m[1])
		}
		nth, _ := strconv.Atoi(m[2]) //nolint:errcheck // digits, or nothing
		all = append(all, mark{key: m[1], nth: nth, text: m[3]})
	}
	return all, nil
}

// wholeMark returns the mark that makes a block one without commands; nil if there is none.
func wholeMark(marks []mark) *mark {
	for i, m := range marks {
		if m.key == "file" || m.key == "input" || m.key == "text" {
			return &marks[i]
		}
	}
	return nil
}

// applyMark applies a mark to its commands.
func (m mark) applyMark(commands []Command) error {
	if m.nth > len(commands) {
		return fmt.Errorf("the mark %q is about command %d, and the block has %d", m.key, m.nth, len(commands))
	}
	for i := range commands {
		if m.nth != 0 && m.nth != i+1 {
			continue
		}
		if err := m.describeMark(&commands[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m mark) describeMark(c *Command) error {
	levels := map[string]Level{"run": Run, "dry run": DryRun, "parse": Parse, "by": By, "not run": NotRun}
	if m.key == "output" {
		c.Loose = true
		return nil
	}
	c.How = levels[m.key]
	switch c.How {
	case Run:
		code, err := strconv.Atoi(strings.TrimPrefix(m.text, "exit "))
		if err != nil {
			return fmt.Errorf("the mark %q wants \"exit CODE\", not %q", m.key, m.text)
		}
		c.Exit = code
	case By:
		c.Tests = strings.Fields(m.text)
	case DryRun, Parse, NotRun, Recorded:
		c.Why = m.text
	}
	return nil
}
