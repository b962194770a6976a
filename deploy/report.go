package deploy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/node"
)

// Status is the outcome on a node.
type Status string

// The statuses of a report.
const (
	OK          Status = "ok"          // runs the wanted wheel, even if dsbuild had nothing to do
	Failed      Status = "failed"      // a step failed
	Unreachable Status = "unreachable" // no connection; includes a wrong host key
	Refused     Status = "refused"     // the wheel does not fit, or the node cannot take it
	Differs     Status = "differs"     // only by verify: runs something else
	Skipped     Status = "skipped"     // not attempted
)

// Report is the outcome of a run: the JSON of --report and --json.
type Report struct {
	Command    string       `json:"command"` // deploy, rollback, ship or verify
	Wheels     []WheelRef   `json:"wheels"`
	Consistent bool         `json:"consistent"` // every node is ok, and all run the same
	Summary    Summary      `json:"summary"`
	Causes     []Cause      `json:"causes"`           // of the nodes that are not ok; the cause with the most nodes first
	Nodes      []NodeReport `json:"nodes"`            // in inventory order
	Groups     []Group      `json:"groups,omitempty"` // only in reports of ship

	// Differences are the properties in which the nodes that answered differ, the most important
	// first. They include properties that may differ.
	Differences []Difference `json:"differences"`

	verified bool // made by Verify: no node was to be changed
	given    bool // each node was assigned its wheel: torch and CUDA must agree only among nodes with the same wheel
}

// Difference is a property in which nodes differ.
type Difference struct {
	What   string            `json:"what"` // the name of a node.Property
	Must   bool              `json:"must"` // nodes that differ in it do not run the same thing
	Values []DifferenceValue `json:"values"`
}

// DifferenceValue is a value with the nodes that have it; the most frequent value comes first.
type DifferenceValue struct {
	Value string   `json:"value"` // "": none, or not known
	Nodes []string `json:"nodes"`
}

// WheelRef names a wheel.
type WheelRef struct {
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

// NodeReport is the outcome on one node.
type NodeReport struct {
	Name    string             `json:"name"`
	Status  Status             `json:"status"`
	Step    string             `json:"step"` // the last step that began
	Error   string             `json:"error"`
	Hint    string             `json:"hint"`
	Differs []string           `json:"differs"` // verify: the differences, one text each
	Remarks []string           `json:"remarks"` // verify: notes for the user, not faults
	Changed bool               `json:"changed"`
	Wheel   string             `json:"wheel"` // the file name of the wheel chosen for it
	Along   []string           `json:"along"` // planned wheels of the wheelhouse: "numpy 2.3.2"
	Before  *Version           `json:"before"`
	After   *Version           `json:"after"`
	Unseen  bool               `json:"unseen"`           // its current version is unknown: ignore After
	Facts   *node.Facts        `json:"facts"`            // as probed, without the list of distributions
	Seconds map[string]float64 `json:"seconds"`          // by step
	Sent    int64              `json:"sent_bytes"`       // total size of the files sent to it
	Serial  int                `json:"serial,omitempty"` // the group of --serial that changed it, from 1
	Log     string             `json:"log,omitempty"`    // the file with the node's commands and output

	unfit  bool   // refused because the wheel does not fit it
	proven bool   // verify: its files are those of the wheel, whoever installed them
	cause  string // Error without the node's own details; "": equal to Error
}

// complete counts the nodes and decides Consistent. Nodes with different wheels have different
// sha256, but must have the same DeepSpeed version, torch and CUDA.
func (r *Report) complete() {
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
		f.DeepSpeed = &node.Installed{Version: public(after.Version)}
		facts = append(facts, f)
		if n.proven && after.SHA256 == "" {
			continue
		}
		if seen, ok := shas[n.Wheel]; ok && seen != after.SHA256 {
			r.Consistent = false
		}
		shas[n.Wheel] = after.SHA256
	}
	if len(node.Compare(facts, r.properties())) > 0 {
		r.Consistent = false
	}
}

// properties are those in which the nodes of a consistent fleet agree. If each node was assigned
// its wheel, torch and CUDA are left out: the wheels differ on purpose, and each node's torch and
// CUDA were verified against its wheel.
func (r *Report) properties() []node.Property {
	decisive := []string{"deepspeed", "torch", "cuda"}
	if r.given {
		decisive = decisive[:1]
	}
	return slices.DeleteFunc(node.Properties(), func(p node.Property) bool { return !slices.Contains(decisive, p.Name) })
}

// compareNodes returns the properties in which the nodes that answered differ. It leaves out
// nodes without a usable Python, because they would differ in every property that Python reports.
// If each node was assigned its wheel, nodes with different wheels may differ in everything but
// DeepSpeed.
func compareNodes(units []*nodeRun, given bool) []Difference {
	var facts []node.Facts
	var names []string
	var wheels []*WheelRef
	for _, u := range units {
		if u.facts != nil && pythonless(*u.facts) == "" {
			facts, names, wheels = append(facts, u.now()), append(names, u.host.Name), append(wheels, u.ref())
		}
	}
	diffs := []Difference{}
	for _, d := range node.Compare(facts, append(node.Properties(), companions(facts)...)) {
		diff := Difference{What: d.What, Must: d.Must && (!given || d.What == "deepspeed" || within(d, wheels))}
		for _, v := range d.Values {
			value := DifferenceValue{Value: v.Value}
			for _, i := range v.Nodes {
				value.Nodes = append(value.Nodes, names[i])
			}
			diff.Values = append(diff.Values, value)
		}
		diffs = append(diffs, diff)
	}
	return diffs
}

// within reports whether nodes with the same wheel differ.
func within(d node.Diff, wheels []*WheelRef) bool {
	value := map[string]string{} // by sha256
	for _, v := range d.Values {
		for _, i := range v.Nodes {
			if wheels[i] == nil {
				continue
			}
			sum := wheels[i].SHA256
			if seen, ok := value[sum]; ok && seen != v.Value {
				return true
			}
			value[sum] = v.Value
		}
	}
	return false
}

// now returns the node's facts, updated with the changes that dsbuild made.
func (u *nodeRun) now() node.Facts {
	f := *u.facts
	f.DeepSpeed = nil
	if u.after != nil {
		f.DeepSpeed = &node.Installed{Version: u.after.Version, SHA256: u.after.SHA256}
	}
	if u.changed && f.Dists != nil {
		f.Dists = maps.Clone(f.Dists)
		for _, a := range u.plan.Along {
			f.Dists[a.Name] = a.Version
			if a.Name == "transformers" {
				f.Transformers = a.Version
			}
		}
	}
	return f
}

// companions returns, as properties, the versions of the packages that dsbuild installed with
// DeepSpeed on any node. They may differ, because dsbuild gives a node only the packages that it
// lacks.
func companions(facts []node.Facts) []node.Property {
	names := map[string]bool{}
	for _, f := range facts {
		for name := range f.Along {
			names[name] = true
		}
	}
	delete(names, "transformers") // is among node.Properties
	var properties []node.Property
	for _, name := range slices.Sorted(maps.Keys(names)) {
		properties = append(properties, node.Property{Name: name, Of: func(f node.Facts) string { return f.Dists[name] }})
	}
	return properties
}

// Err is nil if every node is ok and all run the same. Otherwise it carries the exit code: 4 if
// the wheel fits no node, 3 in every other case.
func (r *Report) Err() error {
	total, unfit := len(r.Nodes), 0
	for _, n := range r.Nodes {
		if n.Status == Refused && n.unfit {
			unfit++
		}
	}
	switch {
	case r.Summary.OK == total && r.Consistent:
		return nil
	case r.Summary.OK == total:
		return &FleetError{"the nodes run different things", 3}
	case unfit == total:
		return allUnfit(total)
	}
	return &FleetError{fmt.Sprintf("%d of %d nodes are not ok", total-r.Summary.OK, total), 3}
}

// Err is the error that the report of this plan will have, as far as the plan can tell.
func (p Plan) Err() error {
	total, bad, unfit := len(p.Nodes), 0, 0
	for _, n := range p.Nodes {
		if n.Action != Refuse && n.Action != Absent {
			continue
		}
		bad++
		if n.Unfit {
			unfit++
		}
	}
	switch {
	case bad == 0:
		return nil
	case unfit == total:
		return allUnfit(total)
	}
	return &FleetError{fmt.Sprintf("%d of %d nodes are refused or could not be reached", bad, total), 3}
}

func allUnfit(total int) error {
	return &FleetError{fmt.Sprintf("the wheel fits no node (%d refuse it)", total), 4}
}

// FleetError reports that a run did not leave every node ok.
type FleetError struct {
	what string
	code int
}

func (e *FleetError) Error() string { return e.what }

// ExitCode is 3, or 4 if the wheel fits no node.
func (e *FleetError) ExitCode() int { return e.code }
