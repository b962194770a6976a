// Package verify inspects the nodes of an inventory without changing them. It reports which nodes
// run the same software, and how the others differ.
//
// A node has two steps. The step probe gathers its facts, the digests of DeepSpeed's files and the
// digests in RECORD. The step verify imports DeepSpeed and loads every op. Then this package compares
// the nodes with their wheels or, without wheels, with the majority.
//
// The node itself decides where the decision needs its Python or its other files: whether an import
// finds this DeepSpeed, which byte code is not that of its module, whose code is in DeepSpeed's folder,
// which links to folders are there, whether a wheel that dsbuild installed with DeepSpeed was changed
// (inspect_files.py), and which ops do not load (load_ops.py). The machine that runs dsbuild decides the
// rest: which files differ from RECORD (files.go), from the wheel or from the other nodes (compare.go).
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
	for _, n := range r.fleet.Nodes {
		s := &nodeState{Node: n, run: r}
		r.nodes = append(r.nodes, s)
		// The steps of a node after the connection.
		limit := s.run.fleet.Limit(verifyLimit)
		tasks = append(tasks, fleet.Task{Node: n, Steps: []fleet.Step{
			{Name: "probe", Limit: limit, Do: s.inspectFiles, ReadOnly: true}, // gathers the facts and the state of the files
			{Name: "verify", Limit: limit, Do: s.loadOps, ReadOnly: true},     // reports the findings, and loads ops
		}, End: s.end})
	}
	r.fleet.ConnectAndRun(ctx, "verifying", tasks, nil)
	answered := slices.DeleteFunc(slices.Clone(r.nodes), func(s *nodeState) bool { return s.Err != nil })
	compareNodes(tables, answered, wanted)
	for _, s := range answered {
		s.setStatus()
	}
	return r.report(), nil
}

// end is the end of a node's steps.
func (s *nodeState) end(_ context.Context, err error) {
	s.HangUp()
	s.KeepLog = len(s.broken) > 0
	if err != nil {
		s.findings = findings{} // those before the failure are incomplete
	}
}

// report makes the report of all nodes.
func (r *run) report() *report.Report {
	rep := report.Empty(r.opt.Command)
	rep.Mixed = len(r.opt.Wheels) > 1 || wheel.AnyStable(r.opt.Wheels) // intended: each node is compared with its own wheel
	var seen []report.ProbedNode
	for _, s := range r.nodes {
		// The node's part of the report.
		n := s.Node.Report()
		n.Facts, n.Unseen, n.Proven = s.facts, s.facts == nil, s.proven
		if v := s.version(); v != nil {
			n.Before, n.After = v.Plain(), v.Plain()
		}
		for _, f := range s.differs {
			n.Differs = append(n.Differs, f.what)
		}
		n.Remarks = append(n.Remarks, s.remarks...)
		rep.Add(n, s.runs)
		if s.facts != nil {
			// The facts that the report compares: of DeepSpeed only its version and wheel.
			f := *s.facts
			if v := s.version(); v != nil {
				f.DeepSpeed = &node.Installed{Version: v.Version, SHA256: v.SHA256}
			}
			seen = append(seen, report.ProbedNode{Name: n.Name, Facts: f, Kind: s.kind()})
		}
	}
	rep.Differences = report.Compare(seen, rep.Mixed)
	rep.Complete()
	return rep
}
