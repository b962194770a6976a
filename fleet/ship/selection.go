package ship

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// State is the state of a wheel in a run.
type State string

// The states of a wheel.
const (
	ToBuild  State = "build"             // it has to be built
	Stored   State = "store"             // the store has it
	Exported State = "placed"            // Options.Dir has it
	Running  State = report.GroupRunning // all of its nodes run it
	Built    State = "built"             // this run has built it
	Failed   State = "failed"            // it could not be planned or built
)

// Selection lists the wheels that serve a fleet, and the nodes that get none.
type Selection struct {
	Wheels   []*Delivery
	Excluded []ExcludedNode // in inventory order
	Nodes    int            // number of nodes in the fleet
}

// Delivery is one wheel of a selection, with the nodes that get it.
type Delivery struct {
	Name     string        // its name in a run until it has a file
	Request  wheel.Request // the request
	Nodes    []string      // in inventory order
	Running  []string      // the nodes that run it already
	Why      []string      // the reasons for it
	State    State
	Plan     *pipeline.Plan // nil if planning failed
	Artifact wheel.Artifact // its path is "" until the wheel is in Options.Dir
	Err      error

	stored  pipeline.StoredWheel // from the store, or from Options.Dir
	indexes []int                // indexes of Nodes in the inventory
}

// ExcludedNode is a node that gets no wheel.
type ExcludedNode struct {
	Node    string   `json:"node"`
	Reasons []string `json:"reasons"`
	Hint    string   `json:"hint"`

	cause    string // equal for nodes with the same reasons; by default the reasons themselves
	unserved bool   // no wheel can serve it; false: dsbuild cannot reach it or deploy to it
	index    int
}

// nameWheels sets a unique name for each wheel that shows which nodes it is for.
func nameWheels(wheels []*Delivery) {
	seen := map[string]int{}
	for _, w := range wheels {
		parts := []string{"cp" + strings.ReplaceAll(w.Request.Python, ".", ""), "torch" + w.Request.Torch}
		if w.Request.ABI == wheel.StableABI {
			parts = []string{"py3", "torch" + compat.StableTorch}
			if w.Request.CUDA != "" { // the user wants it for this one alone
				parts = append(parts, "cu"+strings.ReplaceAll(w.Request.CUDA, ".", ""))
			}
		}
		for _, a := range w.Request.Archs {
			parts = append(parts, a.SM())
		}
		if w.Request.CPU != "" {
			parts = append(parts, w.Request.CPU.Short())
		}
		w.Name = strings.Join(parts, "-")
		if seen[w.Name]++; seen[w.Name] > 1 {
			w.Name += fmt.Sprintf("-%d", seen[w.Name])
		}
	}
}

func (d *Delivery) markFailed(err error) { d.State, d.Err = Failed, err }

// useFinished uses a finished wheel instead of a build. It rejects a wheel that needs a newer
// glibc than the nodes have: a plan's digest does not include that.
func (d *Delivery) useFinished(w pipeline.StoredWheel, state State) bool {
	if len(wheel.AuditTags(w.Manifest.Name, d.Plan.Toolchain().Glibc)) > 0 {
		return false
	}
	m := w.Manifest
	d.stored, d.State = w, state
	d.Artifact = wheel.Artifact{SHA256: m.SHA256, Size: m.Size, Cached: true, Manifest: m}
	if state == Exported {
		d.Artifact.Path = w.File
	}
	return true
}

// filePath returns the path of the wheel's file.
func (d *Delivery) filePath() string {
	return cmp.Or(d.Artifact.Path, d.stored.File)
}

// nodesRunning returns the nodes that run the wheel, with its files unchanged since the
// installation.
func (d *Delivery) nodesRunning(known []deploy.ProbeResult) []string {
	var names []string
	for _, i := range d.indexes {
		has := known[i].Facts.DeepSpeed
		same := has != nil && has.Intact && has.SHA256 == d.Artifact.SHA256 && has.SHA256 != ""
		if same && !known[i].Facts.Unfinished {
			names = append(names, known[i].Name)
		}
	}
	return names
}

// Err returns the problem of a plan before the deploy, or of a run that only builds wheels. It is
// nil if every node gets a wheel.
func (s *Selection) Err() error {
	if err := s.noWheelError(); err != nil {
		return err
	}
	without, failed := len(s.Excluded), 0
	for _, w := range s.Wheels {
		if w.Err != nil {
			failed++
			without += len(w.Nodes)
		}
	}
	switch {
	case without == 0:
		return nil
	case failed == 0:
		return fault.WithCode(fmt.Errorf("%d of %d nodes get no wheel", without, s.Nodes), 3)
	}
	const text = "%d of %d nodes get no wheel: %d of %d wheels failed"
	return fault.WithCode(fmt.Errorf(text, without, s.Nodes, failed, len(s.Wheels)), 3)
}

// noWheelError returns the error of a plan that has no wheel for any node. If no wheel can be
// built as requested, it is about the request, which another request might solve. If every build
// failed, it names the errors of the builds, and has their exit code if they agree. It is nil if the
// nodes are to blame: dsbuild cannot reach one or deploy to it.
func (s *Selection) noWheelError() error {
	if slices.ContainsFunc(s.Wheels, func(w *Delivery) bool { return w.Err == nil }) {
		return nil
	}
	if len(s.Wheels) == 0 {
		if len(s.Excluded) == 0 || slices.ContainsFunc(s.Excluded, func(l ExcludedNode) bool { return !l.unserved }) {
			return nil
		}
		return fault.WithCode(fault.AddHint(errors.New("cannot build a wheel for any of the nodes"), s.Excluded[0].Hint), 2)
	}
	all := lists.Map(s.Wheels, func(w *Delivery) error { return fmt.Errorf("%s: %w", w.Name, w.Err) })
	if len(all) == 1 {
		return all[0]
	}
	var lines []string
	code := cmp.Or(fault.ExitCode(all[0]), 1)
	for _, err := range all {
		lines = append(lines, err.Error())
		if h := fault.Hint(err); h != "" {
			lines = append(lines, "  hint: "+h)
		}
		if cmp.Or(fault.ExitCode(err), 1) != code {
			code = 1
		}
	}
	return fault.WithCode(fmt.Errorf("all %d wheels failed:\n%s", len(all), strings.Join(lines, "\n")), code)
}
