package deploy

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

// nodeState is one node on its way through a deploy or a rollback.
type nodeState struct {
	*fleet.Node
	run *Deploy

	plan     *NodePlan // without an action until the survey has ended
	byteCode bool      // the byte code has arrived

	before, after *report.Version // the DeepSpeed before and after the change
	recordSHA256  string          // of the RECORD that verify expects
	altered       []string        // rollback: files of the previous version that differ from its RECORD
	kept          string          // a sentence that names the directory of kept files that dsbuild did not install
	note          map[string]any  // rollback: dsbuild's record of the previous version, if dsbuild installed it
}

// Probe connects to every node and gathers its facts. It may be called more than once.
func (d *Deploy) Probe(ctx context.Context) ([]ProbeResult, error) {
	err := d.Fleet.Probe(ctx, change.ProbeLimit, func(ctx context.Context, i int) error { return d.nodes[i].probe(ctx) })
	if err != nil {
		return nil, err
	}
	return d.probeResults(), nil
}

// probeResults returns the results of the probe.
func (d *Deploy) probeResults() []ProbeResult {
	nodes := make([]ProbeResult, len(d.nodes))
	for i, n := range d.nodes {
		nodes[i] = ProbeResult{Name: n.Host.Name, Err: n.Err}
		if n.Facts != nil {
			nodes[i].Facts = *n.Facts
		}
	}
	return nodes
}

// probe gathers the node's facts.
func (n *nodeState) probe(ctx context.Context) error {
	facts, err := n.askFacts(ctx)
	if errors.Is(err, remote.ErrLost) && n.Facts != nil {
		// The connection was idle for a long time, and has ended since the last command.
		if err = n.Reconnect(ctx); err == nil {
			facts, err = n.askFacts(ctx)
		}
	}
	if err != nil {
		return err
	}
	n.Facts, n.JobsOf, n.StateUnknown = &facts, n.Host.Python, facts.Silent()
	n.setInstalled(facts.DeepSpeed)
	return nil
}

// askFacts asks the node for its facts.
func (n *nodeState) askFacts(ctx context.Context) (node.Facts, error) {
	opt := node.ProbeOptions{Python: n.Host.Python, Files: true, Undo: n.run.undo}
	for _, w := range n.run.opt.Wheels {
		opt.Of = append(opt.Of, w.Manifest.SHA256)
		opt.Commands = append(opt.Commands, w.Commands...)
	}
	if n.run.opt.Bundle != nil {
		for _, w := range n.run.opt.Bundle.Wheels {
			opt.Commands = append(opt.Commands, w.Commands...)
		}
	}
	return node.Probe(ctx, n.Runner, opt)
}

// setInstalled stores the DeepSpeed installed before the change. ds may be nil.
func (n *nodeState) setInstalled(ds *node.Installed) {
	n.before, n.recordSHA256 = nil, ""
	if ds != nil {
		n.before, n.recordSHA256 = &report.Version{Version: ds.Version, SHA256: ds.SHA256}, ds.Record
	}
	n.after = n.before
}

// findSharing finds out which nodes share the site-packages that the plan changes.
func (d *Deploy) findSharing(ctx context.Context, plan change.Decisions, known []ProbeResult) *change.Sharing {
	folders := make([]change.Folder, len(known))
	for i, n := range known {
		folders[i] = change.Folder{
			Node: d.nodes[i].Node, Path: n.Facts.SitePackages, Type: n.Facts.FileSystem, Sees: n.Facts.DeepSpeed.ID(),
		}
		if n.Facts.Elsewhere { // the node itself does not see it
			folders[i].Path = ""
		}
	}
	return d.FindSharing(ctx, plan, folders, node.Script{Program: usersProgram})
}

// usersProgram finds the processes that use the environment of a node outside the run.
var usersProgram = node.NewProgram("find_users")

// planOptions returns the settings of the plan. It gets the pip wheels for nodes without any pip, one for each Python.
func (d *Deploy) planOptions(ctx context.Context) PlanOptions {
	opt := PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle, NoPip: map[string]error{}}
	for _, n := range d.nodes {
		if n.Facts == nil || n.Facts.Pip != "" || n.Facts.PipWheel != "" || n.Facts.Dists == nil || d.opt.PipWheel == nil {
			continue
		}
		python := wheel.Minor(n.Facts.Python)
		if _, done := d.pips[python]; done || opt.NoPip[python] != nil {
			continue
		}
		file, err := d.opt.PipWheel(ctx, python)
		if err != nil {
			opt.NoPip[python] = err
			continue
		}
		sum, size, err := wheel.HashFile(file)
		if err != nil {
			opt.NoPip[python] = err
			continue
		}
		d.pips[python] = fleet.LocalFile{Path: file, SHA256: sum, Size: size}
	}
	return opt
}
