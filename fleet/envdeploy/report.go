package envdeploy

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Report returns the report of the run so far. Nodes of one set are compared with each other, to
// the last file.
func (d *Deploy) Report() *report.Report {
	d.compare()
	return d.soFar()
}

// soFar is Report while the run continues: which files most nodes have is not decided yet.
func (d *Deploy) soFar() *report.Report {
	r := report.Empty(d.opt.Command)
	r.Undone = d.undone
	var seen []report.ProbedNode
	for _, n := range d.nodes {
		r.Add(n.report(), n.wheel())
		if f := n.current(); f != nil && (n.inside != nil || n.now == nil) { // else they are not of its environment
			seen = append(seen, report.ProbedNode{Name: n.Host.Name, Facts: *f, Kind: n.environment()})
		}
	}
	r.Differences = report.Compare(seen, false)
	d.AddOutcome(r)
	r.Complete()
	return r
}

// compare finds nodes whose files differ from the majority of the nodes with the same set. If there is no
// majority, all these nodes differ.
func (d *Deploy) compare() {
	counts := map[string]map[string]int{}
	for _, n := range d.nodes {
		if n.Status == report.OK && n.files != nil {
			key := n.environment()
			if counts[key] == nil {
				counts[key] = map[string]int{}
			}
			counts[key][n.files.Digest]++
		}
	}
	for _, n := range d.nodes {
		if n.Status != report.OK || n.files == nil {
			continue
		}
		mine, others := counts[n.environment()][n.files.Digest], 0
		for digest, count := range counts[n.environment()] {
			if digest != n.files.Digest {
				others = max(others, count)
			}
		}
		if mine <= others {
			from := "most nodes"
			if mine == others {
				from = "other nodes (no majority)"
			}
			n.Status = report.Differs
			n.differs = append(n.differs, "commands or data files differ from "+from)
			n.Err = fault.WithHint(errors.New(strings.Join(n.differs, "; ")), "%s", recreateHint())
		}
	}
}

// environment is the digest of the node's current environment, or "".
func (n *nodeState) environment() string {
	if n.now == nil {
		return ""
	}
	return n.now.Digest
}

// wheel is the wheel of DeepSpeed that the node should have, or nil.
func (n *nodeState) wheel() *report.Wheel {
	if n.plan.Set == nil {
		return nil
	}
	ds := n.plan.Set.File("deepspeed")
	if ds == nil {
		return nil
	}
	return &report.Wheel{Name: ds.File, SHA256: ds.SHA256, Version: ds.Version}
}

// current returns the facts of the environment if it was verified, else of the node's own Python.
func (n *nodeState) current() *node.Facts {
	if n.inside == nil {
		return n.Facts
	}
	f := *n.inside
	if f.DeepSpeed != nil && n.now != nil && n.now.DeepSpeed != nil {
		f.DeepSpeed = &node.Installed{
			Version: f.DeepSpeed.Version, SHA256: n.now.DeepSpeed.SHA256, Ops: append([]string{}, f.DeepSpeed.Ops...),
		}
	}
	return &f
}

// report is the node's part of the report.
func (n *nodeState) report() report.Node {
	part := n.run.NodeReport(n.Node, &n.plan.Decision)
	part.Facts = n.current()
	part.Notes, part.Differs = append(part.Notes, n.plan.Notes...), append(part.Differs, n.differs...)
	if n.state != nil {
		e := &report.Environment{Name: n.run.opt.Lock.Name}
		if was := n.state.Current; was != nil {
			e.Before, part.Before = node.PlainVersion(was.Digest), was.DeepSpeed.Plain()
		}
		if n.now != nil && !part.StateUnknown {
			e.Digest, e.Python = node.PlainVersion(n.now.Digest), path.Join(n.state.Place, "current/bin/python")
			part.After = n.now.DeepSpeed.Plain()
		}
		part.Environment = e
	}
	return part
}

// Print writes the plan, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	err := p.Decisions.Print(w, []string{"ENVIRONMENT", "SENDS"}, func(i int) (cells, why []string) {
		n, digest, send := p.Nodes[i], "-", "-"
		if n.Set != nil {
			digest = report.ShortSum(n.Set.Digest)
		}
		switch {
		case n.Action == change.Rollback:
			why = []string{"to environment " + report.ShortSum(node.PlainVersion(n.Back))}
		case n.Action == change.UpToDate:
			why = []string{"already has this environment"}
		case n.Ready:
			why = []string{"environment exists: only the link changes"}
		case n.Action == change.Install:
			send = fmt.Sprintf("%s in %s", ui.Size(n.Size()), ui.Count(len(n.Files()), "file"))
		}
		return []string{digest, send}, why
	})
	if err != nil {
		return err
	}
	return change.PrintUndone(w, p.Undone)
}
