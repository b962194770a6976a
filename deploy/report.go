package deploy

import (
	"fmt"
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
	Wheels     []WheelRef   `json:"wheels"`
	Consistent bool         `json:"consistent"` // every node ok, and all run the same
	Summary    Summary      `json:"summary"`
	Nodes      []NodeReport `json:"nodes"`            // in inventory order
	Groups     []Group      `json:"groups,omitempty"` // of ship alone

	given bool // each node was given its wheel: torch and CUDA need agree for each wheel alone
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
	Changed bool               `json:"changed"`
	Wheel   string             `json:"wheel"` // the file name of the wheel chosen for it
	Along   []string           `json:"along"` // wheels of the wheelhouse planned with it: "numpy 2.3.2"
	Before  *Version           `json:"before"`
	After   *Version           `json:"after"`
	Facts   *node.Facts        `json:"facts"`   // as probed, without its distributions
	Seconds map[string]float64 `json:"seconds"` // by step

	unfit bool // refused because the wheel does not fit it
}

// complete counts the nodes and compares them. Several wheels give several
// sha256, but one DeepSpeed version, torch and CUDA.
func (r *Report) complete() {
	r.Summary = Summary{}
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
		if seen, ok := shas[n.Wheel]; ok && seen != after.SHA256 {
			r.Consistent = false
		}
		shas[n.Wheel] = after.SHA256
	}
	if len(node.Compare(facts, r.properties())) > 0 {
		r.Consistent = false
	}
}

// properties are those that all nodes must agree in. Where each was given its
// wheel, whether torch and CUDA are those of the wheel has been verified, and
// the wheels differ on purpose.
func (r *Report) properties() []node.Property {
	all := node.Properties()
	if r.given {
		all = slices.DeleteFunc(all, func(p node.Property) bool { return p.Name != "deepspeed" })
	}
	return all
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
