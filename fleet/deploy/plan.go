package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// ProbeResult is the result of the probe for one node.
type ProbeResult struct {
	Name   string
	Facts  node.Facts
	Shares string // equal on nodes that share site-packages; empty if not known
	Err    error  // why there are no facts
}

// NodePlan is the action on one node, with the reasons for it.
type NodePlan struct {
	change.Decision
	WheelName   string              // empty if none was chosen
	Wheel       *wheel.Loaded       // nil if none was chosen, or it is not built yet
	ExtraWheels []wheel.BundleWheel // wheels of the wheelhouse to install with it
	Chosen      []string            // the notes that explain the choice between several compatible wheels
	Back        string              // the version that a rollback restores

	need, free int64  // bytes for the wheels, on the fuller of its disks
	onlyReads  bool   // it only lacks the permission to write: it can follow a node that shares its environment
	replaces   string // the note on the version that the wheel takes the place of
}

// Plan lists the actions of a deploy, in inventory order.
type Plan struct {
	change.Decisions
	Nodes  []NodePlan     // Decisions points to their Decision fields
	Wheels []wheel.Loaded // the wheels in use; a single wheel is listed even if no node uses it
	// Assigned is set if each node was assigned its wheel, so that different wheels are intended.
	Assigned bool
	Undone   *node.Run // the run that a rollback undoes, if any
}

// PlanOptions are the settings of a plan.
type PlanOptions struct {
	// Force installs even if the node already runs the wheel.
	Force bool
	// NoPip maps a Python X.Y to the reason why there is no pip wheel for it.
	NoPip map[string]error
	// Bundle is the wheelhouse for requirements. Without it, nodes that lack one are refused.
	Bundle *wheel.Bundle
}

// NewPlan decides the action on each node. It is pure. If the choice of a wheel is ambiguous, the exit
// code of the error is fault.Usage.
func NewPlan(nodes []ProbeResult, offered []wheel.Loaded, opt PlanOptions) (Plan, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	var open []ui.Named
	plan := newPlan(nodes, func(i int, n *NodePlan) {
		if err := n.choose(tables, nodes[i].Facts, offered, opt); err != nil {
			open = append(open, ui.Named{Name: n.Name, Text: err.Error()})
		}
	})
	if len(open) > 0 {
		const most = 10
		var lines []string
		more := len(open)
		for _, f := range ui.Fold(open) {
			if len(lines) == most {
				lines = append(lines, fmt.Sprintf("… and %s more", ui.Count(more, "node")))
				break
			}
			lines, more = append(lines, f.String()), more-f.Count
		}
		return Plan{}, fault.New(fault.Usage, "select one wheel with --wheel, or fewer nodes with --limit",
			"cannot choose a wheel for each node:\n  %s", strings.Join(lines, "\n  "))
	}
	for i := range offered {
		used := func(n NodePlan) bool { return n.Wheel == &offered[i] }
		if len(offered) == 1 || slices.ContainsFunc(plan.Nodes, used) {
			plan.Wheels = append(plan.Wheels, offered[i])
		}
	}
	return plan, nil
}

// Usable returns the plan before wheels are chosen: nodes on which no wheel can be installed are refused, the others
// install. It is pure.
func Usable(nodes []ProbeResult, opt PlanOptions) Plan {
	return newPlan(nodes, func(i int, n *NodePlan) {
		n.Action = change.Install
		if reasons, hint := missingTorchOrPip(nodes[i].Facts, opt); len(reasons) > 0 {
			n.SetRefused(hint, reasons...)
		}
	})
}

// Assignment is the wheel assigned to a node by the caller, or the reason why the node gets none.
type Assignment struct {
	Name    string        // of the wheel, even if not built yet; equal on nodes that share an environment
	Wheel   *wheel.Loaded // nil if not built yet, for the reason in Pending
	Pending string
	Refusal *Refusal      // why no wheel is compatible with this node
	Bundle  *wheel.Bundle // wheelhouse for the requirements of this wheel
	Err     error         // why its wheel is missing; the node is left unchanged
}

// Refusal lists the reasons why no wheel is compatible with a node.
type Refusal struct {
	Reasons []string
	Hint    string
}

// NewAssignedPlan decides the action on each node with the wheel assigned to it. It is pure.
func NewAssignedPlan(nodes []ProbeResult, assignments []Assignment, opt PlanOptions) (Plan, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if nodes[i].Err == nil {
			nodes[i].Err = assignments[i].Err
		}
	}
	plan := newPlan(nodes, func(i int, n *NodePlan) { n.assign(tables, nodes[i].Facts, assignments[i], opt) })
	plan.Assigned = true
	for _, a := range assignments {
		listed := func(w wheel.Loaded) bool { return w.Manifest.SHA256 == a.Wheel.Manifest.SHA256 }
		if a.Wheel != nil && !slices.ContainsFunc(plan.Wheels, listed) {
			plan.Wheels = append(plan.Wheels, *a.Wheel)
		}
	}
	return plan, nil
}

// Assign ends the survey that Probe began, with a wheel assigned to each node. It changes no environment and sends no
// wheel.
func (d *Deploy) Assign(ctx context.Context, assignments []Assignment) (Plan, error) {
	assignments = slices.Clone(assignments)
	for i, n := range d.nodes {
		a := &assignments[i]
		if a.Wheel == nil && a.Refusal == nil && a.Err == nil {
			a.Err = errors.New("no wheel for this node")
		}
		if a.Err != nil && n.Err == nil {
			n.Err, n.Step = a.Err, "build"
		}
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) {
		return NewAssignedPlan(known, assignments, d.planOptions(ctx))
	})
}

// Preview returns the plan that Assign would make, even if some wheels are pending. It downloads nothing and does not
// adopt the plan.
func (d *Deploy) Preview(assignments []Assignment) (Plan, error) {
	known := d.probeResults()
	plan, err := NewAssignedPlan(known, assignments, PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle})
	if err != nil {
		return plan, err
	}
	plan.applyPolicy(d.opt.Policy)
	plan.ApplyInUse(known, d.opt.InUse)
	plan.AssignGroups(d.opt.Serial)
	return plan, nil
}

// newPlan returns a plan in which a node is absent if it was not probed, or refused if its environment cannot be
// changed at all; decide decides the others.
func newPlan(nodes []ProbeResult, decide func(i int, n *NodePlan)) Plan {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	for i, probed := range nodes {
		n := &plan.Nodes[i]
		n.Name, n.Leader = probed.Name, i
		plan.Decisions = append(plan.Decisions, &n.Decision)
		if probed.Err != nil {
			n.SetAbsent(probed.Err)
		} else if reasons, hint := probed.Facts.Unchangeable(); len(reasons) > 0 {
			n.SetRefused(hint, reasons...)
		} else {
			decide(i, n)
			if reason, hint := probed.Facts.NoPermission(); reason.Text != "" {
				n.onlyReads, n.Unfit = n.Action != change.Refuse, false
				n.SetRefused(hint, reason)
			}
		}
	}
	plan.group(nodes)
	return plan
}

// group applies that some nodes share site-packages: the first of them installs and the others follow, if none has a
// reason against it.
func (p *Plan) group(nodes []ProbeResult) {
	groups := map[string][]int{}
	for i, n := range nodes {
		if p.Nodes[i].Action != change.Absent && n.Shares != "" {
			groups[n.Shares] = append(groups[n.Shares], i)
		}
	}
	for _, members := range groups {
		if len(members) > 1 {
			resolveGroup(p.Nodes, members)
			p.notePrefixes(nodes, members)
		}
	}
}

// notePrefixes adds a note for nodes that have the shared packages in another environment than the first: the commands
// of a wheel start the Python of the node that installs it.
func (p *Plan) notePrefixes(nodes []ProbeResult, members []int) {
	first := nodes[members[0]]
	for _, i := range members[1:] {
		if prefix := nodes[i].Facts.Prefix; prefix != first.Facts.Prefix {
			p.Nodes[i].Notes = append(p.Nodes[i].Notes, fmt.Sprintf(
				"shares site-packages with %s, where the environment is %s, not %s: commands start only one of them",
				first.Name, node.QuotePath(first.Facts.Prefix), node.QuotePath(prefix)))
		}
	}
}

// choose decides the action on a node with the wheel that fits it best.
func (n *NodePlan) choose(tables *compat.Tables, f node.Facts, offered []wheel.Loaded, opt PlanOptions) error {
	if reasons, hint := missingTorchOrPip(f, opt); len(reasons) > 0 {
		n.SetRefused(hint, reasons...)
		return nil
	}
	choice, err := compat.Choose(tables, offered, f)
	if err != nil {
		return err
	}
	if choice.Wheel == nil {
		n.Unfit = true
		n.refuse(buildHint(offered), choice.Verdict.Reasons...)
		return nil
	}
	n.WheelName = choice.Wheel.Manifest.Name
	n.decide(tables, choice.Wheel, choice.Verdict, f, opt)
	n.Chosen, n.Notes = choice.Why, slices.Concat(n.Notes, choice.Why)
	return nil
}

// assign decides the action on a node with the wheel assigned to it.
func (n *NodePlan) assign(tables *compat.Tables, f node.Facts, a Assignment, opt PlanOptions) {
	reasons, hint := missingTorchOrPip(f, opt)
	switch {
	case len(reasons) > 0:
		n.SetRefused(hint, reasons...)
	case a.Refusal != nil:
		n.Unfit = true
		n.refuse(a.Refusal.Hint, a.Refusal.Reasons...)
	case a.Wheel == nil:
		n.Action, n.WheelName, n.Notes = change.Install, a.Name, []string{a.Pending}
	default:
		n.WheelName = a.Name
		opt.Bundle = cmp.Or(a.Bundle, opt.Bundle)
		n.decide(tables, a.Wheel, tables.Fit(a.Wheel.Manifest, f), f, opt)
		if n.Unfit { // the wheel was chosen for this node, so the node has changed since
			n.Hint = "rerun the command: the node has changed since the probe"
		}
	}
}

// decide decides the action on a node with its chosen wheel.
func (n *NodePlan) decide(tables *compat.Tables, w *wheel.Loaded, verdict compat.Verdict, f node.Facts, opt PlanOptions) {
	n.Wheel, n.Notes = w, verdict.Notes
	if len(verdict.Reasons) > 0 {
		n.Unfit = true
		n.refuse(verdict.Hint(), verdict.Reasons...)
		return
	}
	extra, lacks, err := chooseExtraWheels(tables, *w, f, opt.Bundle, opt.Force)
	d := f.DeepSpeed
	// A node that runs the wheel still installs if it lacks requirements that dsbuild can add.
	whole := opt.Bundle == nil || err == nil && len(extra)+len(lacks) == 0
	if d != nil && d.Intact && d.SHA256 == w.Manifest.SHA256 && !f.Unfinished && !opt.Force && whole {
		n.Action = change.UpToDate
		return
	}
	n.Action, n.ExtraWheels = change.Install, extra
	if n.replaces = replaced(d, w); n.replaces != "" {
		n.Notes = append(slices.Clone(n.Notes), n.replaces)
	}
	if f.CondaRecord != "" {
		n.Notes = append(n.Notes, f.CondaNote())
	}
	if f.Previous != nil && f.Previous.Foreign != "" {
		n.Notes = append(n.Notes, "keeps files that dsbuild did not install in "+
			node.QuotePath(path.Join(f.Home(), path.Base(f.Previous.Foreign))))
	}
	n.need, n.free = node.NeededRoom(w.Manifest.Size+extraSize(extra)), min(f.FreeBytes, f.FreeTmpBytes)
	if obstacles, hint := installObstacles(*w, f, extra, lacks, err, opt); len(obstacles) > 0 {
		n.SetRefused(hint, obstacles...)
	}
}

// replaced returns the note on the DeepSpeed that w replaces. It returns "" if there is none, or it came from w.
func replaced(d *node.Installed, w *wheel.Loaded) string {
	switch {
	case d == nil || d.SHA256 == w.Manifest.SHA256:
		return ""
	case d.Version == w.Version && d.SHA256 == "":
		return "replaces DeepSpeed " + d.Version + ", which another tool installed"
	case d.Version == w.Version:
		return fmt.Sprintf("replaces another wheel of DeepSpeed %s (sha256 %.12s)", d.Version, node.PlainVersion(d.SHA256))
	}
	return "replaces DeepSpeed " + d.Version
}

// buildHint is the hint for a node that none of the offered wheels fits: how to build one of the same DeepSpeed.
func buildHint(offered []wheel.Loaded) string {
	release := ""
	for _, w := range offered {
		of := w.Manifest.Release()
		if of == "" || release != "" && release != of {
			return "build a wheel for this node with dsbuild ship, from the DeepSpeed that it should run (--deepspeed)"
		}
		release = of
	}
	return "build a wheel for this node: " + fault.Command{Do: "ship", Flags: []string{"--deepspeed", release}}.String()
}

func (n *NodePlan) refuse(hint string, reasons ...string) {
	n.SetRefused(hint)
	n.Reasons = reasons
}

func resolveGroup(plans []NodePlan, members []int) {
	leader := -1
	for _, i := range members {
		if plans[i].Action == change.Refuse && !plans[i].onlyReads {
			why := nodeerr.Message{Text: strings.Join(plans[i].Reasons, "; "), Common: plans[i].Common()}
			refuseOthers(plans, members, i, why)
			return
		}
		if leader < 0 && (plans[i].Action == change.Install || plans[i].Action == change.Rollback) {
			leader = i
		}
	}
	name := plans[members[0]].WheelName
	for _, i := range members {
		if other := plans[i].WheelName; other != name {
			refuseOthers(plans, members, -1, nodeerr.Messagef("nodes need different wheels: %s and %s", name, other))
			return
		}
	}
	if leader < 0 {
		return // all run the wheel already
	}
	for _, i := range members {
		if p := &plans[i]; i != leader {
			p.Action, p.Leader, p.Reasons, p.Hint = change.Shared, leader, nil, ""
		}
	}
}

// refuseOthers refuses the members of a shared environment except but.
func refuseOthers(plans []NodePlan, members []int, but int, why nodeerr.Message) {
	for _, i := range members {
		if i == but || plans[i].Action == change.Refuse {
			continue
		}
		with := but
		if but < 0 { // any other one
			with = members[slices.IndexFunc(members, func(m int) bool { return m != i })]
		}
		plans[i].Action, plans[i].Unfit = change.Refuse, but >= 0 && plans[but].Unfit
		shares := nodeerr.Messagef("shares an environment with %s: %s", nodeerr.Own(plans[with].Name), why)
		plans[i].Reasons = []string{plans[i].TextOf(shares)}
		plans[i].Hint = "use separate environments for nodes with different needs"
	}
}

// ApplyInUse applies the policy to the nodes whose environment is to be changed while processes use it.
func (p Plan) ApplyInUse(nodes []ProbeResult, policy change.InUse) {
	users := make([]node.Processes, len(nodes))
	for i, probed := range nodes {
		f, n := probed.Facts, &p.Nodes[i]
		users[i] = node.Processes{InUse: f.InUse, More: f.InUseMore}
		unseen := f.NotInspected()
		if unseen != "" && (n.Action == change.Install || n.Action == change.Rollback || n.Action == change.Shared) {
			n.Notes = append(n.Notes, change.CannotTell+": "+unseen)
		}
	}
	p.Decisions.ApplyInUse(users, policy)
}
