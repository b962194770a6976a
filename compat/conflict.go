package compat

import (
	"fmt"
	"slices"
	"strings"
)

// ConflictError lists every reason why no toolchain exists for a Spec.
type ConflictError struct {
	Conflicts []Conflict
	// Fix is the nearest change that makes it work, in the words of the command
	// line. It has been resolved.
	Fix string
	// Final says that no other value of the command line mends it: there is
	// nothing to try, only advice.
	Final bool
}

// Conflict is one reason. Try is what to say instead where one value by itself
// is wrong; such changes are needed all together. Advice is what remains beside
// the command line: another machine, another GPU.
type Conflict struct {
	What   string
	Try    string
	Advice []string
}

func (e *ConflictError) Error() string {
	lines := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		lines[i] = c.What
	}
	if len(lines) == 1 {
		return "no toolchain for this wheel: " + lines[0]
	}
	return "no toolchain for this wheel:\n  " + strings.Join(lines, "\n  ")
}

// Hint says what works, all of it together; and the advice.
func (e *ConflictError) Hint() string {
	var steps, hints []string
	for _, c := range e.Conflicts {
		if c.Try != "" {
			steps = append(steps, c.Try)
		}
		for _, advice := range c.Advice {
			if !slices.Contains(hints, advice) {
				hints = append(hints, advice)
			}
		}
	}
	if e.Fix != "" {
		steps = append(steps, e.Fix)
	}
	if len(steps) > 0 && !e.Final {
		hints = append([]string{"this works: " + strings.Join(steps, " and ")}, hints...)
	}
	return strings.Join(hints, "; ")
}

// ExitCode is that of a configuration for which no toolchain exists.
func (e *ConflictError) ExitCode() int { return 2 }

type conflicts []Conflict

func (c *conflicts) add(format string, args ...any) {
	*c = append(*c, Conflict{What: fmt.Sprintf(format, args...)})
}

// advise adds advice to the last one.
func (c conflicts) advise(advice ...string) { c[len(c)-1].Advice = advice }
