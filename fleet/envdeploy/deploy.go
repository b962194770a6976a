package envdeploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// Options are the resolved settings of a run.
type Options struct {
	fleet.Options
	change.Rules

	Verify verify.Level
	Lock   *environment.Lock
	Files  *Files // of the lock; a rollback and a verification may do without
}

// Deployment is one deploy or rollback of an environment: Survey or SurveyRollback, then Apply,
// then Close.
type Deployment struct {
	*change.Run
	opt   Options
	nodes []*nodeRun

	goesBack   bool // it is a rollback
	onlyVerify bool // it changes no node
}

// New prepares a run; it contacts no node yet.
func New(opt Options) *Deployment {
	d := &Deployment{opt: opt}
	d.Run = change.NewRun(opt.Options, opt.Rules, "deploying the environment", func(n *change.NodeRun) change.Kind {
		u := &nodeRun{NodeRun: n, run: d, plan: &NodePlan{}}
		d.nodes = append(d.nodes, u)
		return u
	})
	return d
}

// Survey judges the wheels, then connects to every node, probes it and decides its action. It changes nothing.
// It judges only the wheels of DeepSpeed: no other wheel has files in its folder.
func (d *Deployment) Survey(ctx context.Context) (Plan, error) {
	files := d.opt.Files
	for _, sum := range slices.Sorted(maps.Keys(files.Wheels)) {
		if err := d.Accept(files.Paths[sum], sum); err != nil {
			return Plan{}, fmt.Errorf("%s: %w", path.Base(files.Paths[sum]), err)
		}
	}
	return d.survey(ctx, func(known []ProbeResult) (Plan, error) {
		return NewPlan(known, PlanOptions{Lock: d.opt.Lock, Wheels: files.Wheels, Unpacked: files.Unpacked, Force: d.opt.Force, InUse: d.opt.InUse})
	})
}

// SurveyRollback is Survey for a rollback to the environment before.
func (d *Deployment) SurveyRollback(ctx context.Context) (Plan, error) {
	d.goesBack = true
	return d.survey(ctx, func(known []ProbeResult) (Plan, error) { return NewRollbackPlan(known, d.opt.InUse), nil })
}

func (d *Deployment) survey(ctx context.Context, newPlan func([]ProbeResult) (Plan, error)) (Plan, error) {
	if err := d.ProbeNodes(ctx); err != nil {
		return Plan{}, err
	}
	known := make([]ProbeResult, len(d.nodes))
	for i, u := range d.nodes {
		known[i] = ProbeResult{Name: u.Host.Name, Facts: u.facts, Look: u.look, Processes: u.processes, Python: u.brought, Err: u.Err}
	}
	if !d.opt.DryRun {
		d.proveSharing(ctx, known)
	}
	plan, err := newPlan(known)
	if err != nil {
		return Plan{}, err
	}
	d.Adopt(plan.Decisions)
	for i, u := range d.nodes {
		u.plan = &plan.Nodes[i]
	}
	return plan, nil
}

// Apply carries out the plan of the survey. The report is complete even if ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *report.Report {
	d.Change(ctx)
	return d.Report()
}

// proveSharing corrects the Sites in known if a node reports processes, or if the nodes of a Site need different
// environments: only nodes that provably have the same folder hinder each other.
func (d *Deployment) proveSharing(ctx context.Context, known []ProbeResult) {
	doubtful, wanted := map[string]bool{}, map[string]string{}
	for i, n := range known {
		if n.site() == "" {
			continue
		}
		digest := d.nodes[i].wanted()
		if other, seen := wanted[n.site()]; len(n.Processes.InUse) > 0 || seen && other != digest {
			doubtful[n.site()] = true
		}
		wanted[n.site()] = digest
	}
	claims := make([]change.Claim, len(known))
	for i, n := range known {
		if doubtful[n.site()] {
			claims[i] = change.Claim{Node: d.nodes[i].Node, Folder: n.Look.Place, ID: n.site(), Writable: n.Look.Writable}
		}
	}
	change.ProveSharing(ctx, claims, d.Fleet.Forks())
	for i, n := range known {
		if n.site() != "" {
			n.Look.Site = claims[i].ID
		}
	}
}

// Report returns the report of the run so far. Nodes of one set are compared with each other, to
// the last file.
func (d *Deployment) Report() *report.Report {
	d.compare()
	r := report.Empty(d.opt.Command)
	var seen []report.ProbedNode
	for _, u := range d.nodes {
		r.Add(u.report(), u.wheel())
		if f := u.current(); f != nil {
			seen = append(seen, report.ProbedNode{Name: u.Host.Name, Facts: *f, Kind: u.environment()})
		}
	}
	r.Differences = report.Compare(seen, false)
	r.Complete()
	return r
}

// compare finds nodes whose files differ from those of most nodes with the same set. If there is no
// majority, all these nodes differ.
func (d *Deployment) compare() {
	counts := map[string]map[string]int{}
	for _, u := range d.nodes {
		if u.Status == report.OK && u.files != nil {
			key := u.environment()
			if counts[key] == nil {
				counts[key] = map[string]int{}
			}
			counts[key][u.files.Digest]++
		}
	}
	for _, u := range d.nodes {
		if u.Status != report.OK || u.files == nil {
			continue
		}
		mine, others := counts[u.environment()][u.files.Digest], 0
		for digest, n := range counts[u.environment()] {
			if digest != u.files.Digest {
				others = max(others, n)
			}
		}
		if mine <= others {
			from := "most nodes"
			if mine == others {
				from = "other nodes: no majority"
			}
			u.Status = report.Differs
			u.differs = append(u.differs, "its commands or data files differ from those of "+from)
			u.Err = fault.WithHint(errors.New(strings.Join(u.differs, "; ")), "make it anew: dsbuild env deploy with --force --limit %s", u.Host.Name)
		}
	}
}

// nodeRun is one node on its way to an environment.
type nodeRun struct {
	*change.NodeRun
	run *Deployment

	facts     *node.Facts // with the node's own Python
	brought   *nodePython // set if the lock brings a Python along
	inside    *node.Facts // with the Python of the environment, once it is verified
	look      *EnvironmentState
	processes node.Processes // of the current environment
	plan      *NodePlan
	files     *environmentFiles // the files of the environment, once they were compared
	now       *change.Environment
	differs   []string
}

// where names the environment for programs on the node.
func (d *Deployment) where() environmentRef {
	return environmentRef{d.opt.Lock.Folder, d.opt.Lock.Name, safeShell}
}

// lookRequest is the request of list_environments.py.
type lookRequest struct {
	environmentRef
	Digests []string          `json:"digests"`
	Files   []change.Expected `json:"files"`
}

// Probe gathers the node's facts and looks at its environments, in one command; a second one asks
// which processes use the current environment, if it may be changed.
func (u *nodeRun) Probe(ctx context.Context) error {
	req := lookRequest{environmentRef: u.run.where(), Digests: []string{}, Files: []change.Expected{}}
	for i := range u.run.opt.Lock.Sets {
		req.Digests = append(req.Digests, u.run.opt.Lock.Sets[i].Digest)
		req.Files = append(req.Files, refs(&u.run.opt.Lock.Sets[i])...)
	}
	var got *EnvironmentState
	program := u.run.opt.Lock.Program()
	if u.run.opt.Lock.Brings() {
		var err error
		if u.brought, err = u.findPython(ctx); err != nil {
			return err
		}
		program = cmp.Or(u.brought.use, "python3")
	}
	facts, undone, err := node.ProbeWithFollowUp(ctx, u.Runner, program, node.FollowUp{Program: lookProgram, Request: req, Each: func(m json.RawMessage) error {
		var said struct {
			Looked *EnvironmentState `json:"looked"`
			Unsafe string            `json:"unsafe"`
		}
		if err := node.Decode(m, &said); err != nil {
			return err
		}
		got = said.Looked
		return u.refuseUnsafe(said.Unsafe)
	}})
	switch {
	case err != nil:
		return err
	case undone != nil:
		return undone
	case facts.MissingPython() != "" && u.brought != nil:
		u.facts, u.look = facts, u.brought.looked(u.run.opt.Lock.Name)
		return nil
	case facts.MissingPython() != "":
		u.facts, u.look = facts, &EnvironmentState{}
		return nil
	case got == nil:
		return errors.New("the node did not say which environments it has")
	}
	u.facts, u.look, u.now = facts, got, got.Current
	if u.run.onlyVerify || got.Current == nil || got.Current.Digest == u.wanted() && !u.run.opt.Force && !u.run.goesBack {
		return nil
	}
	u.processes, err = node.FindProcesses(ctx, u.Runner, got.Current.Python)
	switch {
	case err != nil && u.run.opt.InUse.Ignore:
		u.Warn("dsbuild does not know whether its environment is in use, and changes it anyway: %v", err)
	case err != nil:
		return fault.WithHint(fmt.Errorf("dsbuild does not know whether its environment is in use: %w", err), "if its Python is gone, no new job can use it: --in-use ignore")
	}
	return nil
}

// refuseUnsafe is the error if another user could change the environments, in the node's words.
func (u *nodeRun) refuseUnsafe(why string) error {
	if why == "" {
		return nil
	}
	return node.WithAdvice(node.NewNodeError(why), "unsafe-place", u.Host.Python)
}

// wanted is the digest of the environment that the node should have; "" if there is none for it.
func (u *nodeRun) wanted() string {
	set, err := u.run.opt.Lock.For(*u.facts)
	if err != nil {
		return ""
	}
	return set.Digest
}

// environment is the digest of the environment that the node has now; "" for none.
func (u *nodeRun) environment() string {
	if u.now == nil {
		return ""
	}
	return u.now.Digest
}

// wheel is the wheel of DeepSpeed that the node should have; nil for none.
func (u *nodeRun) wheel() *report.Wheel {
	if u.plan.Set == nil {
		return nil
	}
	ds := u.plan.Set.File("deepspeed")
	if ds == nil {
		return nil
	}
	return &report.Wheel{Name: ds.File, SHA256: ds.SHA256, Version: ds.Version}
}

// current returns the facts of the environment if it was verified, else of the node's own Python.
func (u *nodeRun) current() *node.Facts {
	if u.inside == nil {
		return u.facts
	}
	f := *u.inside
	if f.DeepSpeed != nil && u.now != nil && u.now.DeepSpeed != nil {
		f.DeepSpeed = &node.Installed{Version: f.DeepSpeed.Version, SHA256: u.now.DeepSpeed.SHA256, Ops: append([]string{}, f.DeepSpeed.Ops...)}
	}
	return &f
}

// report is the node's part of the report.
func (u *nodeRun) report() report.Node {
	n := u.NodeRun.Report()
	n.Unseen, n.Facts = n.Unseen || u.facts == nil, u.current()
	n.Remarks, n.Differs = append(n.Remarks, u.plan.Remarks...), append(n.Differs, u.differs...)
	if u.look != nil {
		e := &report.Environment{Name: u.run.opt.Lock.Name}
		if u.look.Current != nil {
			e.Before, n.Before = node.PlainVersion(u.look.Current.Digest), u.look.Current.DeepSpeed.Plain()
		}
		if u.now != nil && !n.Unseen {
			e.Digest, e.Python, n.After = node.PlainVersion(u.now.Digest), path.Join(u.look.Place, "current/bin/python"), u.now.DeepSpeed.Plain()
		}
		n.Environment = e
	}
	return n
}
