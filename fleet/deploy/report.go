package deploy

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Print writes the plan of a deploy, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	err := p.Decisions.Print(w, []string{"WHEEL"}, func(i int) (cells, why []string) {
		n, wheel := p.Nodes[i], "-"
		if n.Action != change.Refuse {
			wheel = cmp.Or(n.WheelName, "-")
		}
		switch n.Action {
		case change.Install:
			if len(n.ExtraWheels) > 0 {
				why = []string{"with " + strings.Join(extraWheelNames(n.ExtraWheels), ", ")}
			}
		case change.Shared:
			why = []string{"shares an environment with " + p.Nodes[n.Leader].Name}
		case change.Rollback:
			why = []string{"to " + n.Back}
		case change.UpToDate:
			why = []string{"already runs this wheel"}
		}
		return []string{wheel}, why
	})
	var bytes int64
	var fullest NodePlan // of the nodes that get files
	nodes := 0
	for _, n := range p.Nodes {
		if n.Action != change.Install || n.need == 0 {
			continue
		}
		bytes, nodes = bytes+n.Wheel.Manifest.Size+extraSize(n.ExtraWheels), nodes+1
		if nodes == 1 || n.free-n.need < fullest.free-fullest.need {
			fullest = n
		}
	}
	if err == nil {
		err = change.PrintUndone(w, p.Undone)
	}
	if err == nil && nodes > 0 {
		_, err = fmt.Fprintf(w, "sends %s to %s; least free space on %s: %s free, %s needed\n",
			ui.Size(bytes), ui.Count(nodes, "node"), fullest.Name, ui.Size(fullest.free), ui.Size(fullest.need))
	}
	return err
}

// Report returns the report of the run so far.
func (d *Deploy) Report() *report.Report {
	r := report.Empty(d.opt.Command)
	r.Mixed = d.plan.Assigned || wheel.AnyStable(d.plan.Wheels)
	r.Undone = d.plan.Undone
	var seen []report.ProbedNode
	for _, n := range d.nodes {
		var w *report.Wheel
		kind := ""
		if n.plan.Wheel != nil {
			m := n.plan.Wheel.Manifest
			w = &report.Wheel{Name: m.Name, SHA256: m.SHA256, Version: n.plan.Wheel.Version}
			if n.Facts != nil {
				kind = compat.AlikeKey(m, *n.Facts)
			}
		}
		r.Add(n.report(), w)
		if n.Facts != nil {
			seen = append(seen, report.ProbedNode{Name: n.Host.Name, Facts: n.currentFacts(), Kind: kind})
		}
	}
	r.Differences = report.Compare(seen, r.Mixed)
	d.AddOutcome(r)
	r.Complete()
	return r
}

// report is the node's part of the report.
func (n *nodeState) report() report.Node {
	part := n.run.NodeReport(n.Node, &n.plan.Decision)
	part.Before, part.After = n.before.Plain(), n.after.Plain()
	if part.StateUnknown {
		part.After = nil
	}
	part.ExtraWheels, part.Notes = extraWheelNames(n.plan.ExtraWheels), append(part.Notes, n.plan.Chosen...)
	if n.plan.Action == change.Leave || n.plan.Action == change.Rollback {
		part.Notes = append(part.Notes, n.plan.Notes...)
	}
	if n.kept != "" {
		part.Notes = append(part.Notes, n.kept)
	}
	return part
}

// currentFacts returns the node's facts, updated with the changes that dsbuild made.
func (n *nodeState) currentFacts() node.Facts {
	f := *n.Facts
	f.DeepSpeed = nil
	if n.after != nil {
		f.DeepSpeed = &node.Installed{Version: n.after.Version, SHA256: n.after.SHA256}
	}
	if n.Changed && f.Dists != nil {
		f.Dists = maps.Clone(f.Dists)
		for _, a := range n.plan.ExtraWheels {
			f.Dists[a.Name] = a.Version
			if a.Name == "transformers" {
				f.Transformers = a.Version
			}
		}
	}
	return f
}
