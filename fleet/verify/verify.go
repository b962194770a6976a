// Package verify inspects the nodes of an inventory without changing them. It reports which nodes
// run the same software, and how the others differ.
//
// A node has two steps. The step probe gathers its facts, the digests of DeepSpeed's files and the
// digests in RECORD. The step verify imports DeepSpeed, loads every op and, if asked, compares what it computes with
// torch. Then this package compares
// the nodes with their wheels or, without wheels, with the majority.
//
// The node itself decides where the decision needs its Python or its other files: whether an import
// finds this DeepSpeed, which byte code does not match its module, whose code is in DeepSpeed's folder,
// which links to folders exist, whether a wheel that dsbuild installed with DeepSpeed was changed
// (inspect_files.py), which ops do not load (load_ops.py) and which compute something else (compute_ops.py). The
// control node decides the rest: which files differ from RECORD (files.go), from the wheel or from the other nodes
// (compare.go).
package verify

import (
	"context"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the resolved settings of a verification.
type Options struct {
	fleet.Options
	Wheels []wheel.Loaded // the wheels that the nodes should run; none: nodes should run the same as most others
	Level  Level
}

// The time limits of the steps.
const (
	verifyLimit = 15 * time.Minute
	// probeLimit is the limit until a node has sent its facts. The files may take longer.
	probeLimit = 2 * time.Minute
)

// run is one verification.
type run struct {
	opt    Options
	fleet  *fleet.Fleet
	tables *compat.Tables // to check that a wheel fits
	files  fileLists      // the files that nodes have of DeepSpeed
	nodes  []*nodeState
}

// Run inspects every node. The report is complete even if ctx ends early. The error means that a
// wheel could not be read.
func Run(ctx context.Context, opt Options) (*report.Report, error) {
	// The files of each wheel in DeepSpeed's folder, by the wheel's sha256.
	wanted := map[string]map[string]string{}
	for _, w := range opt.Wheels {
		files, err := filesOf(w.Path)
		if err != nil {
			return nil, err
		}
		wanted[w.Manifest.SHA256] = files
	}

	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	opt.Command = "verify"
	r := &run{opt: opt, fleet: fleet.New(opt.Options), tables: tables}
	defer r.fleet.Close()
	var tasks []fleet.Task
	limit := r.fleet.Limit(verifyLimit)
	for _, n := range r.fleet.Nodes {
		state := &nodeState{Node: n, run: r}
		r.nodes = append(r.nodes, state)
		// The steps of a node after the connection.
		tasks = append(tasks, fleet.Task{Node: n, Steps: []fleet.Step{
			{Name: "probe", Limit: limit, Do: state.inspectFiles, ReadOnly: true}, // facts, and the state of the files
			{Name: "verify", Limit: limit, Do: state.loadOps, ReadOnly: true},     // reports the findings, and loads ops
		}, End: state.end})
	}
	r.fleet.ConnectAndRun(ctx, "verifying", tasks, nil)
	answered := slices.DeleteFunc(slices.Clone(r.nodes), func(n *nodeState) bool { return n.Err != nil })
	compareNodes(tables, answered, wanted)
	for _, n := range answered {
		n.setStatus()
	}
	return r.report(), nil
}

// end is the end of a node's steps.
func (n *nodeState) end(_ context.Context, err error) {
	n.Disconnect()
	n.KeepLog = len(n.broken) > 0
	if err != nil {
		n.findings = findings{} // those before the failure are incomplete
	}
}

// report makes the report of all nodes.
func (r *run) report() *report.Report {
	rep := report.Empty(r.opt.Command)
	// Several wheels are intended: each node is compared with its own.
	rep.Mixed = len(r.opt.Wheels) > 1 || wheel.AnyStable(r.opt.Wheels)
	var seen []report.ProbedNode
	for _, n := range r.nodes {
		// The node's part of the report.
		part := n.Report()
		part.Proven = n.proven
		if v := n.version(); v != nil {
			part.Before, part.After = v.Plain(), v.Plain()
		}
		for _, d := range n.differs {
			part.Differs = append(part.Differs, d.what)
		}
		part.Notes, part.Compared = append(part.Notes, n.notes...), n.compared
		rep.Add(part, n.runs)
		if n.Facts != nil {
			// The facts that the report compares: of DeepSpeed only its version and wheel.
			f := *n.Facts
			if v := n.version(); v != nil {
				f.DeepSpeed = &node.Installed{Version: v.Version, SHA256: v.SHA256}
			}
			seen = append(seen, report.ProbedNode{Name: part.Name, Facts: f, Kind: n.kind()})
		}
	}
	rep.Differences = report.Compare(seen, rep.Mixed)
	rep.Complete()
	return rep
}
