package compat

import (
	"fmt"
	"strings"
)

// ConflictError lists every reason why no toolchain exists for a Spec.
type ConflictError struct {
	Conflicts []Conflict
	// Choices are changes of which any one makes it work, nearest first, in the
	// words of the command line. Each has been resolved.
	Choices []string
}

// Conflict is one reason. Try is what to say instead where one value by itself
// is wrong; such changes are needed all together.
type Conflict struct {
	What string
	Try  string
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

// Hint says what works: the changes that are needed, then those of which any
// one will do.
func (e *ConflictError) Hint() string {
	var steps []string
	for _, c := range e.Conflicts {
		if c.Try != "" {
			steps = append(steps, c.Try)
		}
	}
	if len(e.Choices) > 0 {
		steps = append(steps, strings.Join(e.Choices, ", or "))
	}
	if len(steps) == 0 {
		return ""
	}
	return "this works: " + strings.Join(steps, " and ")
}

// ExitCode is that of a configuration for which no toolchain exists.
func (e *ConflictError) ExitCode() int { return 2 }

type conflicts []Conflict

func (c *conflicts) add(format string, args ...any) {
	*c = append(*c, Conflict{What: fmt.Sprintf(format, args...)})
}
