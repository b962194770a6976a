// Package report is the outcome of a command on the nodes of a fleet: one report for deploy, verify,
// rollback, ship and the commands of env that work on nodes. It has forms for people (a table, an
// HTML page in package page) and for programs (JSON).
package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Status is the outcome on a node.
type Status string

// The statuses of a report.
const (
	OK          Status = "ok"          // runs the wanted wheel, even if dsbuild had nothing to do
	Failed      Status = "failed"      // a step failed
	Unreachable Status = "unreachable" // no connection; includes a wrong host key
	Refused     Status = "refused"     // the wheel does not fit, or the node cannot take it
	Differs     Status = "differs"     // only by verify: does not run the expected version or files
	Skipped     Status = "skipped"     // not attempted
)

// Report is the outcome of a run: the JSON of --report and --json.
type Report struct {
	Command    string  `json:"command"` // such as deploy or env rollback
	Wheels     []Wheel `json:"wheels"`
	Consistent bool    `json:"consistent"` // every node is ok, and all run the same
	Summary    Summary `json:"summary"`
	Causes     []Cause `json:"causes"`           // of the nodes that are not ok; the cause with the most nodes first
	Nodes      []Node  `json:"nodes"`            // in inventory order
	Groups     []Group `json:"groups,omitempty"` // only in reports of ship
	Gate       *Gate   `json:"gate,omitempty"`   // the gate of --gate, if it ran

	Undone *node.Run `json:"undone,omitempty"` // only in reports of rollback and env rollback: the run that it undoes

	// Differences are the properties in which the nodes that answered differ, the most important
	// first. They include properties that may differ.
	Differences []Difference `json:"differences"`

	// Mixed is true for a fleet that runs several wheels on purpose, or one for several torches:
	// torch and CUDA must agree only among nodes of the same kind (Seen).
	Mixed bool `json:"-"`

	alike bool // the nodes that are ok have one DeepSpeed, torch and CUDA
}

// Gate is the outcome of the gate after the first batch.
type Gate struct {
	Command string   `json:"command"` // the user's, or check
	Nodes   []string `json:"nodes"`   // the changed nodes of the first batch
	Error   string   `json:"error"`   // why no further batch began; empty if the gate passed
	Hint    string   `json:"hint"`
}

// Text is a failed gate for people, in one line.
func (g Gate) Text() string {
	return fmt.Sprintf("gate failed after the first batch (%s): %s", ui.FoldShort(g.Nodes), g.Error)
}

// String is Text with the hint.
func (g Gate) String() string {
	text := g.Text()
	if g.Hint != "" {
		text += "\n  hint: " + g.Hint
	}
	return text
}

// failedGate returns the gate if it stopped the run, else nil.
func (r *Report) failedGate() *Gate {
	if r.Gate == nil || r.Gate.Error == "" {
		return nil
	}
	return r.Gate
}

// Difference is a property in which nodes differ.
type Difference struct {
	What   string            `json:"what"` // the name of a node.Property
	Must   bool              `json:"must"` // nodes that differ in it do not run the same software
	Values []DifferenceValue `json:"values"`
}

// DifferenceValue is a value with the nodes that have it; the most frequent value comes first.
type DifferenceValue struct {
	Value string   `json:"value"` // "": none, or not known
	Nodes []string `json:"nodes"`
}

// Wheel names a wheel.
type Wheel struct {
	Name    string `json:"name"`
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
}

// Summary counts nodes by status.
type Summary struct {
	OK          int `json:"ok"`
	Failed      int `json:"failed"`
	Unreachable int `json:"unreachable"`
	Refused     int `json:"refused"`
	Differs     int `json:"differs"`
	Skipped     int `json:"skipped"`
}

// Node is the outcome on one node.
type Node struct {
	Name         string             `json:"name"`
	Status       Status             `json:"status"`
	Step         string             `json:"step"` // the last step that began
	Error        string             `json:"error"`
	Hint         string             `json:"hint"`
	Differs      []string           `json:"differs"` // verify: the differences, one text each
	Notes        []string           `json:"notes"`   // notes for the user, not faults: of verify, and why it gets its wheel
	Changed      bool               `json:"changed"`
	Wheel        string             `json:"wheel"`        // the file name of the wheel chosen for it
	ExtraWheels  []string           `json:"extra_wheels"` // planned wheels of the wheelhouse: "numpy 2.3.2"
	Before       *Version           `json:"before"`
	After        *Version           `json:"after"`
	StateUnknown bool               `json:"state_unknown"`    // its current version is unknown: ignore After
	Facts        *node.Facts        `json:"facts"`            // as probed, without the list of distributions
	Seconds      map[string]float64 `json:"seconds"`          // by step
	Sent         int64              `json:"sent_bytes"`       // total size of the files sent to it
	Serial       int                `json:"serial,omitempty"` // the group of --serial that changed it, from 1
	Log          string             `json:"log,omitempty"`    // the file with the node's commands and output

	From []Source `json:"from,omitempty"` // only where nodes passed files on: the sources of its files

	Environment *Environment `json:"environment,omitempty"` // only in reports of env

	Compared []Comparison `json:"compared,omitempty"` // only of verify --verify compute: an entry for each op

	Unfit     bool   `json:"-"` // refused because the wheel is incompatible
	Proven    bool   `json:"-"` // verify: its files are the wheel's, even if dsbuild did not install them
	CauseText string `json:"-"` // Error without the node's own details, if that differs
}

// Source is a sender of files.
type Source struct {
	Node  string `json:"node"` // "": the controller
	Bytes int64  `json:"bytes"`
}

// Comparison is what an op has computed on a node, next to what torch computes. All distances are relative to the
// largest number of torch's result.
type Comparison struct {
	Op     string  `json:"op"`
	Device string  `json:"device"` // the name of the GPU, or "CPU"
	Count  int     `json:"count"`  // of its comparisons; the other fields describe the worst, relative to its tolerance
	Name   string  `json:"name"`
	Worst  float64 `json:"worst"` // the distance
	Most   float64 `json:"most"`  // the tolerance
	Why    string  `json:"why"`   // the source of the tolerance
}

// Environment is the whole environment of a node.
type Environment struct {
	Name   string `json:"name"`
	Digest string `json:"digest"` // of the node's environment, or ""
	Before string `json:"before"` // of its environment before the run, or ""
	Python string `json:"python"` // its interpreter on the node
}

// Empty is the report of a command that had nothing to do.
func Empty(command string) *Report {
	r := &Report{Command: command, Wheels: []Wheel{}, Nodes: []Node{}, Differences: []Difference{}}
	r.Complete()
	return r
}

// Add adds the outcome of one node with its wheel, which may be nil.
func (r *Report) Add(n Node, w *Wheel) {
	if w != nil {
		n.Wheel = w.Name
		if !slices.ContainsFunc(r.Wheels, func(o Wheel) bool { return o.SHA256 == w.SHA256 }) {
			r.Wheels = append(r.Wheels, *w)
		}
	}
	if n.Facts != nil {
		f := *n.Facts
		f.Dists, f.ExtraWheels = nil, nil // long, and equal on most nodes
		n.Facts = &f
	}
	r.Nodes = append(r.Nodes, n)
}

// Of returns the report on some of the nodes.
func (r *Report) Of(names []string) *Report {
	part := &Report{Command: r.Command, Mixed: r.Mixed, Wheels: []Wheel{}, Nodes: []Node{}, Differences: []Difference{}}
	for _, n := range r.Nodes {
		if slices.Contains(names, n.Name) {
			part.Nodes = append(part.Nodes, n)
		}
	}
	for _, w := range r.Wheels {
		if slices.ContainsFunc(part.Nodes, func(n Node) bool { return n.Wheel == w.Name }) {
			part.Wheels = append(part.Wheels, w)
		}
	}
	for _, d := range r.Differences {
		var values []DifferenceValue
		for _, v := range d.Values {
			v.Nodes = slices.DeleteFunc(slices.Clone(v.Nodes), func(name string) bool { return !slices.Contains(names, name) })
			if len(v.Nodes) > 0 {
				values = append(values, v)
			}
		}
		if len(values) > 1 {
			d.Values = values
			part.Differences = append(part.Differences, d)
		}
	}
	part.Complete()
	return part
}

// isVerify reports whether this is a report of verify, which changes no node.
func (r *Report) isVerify() bool { return r.Command == "verify" || r.Command == "env verify" }

// Complete counts the nodes, groups the causes and decides Consistent. Nodes with different wheels have different
// sha256, but must have the same DeepSpeed version, torch and CUDA.
func (r *Report) Complete() {
	r.Summary, r.Causes = Summary{}, Causes(r.Nodes)
	shas := map[string]string{}
	r.Consistent = len(r.Nodes) > 0
	var facts []node.Facts
	for _, n := range r.Nodes {
		switch n.Status {
		case OK:
			r.Summary.OK++
		case Failed:
			r.Summary.Failed++
		case Unreachable:
			r.Summary.Unreachable++
		case Refused:
			r.Summary.Refused++
		case Differs:
			r.Summary.Differs++
		case Skipped:
			r.Summary.Skipped++
		}
		if n.Status != OK || n.Facts == nil {
			r.Consistent = false
			continue
		}
		var after Version // stays empty if a rollback went back to no DeepSpeed
		if n.After != nil {
			after = *n.After
		}
		f := *n.Facts
		f.DeepSpeed = &node.Installed{Version: publicPart(after.Version)}
		facts = append(facts, f)
		if n.Proven && after.SHA256 == "" {
			continue
		}
		if seen, ok := shas[n.Wheel]; ok && seen != after.SHA256 {
			r.Consistent = false
		}
		shas[n.Wheel] = after.SHA256
	}
	r.alike = agree(facts, "deepspeed", "torch", "cuda")
	// In a mixed fleet, each node's torch and CUDA were verified against its wheel.
	if !r.alike && !r.Mixed || !agree(facts, "deepspeed") {
		r.Consistent = false
	}
}

// agree reports whether nodes agree in some properties.
func agree(facts []node.Facts, properties ...string) bool {
	compared := slices.DeleteFunc(node.Properties(), func(p node.Property) bool {
		return !slices.Contains(properties, p.Name)
	})
	return len(node.Compare(facts, compared)) == 0
}

// Err is nil if every node is ok and all run the same. Otherwise it carries the exit code: 4 if
// the wheel is incompatible with every node, 3 in every other case.
func (r *Report) Err() error {
	total, unfit := len(r.Nodes), 0
	for _, n := range r.Nodes {
		if n.Status == Refused && n.Unfit {
			unfit++
		}
	}
	switch {
	case r.failedGate() != nil:
		return NodesError("the gate failed after the first batch: %s", r.Gate.Error)
	case r.Summary.OK == total && r.Consistent:
		return nil
	case r.Summary.OK == total:
		return NodesError("the nodes run different software")
	case unfit == total:
		return NoneCompatibleError(total)
	}
	return NodesError("%d of %d nodes not ok", total-r.Summary.OK, total)
}

// ExcludedNode is a node that a plan leaves as it is: refused, or not reached.
type ExcludedNode struct {
	Name  string
	Unfit bool   // the wheel does not fit it
	Hint  string // what to try, or ""
}

// PlanError is the error that the report of a plan for total nodes will have, as far as the plan can tell.
func PlanError(total int, left []ExcludedNode) error {
	unfit := 0
	for _, n := range left {
		if n.Unfit {
			unfit++
		}
	}
	switch {
	case len(left) == 0:
		return nil
	case unfit == total:
		return NoneCompatibleError(total)
	}
	return NodesError("%d of %d nodes refused or unreachable", len(left), total)
}

// NoneCompatibleError is the error of a run whose wheel fits none of its nodes.
func NoneCompatibleError(total int) error {
	return fault.WithCode(fmt.Errorf("no compatible nodes (%d refused)", total), 4)
}

// NodesError is the error of a run that leaves some nodes in another state than ok.
func NodesError(format string, args ...any) error {
	return fault.WithCode(fmt.Errorf(format, args...), 3)
}

// Version is a DeepSpeed version in the report.
type Version struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the wheel, or "" if dsbuild did not install it
}

// String names the build for a message. A nil Version stands for none.
func (v *Version) String() string {
	if v == nil {
		return "no DeepSpeed"
	}
	return "DeepSpeed " + v.Build()
}

// Build returns the version with what distinguishes two builds of it: the wheel's sha256, if dsbuild installed it.
func (v *Version) Build() string {
	if v.SHA256 == "" {
		return v.Version
	}
	return fmt.Sprintf("%s (sha256 %s)", v.Version, ShortSum(v.SHA256))
}

// Plain returns the version without characters that no version has: the text came from a node.
func (v *Version) Plain() *Version {
	if v == nil {
		return nil
	}
	return &Version{node.PlainVersion(v.Version), node.PlainVersion(v.SHA256)}
}

// publicPart returns a version without its local part.
func publicPart(version string) string {
	v, _, _ := strings.Cut(version, "+")
	return v
}

// ShortSum shortens a sha256 to the 12 digits that people compare.
func ShortSum(sum string) string { return sum[:min(len(sum), 12)] }
