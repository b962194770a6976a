package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// ConflictError lists every reason why no toolchain exists for a request. Fix is a change of one flag with which
// Resolve succeeds. It is empty if no single change helps, or if a conflict has its own advice.
type ConflictError struct {
	Conflicts []Conflict
	Fix       string
}

// Conflict is one reason. Advice names a remedy besides the command line: another
// machine, another GPU.
type Conflict struct {
	What   string
	Advice []string
}

func (e *ConflictError) Error() string {
	lines := reasonsOf(e.Conflicts)
	if len(lines) == 1 {
		return "no toolchain for this wheel: " + lines[0]
	}
	return "no toolchain for this wheel:\n  " + strings.Join(lines, "\n  ")
}

// Hint returns the fix and the advice.
func (e *ConflictError) Hint() string {
	var hints []string
	if e.Fix != "" {
		hints = append(hints, e.Fix)
	}
	for _, c := range e.Conflicts {
		hints = appendMissing(hints, c.Advice)
	}
	if len(hints) == 0 && len(e.Conflicts) == 1 {
		return "list the supported combinations: dsbuild toolchains"
	}
	if len(hints) == 0 {
		return "change every value listed above: no single change is enough"
	}
	return strings.Join(hints, "; ")
}

// ExitCode returns 2: no toolchain exists for the configuration.
func (e *ConflictError) ExitCode() int { return 2 }

func reasonsOf(all []Conflict) []string {
	return lists.Map(all, func(c Conflict) string { return c.What })
}

// conflict returns the error for a request that cannot be resolved. A conflict with its own advice is wrong by
// itself, so that omitting another flag is no help.
func (t *Tables) conflict(asked attempt) *ConflictError {
	w, bad := t.lookUp(asked)
	if best, _ := t.search(w); best == nil {
		bad = append(bad, t.explain(w)...)
	}
	e := &ConflictError{Conflicts: bad}
	if !slices.ContainsFunc(bad, func(c Conflict) bool { return len(c.Advice) > 0 }) {
		e.Fix = t.dropOne(asked, t.find)
	}
	return e
}

// conflictList collects conflicts.
type conflictList []Conflict

func (c *conflictList) add(format string, args ...any) {
	*c = append(*c, Conflict{What: fmt.Sprintf(format, args...)})
}

// advise adds advice to the last conflict.
func (c conflictList) advise(advice ...string) { c[len(c)-1].Advice = slices.Clone(advice) }

// didYouMean is the advice for a name that is unknown or means several things.
func didYouMean(names ...string) []string {
	return []string{"did you mean " + strings.Join(names, " or ") + "?"}
}
