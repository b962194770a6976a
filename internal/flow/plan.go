package flow

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// State says where a wheel is.
type State string

// The states of a wheel.
const (
	ToBuild State = "build"             // it has to be built
	Stored  State = "store"             // the store has it
	Placed  State = "placed"            // it lies where wheels are put
	Running State = deploy.GroupRunning // all of its nodes run it
	Built   State = "built"             // this run has built it
	Failed  State = "failed"            // it could not be planned or built
)

// Plan is which wheels serve a fleet, and who gets none.
type Plan struct {
	Wheels []*Wheel
	Left   []Left // in inventory order
	Nodes  int    // how many there are
	Keep   bool   // the nodes are left as they are
}

// Wheel is one wheel of a plan, with the nodes that it is for.
type Wheel struct {
	Name     string     // by which it is known in a run, until it has a file
	Spec     wheel.Spec // what is asked for
	Nodes    []string   // in inventory order
	Running  []string   // those of them that run it already
	Why      []string   // why it is what it is
	State    State
	Plan     *pipeline.Plan // nil where it could not be planned
	Artifact wheel.Artifact // its path is "" until it lies where wheels are put
	Engine   string         // where this run built it
	Err      error

	request string
	product pipeline.Product // of the store, or as placed
	places  []int            // of Nodes in the inventory
}

// Left is a node that gets no wheel.
type Left struct {
	Node    string
	Reasons []string
	Hint    string

	unserved bool // no wheel can serve it; else it cannot be deployed to, or reached
	place    int
}

// nameWheels gives each wheel a name of its own, which says what it is for.
func nameWheels(wheels []*Wheel) {
	seen := map[string]int{}
	for _, w := range wheels {
		parts := []string{"cp" + strings.ReplaceAll(w.Spec.Python, ".", ""), "torch" + w.Spec.Torch}
		for _, a := range w.Spec.Archs {
			parts = append(parts, a.SM())
		}
		if w.Spec.CPU != "" {
			parts = append(parts, w.Spec.CPU.Short())
		}
		w.Name = strings.Join(parts, "-")
		if seen[w.Name]++; seen[w.Name] > 1 {
			w.Name += fmt.Sprintf("-%d", seen[w.Name])
		}
	}
}

func (w *Wheel) fail(err error) { w.State, w.Err = Failed, err }

// take takes a finished wheel for the one that is wanted, unless it needs a newer
// glibc than nodes have, which a plan's digest does not tell.
func (w *Wheel) take(p pipeline.Product, state State) bool {
	if len(wheel.AuditTags(p.Manifest.Name, w.Plan.Toolchain.Glibc)) > 0 {
		return false
	}
	m := p.Manifest
	w.product, w.State = p, state
	w.Artifact = wheel.Artifact{SHA256: m.SHA256, Size: m.Size, Cached: true, Manifest: m}
	if state == Placed {
		w.Artifact.Path = p.File
	}
	return true
}

// path is where the wheel's file is.
func (w *Wheel) path() string {
	if w.Artifact.Path != "" {
		return w.Artifact.Path
	}
	return w.product.File
}

// running are the nodes that run the wheel as it was installed.
func (w *Wheel) running(known []deploy.Known) []string {
	var names []string
	for _, i := range w.places {
		d := known[i].Facts.DeepSpeed
		if d != nil && d.Intact && d.SHA256 == w.Artifact.SHA256 && d.SHA256 != "" && !known[i].Facts.Unfinished {
			names = append(names, known[i].Name)
		}
	}
	return names
}

// Err says beforehand, or when wheels are all that was wanted, what is wrong
// with a plan: nil where every node gets a wheel.
func (p *Plan) Err() error {
	if err := p.nothing(); err != nil {
		return err
	}
	without, failed := len(p.Left), 0
	for _, w := range p.Wheels {
		if w.Err != nil {
			failed++
			without += len(w.Nodes)
		}
	}
	switch {
	case without == 0:
		return nil
	case failed == 0:
		return &Error{fmt.Sprintf("%d of %d nodes get no wheel", without, p.Nodes), "", 3}
	}
	return &Error{fmt.Sprintf("%d of %d nodes get no wheel: %d of %d wheels failed", without, p.Nodes, failed, len(p.Wheels)), "", 3}
}

// nothing is the error of a plan with no wheel for anybody: of what was asked
// for where the nodes could be served by another, of the builds where those
// failed. It is nil where the nodes are to blame.
func (p *Plan) nothing() error {
	if slices.ContainsFunc(p.Wheels, func(w *Wheel) bool { return w.Err == nil }) {
		return nil
	}
	if len(p.Wheels) == 0 {
		if len(p.Left) == 0 || slices.ContainsFunc(p.Left, func(l Left) bool { return !l.unserved }) {
			return nil
		}
		return &Error{"no wheel can be built for any of the nodes", p.Left[0].Hint, 2}
	}
	var all []error
	for _, w := range p.Wheels {
		all = append(all, fmt.Errorf("%s: %w", w.Name, w.Err))
	}
	if len(all) == 1 {
		return all[0]
	}
	return &BuildError{all}
}

// Error is a run that did not serve every node.
type Error struct {
	what, hint string
	code       int
}

func (e *Error) Error() string { return e.what }

// Hint says what to try.
func (e *Error) Hint() string { return e.hint }

// ExitCode is 2 where nothing that was asked for can be built, else 3.
func (e *Error) ExitCode() int { return e.code }

// BuildError is a run of which every wheel failed.
type BuildError struct{ errs []error }

func (e *BuildError) Error() string {
	var lines []string
	for _, err := range e.errs {
		lines = append(lines, err.Error())
		if h := hint.Of(err); h != "" {
			lines = append(lines, "  hint: "+h)
		}
	}
	return fmt.Sprintf("all %d wheels failed:\n%s", len(e.errs), strings.Join(lines, "\n"))
}

// ExitCode is that of the wheels where they agree; else it is 1.
func (e *BuildError) ExitCode() int {
	code := 0
	for i, err := range e.errs {
		one := 1
		if c := interface{ ExitCode() int }(nil); errors.As(err, &c) {
			one = c.ExitCode()
		}
		if i > 0 && one != code {
			return 1
		}
		code = one
	}
	return code
}
