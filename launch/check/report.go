package check

import (
	"fmt"
	"slices"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Report holds the results: the JSON of --report and --json.
type Report struct {
	Command     string       `json:"command"` // check
	Ready       bool         `json:"ready"`   // every node is ok
	Master      Master       `json:"master"`
	Summary     Summary      `json:"summary"`
	Causes      []Cause      `json:"causes"` // the findings, merged over nodes
	Pairs       Pairs        `json:"pairs"`
	Collectives []Sum        `json:"collectives"`
	NotChecked  []NotChecked `json:"not_checked"`
	Nodes       []NodeReport `json:"nodes"` // in inventory order
}

// Master is the rendezvous of the nodes.
type Master struct {
	Node    string `json:"node"`
	Address string `json:"address"`
	Port    int    `json:"port"`
}

// Summary counts nodes by status.
type Summary struct {
	OK          int `json:"ok"`
	Failed      int `json:"failed"`
	Unreachable int `json:"unreachable"`
	Skipped     int `json:"skipped"`
}

// Pairs counts the calls from node to node.
type Pairs struct {
	Tried  int `json:"tried"`
	Failed int `json:"failed"`
}

// NotChecked is a check that was not made, with the reason.
type NotChecked struct {
	Check Check  `json:"check"`
	Why   string `json:"why"`
}

// NodeReport holds the results of one node.
type NodeReport struct {
	Name      string        `json:"name"`
	Status    report.Status `json:"status"`
	Findings  []Finding     `json:"findings"`
	Address   string        `json:"address"`   // for the other nodes, or "" if unknown
	Interface string        `json:"interface"` // of that address
	Facts     *node.Facts   `json:"facts"`     // without its distributions
	Seconds   float64       `json:"seconds"`   // until its survey arrived
}

// EditHints rewrites every hint. nodes are the hint's nodes, as a value of --limit.
func (r *Report) EditHints(edit func(hint, nodes string) string) {
	for i := range r.Causes {
		r.Causes[i].Hint = ui.Clean(edit(r.Causes[i].Hint, ui.FoldNames(r.Causes[i].Nodes)))
	}
	for _, n := range r.Nodes {
		for i := range n.Findings {
			n.Findings[i].Hint = ui.Clean(edit(n.Findings[i].Hint, n.Name))
		}
	}
}

func (r *run) buildReport() *Report {
	rep := &Report{
		Command: "check", Master: Master{r.firstMember().Host.Name, r.masterAddress(), r.opt.Port}, Pairs: r.pairs,
		Collectives: append([]Sum{}, r.sums...), NotChecked: append([]NotChecked{}, r.notChecked...),
	}
	for _, m := range r.members {
		// The time until the survey arrived.
		seconds := 0.0
		for _, s := range m.Seconds {
			seconds += s
		}
		n := NodeReport{Name: m.Host.Name, Status: m.Status, Findings: append([]Finding{}, m.findings...), Seconds: seconds}
		if m.Status == report.OK && slices.ContainsFunc(m.findings, func(f Finding) bool { return f.Level == Error }) {
			n.Status = report.Failed
		}
		if m.route != nil {
			n.Address, n.Interface = m.route.Address, m.route.Interface
		}
		if m.facts != nil {
			f := *m.facts
			f.Dists, f.ExtraWheels = nil, nil
			n.Facts = &f
		}
		switch n.Status {
		case report.OK:
			rep.Summary.OK++
		case report.Failed:
			rep.Summary.Failed++
		case report.Unreachable:
			rep.Summary.Unreachable++
		case report.Skipped:
			rep.Summary.Skipped++
		}
		rep.Nodes = append(rep.Nodes, n)
	}
	rep.Ready = rep.Summary.OK == len(rep.Nodes)
	rep.Causes = groupCauses(rep.Nodes)
	return rep
}

// Err returns nil if every node is ok, or an error with exit code 3.
func (r *Report) Err() error {
	if r.Ready {
		return nil
	}
	return fault.WithCode(fmt.Errorf("%d of %d nodes not ready", len(r.Nodes)-r.Summary.OK, len(r.Nodes)), 3)
}
