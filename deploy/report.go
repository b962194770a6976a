package deploy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/node"
)

// Status is what became of a node.
type Status string

// The statuses of a report.
const (
	OK          Status = "ok"          // runs the wanted wheel, also when nothing was to do
	Failed      Status = "failed"      //
	Unreachable Status = "unreachable" // no connection, a wrong host key included
	Refused     Status = "refused"     // does not fit
	Differs     Status = "differs"     // verify alone: runs something else
	Skipped     Status = "skipped"     // not attempted
)

// Report is what became of a fleet: the JSON of --report and --json.
type Report struct {
	Command    string       `json:"command"` // deploy, rollback, ship or verify
	Wheels     []WheelRef   `json:"wheels"`
	Consistent bool         `json:"consistent"` // every node ok, and all run the same
	Summary    Summary      `json:"summary"`
	Causes     []Cause      `json:"causes"`           // why nodes are not ok, what most suffer from first
	Nodes      []NodeReport `json:"nodes"`            // in inventory order
	Groups     []Group      `json:"groups,omitempty"` // of ship alone

	// Differences are the properties in which the nodes that answered differ, the
	// weightiest first, also those that may differ.
	Differences []Difference `json:"differences"`

	verified bool // by Verify: nothing was to be done
	given    bool // each node has its wheel on purpose: torch and CUDA need agree for each wheel alone
}

// Difference is a property in which nodes differ.
type Difference struct {
	What   string            `json:"what"` // as node.Properties call it
	Must   bool              `json:"must"` // nodes that differ in it do not run the same thing
	Values []DifferenceValue `json:"values"`
}

// DifferenceValue is what some nodes have; the value of most comes first.
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

// NodeReport is what became of one node.
type NodeReport struct {
	Name    string             `json:"name"`
	Status  Status             `json:"status"`
	Step    string             `json:"step"` // the last one begun
	Error   string             `json:"error"`
	Hint    string             `json:"hint"`
	Differs []string           `json:"differs"` // verify: in what, each reason by itself
	Remarks []string           `json:"remarks"` // verify: worth knowing, no fault
	Changed bool               `json:"changed"`
	Wheel   string             `json:"wheel"` // the file name of the wheel chosen for it
	Along   []string           `json:"along"` // wheels of the wheelhouse planned with it: "numpy 2.3.2"
	Before  *Version           `json:"before"`
	After   *Version           `json:"after"`
	Unseen  bool               `json:"unseen"`           // what it has now is not known: after says nothing
	Facts   *node.Facts        `json:"facts"`            // as probed, without its distributions
	Seconds map[string]float64 `json:"seconds"`          // by step
	Sent    int64              `json:"sent_bytes"`       // the size of the files, or parts of them, that were sent to it
	Serial  int                `json:"serial,omitempty"` // the group of --serial in which it was changed, from 1
	Log     string             `json:"log,omitempty"`    // the file with all that it was asked and said

	unfit     bool     // refused because the wheel does not fit it
	proven    bool     // verify: has the wheel's files, wherever they came from
	aka       []string // what else it is called in messages
	aftermath string   // the end of Error that says what became of it after it had failed
}

// complete counts the nodes and compares them. Several wheels give several
// sha256, but one DeepSpeed version, torch and CUDA.
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
		var after Version // stays empty where a rollback went back to none
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

// properties are those that make a fleet consistent, or not. Where each node was
// given its wheel, whether torch and CUDA are those of the wheel has been
// verified, and the wheels differ on purpose.
func (r *Report) properties() []node.Property {
	decisive := []string{"deepspeed", "torch", "cuda"}
	if r.given {
		decisive = decisive[:1]
	}
	return slices.DeleteFunc(node.Properties(), func(p node.Property) bool { return !slices.Contains(decisive, p.Name) })
}

// compareNodes says in what the nodes that answered differ. Those without a
// usable Python would differ in everything that it knows. Where each was given
// its wheel, nodes of different wheels may differ in all but DeepSpeed.
func compareNodes(units []*unit, given bool) []Difference {
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

// within reports whether nodes of one wheel differ.
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

// now are the facts of a node as they are after what was done to it.
func (u *unit) now() node.Facts {
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

// companions are the versions of what came to some node with DeepSpeed. They may
// differ: a node is given only what it lacks.
func companions(facts []node.Facts) []node.Property {
	names := map[string]bool{}
	for _, f := range facts {
		for name := range f.Along {
			names[name] = true
		}
	}
	delete(names, "transformers") // is among the others
	var properties []node.Property
	for _, name := range slices.Sorted(maps.Keys(names)) {
		properties = append(properties, node.Property{Name: name, Of: func(f node.Facts) string { return f.Dists[name] }})
	}
	return properties
}

// Err is nil when every node is ok; else it carries the exit code: 4 when
// no node fits the wheel, 3 for any other mixture.
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

// Err is that of a report, as far as it can be told beforehand.
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

// FleetError is a deploy that did not bring every node where it should be.
type FleetError struct {
	what string
	code int
}

func (e *FleetError) Error() string { return e.what }

// ExitCode is 3, or 4 when the wheel fits no node.
func (e *FleetError) ExitCode() int { return e.code }
