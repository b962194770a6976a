package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// ConflictError lists every reason why no toolchain exists for a Spec.
type ConflictError struct {
	Conflicts []Conflict
	// Fix is the change of one constraint with which Resolve succeeds. It is "" if no
	// single change helps.
	Fix string
	// Nodes says what must change on the nodes before Fix works, "" if nothing.
	Nodes string
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

// Hint gives the fix and the advice.
func (e *ConflictError) Hint() string {
	var hints []string
	switch {
	case e.Nodes != "":
		hints = append(hints, e.Nodes+", then this works: "+e.Fix)
	case e.Fix != "":
		hints = append(hints, "this works: "+e.Fix)
	}
	for _, c := range e.Conflicts {
		hints = appendMissing(hints, c.Advice)
	}
	if len(hints) == 0 && len(e.Conflicts) == 1 {
		return "'dsbuild toolchains' lists what goes together"
	}
	if len(hints) == 0 {
		return "dsbuild knows no single change that helps: change each value that is named above"
	}
	return strings.Join(hints, "; ")
}

// ExitCode returns 2: no toolchain exists for the configuration.
func (e *ConflictError) ExitCode() int { return 2 }

func reasonsOf(all []Conflict) []string {
	return lists.Map(all, func(c Conflict) string { return c.What })
}

// conflict makes the error for a request that cannot be resolved.
func (t *Tables) conflict(asked request) *ConflictError {
	w, bad := t.lookUp(asked.spec, asked.environments)
	if best, _ := t.search(w); best == nil {
		bad = append(bad, t.explain(w)...)
	}
	e := &ConflictError{Conflicts: bad}
	if w.isForeignHost() {
		return e
	}
	// Try one change after the other. The values that describe the nodes are changed last.
	f := &fixer{Tables: t, asked: asked}
	_ = f.addPython() ||
		asked.spec.ABI == wheel.StableABI && f.try("--abi torch", func(r *request) { r.spec.ABI = wheel.TorchMinor }) ||
		asked.spec.ABI != wheel.StableABI && f.try("--abi stable", func(r *request) { r.spec.ABI = wheel.StableABI }) ||
		f.otherDeepSpeed() ||
		f.otherVersion("--torch", torchVersions(f.Torches), func(s *wheel.Request) *string { return &s.Torch }) ||
		f.otherVersion("--cuda", torchCUDAs(f.Torches), func(s *wheel.Request) *string { return &s.CUDA }) ||
		f.otherBase() ||
		f.otherVersion("--python", allPythons(f.Torches), func(s *wheel.Request) *string { return &s.Python }) ||
		f.otherNodes("--driver", oldestDrivers(f.CUDAs), driverForm, "update the driver of the nodes to %s or newer",
			func(s *wheel.Request) *string { return &s.Driver }) ||
		f.otherOps() ||
		f.otherGPUs() ||
		f.otherNodes("--glibc", []string{LinkGlibc}, xy, "update the system of the nodes to one with glibc %s or newer",
			func(s *wheel.Request) *string { return &s.Glibc })
	e.Fix, e.Nodes = f.flags, f.nodes
	return e
}

// conflictList collects conflicts.
type conflictList []Conflict

func (c *conflictList) add(format string, args ...any) {
	*c = append(*c, Conflict{What: fmt.Sprintf(format, args...)})
}

// advise adds advice to the last conflict.
func (c conflictList) advise(advice ...string) { c[len(c)-1].Advice = slices.Clone(advice) }
