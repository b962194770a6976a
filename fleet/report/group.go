package report

import (
	"fmt"
	"slices"
)

// Group is one wheel in the report of ship, with the nodes that it is for. ship asks each node of
// the fleet for its needs and groups the nodes by wheel.
type Group struct {
	Name       string   `json:"name"`
	State      string   `json:"state"` // build, store, placed, running, built or failed
	Nodes      []string `json:"nodes"`
	Running    []string `json:"running"` // the nodes that ran it before
	Why        []string `json:"why"`
	Python     string   `json:"python"`
	Torch      string   `json:"torch"`
	CUDA       string   `json:"cuda"`
	Archs      []string `json:"archs"`
	CPU        string   `json:"cpu"`
	Ops        []string `json:"ops"`
	Wheel      string   `json:"wheel"` // file name; "" until the wheel exists
	SHA256     string   `json:"sha256"`
	Seconds    float64  `json:"seconds"` // duration of its build
	PlanDigest string   `json:"plan_digest"`
	Error      string   `json:"error"`
	Hint       string   `json:"hint"`
}

// GroupRunning is the state of a group whose nodes all ran its wheel before.
const GroupRunning = "running"

// idleVerdict is the last line of a report of ship that had nothing to do, because every node already ran its
// wheel. It is "" in other reports.
func (r *Report) idleVerdict() string {
	busy := slices.ContainsFunc(r.Groups, func(g Group) bool { return g.State != GroupRunning }) ||
		slices.ContainsFunc(r.Nodes, func(n Node) bool { return n.Status != OK || n.Changed })
	switch {
	case busy || len(r.Groups) == 0:
		return ""
	case len(r.Nodes) == 1:
		return "nothing to do: 1 node already runs its wheel"
	}
	return fmt.Sprintf("nothing to do: %d nodes already run their wheels", len(r.Nodes))
}
