package deploy

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// ProbeResult is the result of the first phase for a node.
type ProbeResult struct {
	Name   string
	Python string // in the inventory
	Facts  node.Facts
	Err    error // the reason if there are no facts
}

// NodePlan is the action on one node, with the reasons for it.
type NodePlan struct {
	change.Decision
	Wheel  *wheel.Loaded       // nil if none was chosen
	Extra  []wheel.BundleWheel // wheels of the wheelhouse to install with it
	Chosen []string            // of the remarks, why it gets this wheel and not another one that fits
	Back   string              // rollback: the version that it puts back

	need, free int64 // bytes for the wheels, on the fuller of its disks
}

// Plan lists the actions of a deploy, in inventory order.
type Plan struct {
	change.Decisions
	Nodes  []NodePlan     // Decisions are their common parts
	Wheels []wheel.Loaded // the wheels in use; a single wheel is listed even if no node uses it
	// Assigned is true if each node was assigned its wheel: a fleet with several wheels is intended.
	Assigned bool
}

// newPlan returns a plan in which a node is absent if it was not probed, or refused if its environment cannot be
// changed at all; decide decides the others.
func newPlan(nodes []ProbeResult, decide func(i int, p *NodePlan)) Plan {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	for i, n := range nodes {
		p := &plan.Nodes[i]
		p.Name, p.Leader = n.Name, i
		plan.Decisions = append(plan.Decisions, &p.Decision)
		if n.Err != nil {
			p.SetAbsent(n.Err)
		} else if reasons, hint := environmentFaults(n); len(reasons) > 0 {
			p.refuse(hint, reasons...)
		} else {
			decide(i, p)
		}
	}
	// Of nodes with the same site-packages the first installs and the others follow. If dsbuild
	// refuses one of them, it changes none.
	groups := map[string][]int{}
	for i, n := range nodes {
		if plan.Nodes[i].Action != change.Absent && n.Facts.SiteID != "" {
			groups[n.Facts.SiteID] = append(groups[n.Facts.SiteID], i)
		}
	}
	for _, members := range groups {
		if len(members) > 1 {
			resolveGroup(plan.Nodes, members)
		}
	}
	return plan
}

// refuse plans that nothing is sent.
func (p *NodePlan) refuse(hint string, reasons ...string) {
	p.SetRefused(hint)
	p.Reasons = reasons
}

// PlanOptions are the settings of NewPlan.
type PlanOptions struct {
	// Force installs even if the node already runs the wheel.
	Force bool
	// NoPip maps a Python X.Y to the reason why dsbuild has no pip wheel for it.
	NoPip map[string]error
	// Bundle is the wheelhouse for requirements; nil: a node that lacks one is refused.
	Bundle *wheel.Bundle
}

// NewPlan decides the action on each node. It is pure. The error asks for fault.Usage if the
// wheels leave open which one a node should get.
func NewPlan(nodes []ProbeResult, offered []wheel.Loaded, opt PlanOptions) (Plan, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	var open []ui.Named
	plan := newPlan(nodes, func(i int, p *NodePlan) {
		if err := p.choose(tables, nodes[i], offered, opt); err != nil {
			open = append(open, ui.Named{Name: p.Name, Text: err.Error()})
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
		return Plan{}, fault.New(fault.Usage, "choose one wheel with --wheel, or fewer nodes with --limit", "cannot choose a wheel for each node:\n  %s", strings.Join(lines, "\n  "))
	}
	for i := range offered {
		used := func(p NodePlan) bool { return p.Wheel == &offered[i] }
		if len(offered) == 1 || slices.ContainsFunc(plan.Nodes, used) {
			plan.Wheels = append(plan.Wheels, offered[i])
		}
	}
	return plan, nil
}

// choose decides the action on a node with the wheel that fits it best.
func (p *NodePlan) choose(tables *compat.Tables, n ProbeResult, offered []wheel.Loaded, opt PlanOptions) error {
	if reasons, hint := missingTorchOrPip(n.Facts, opt); len(reasons) > 0 {
		p.refuse(hint, reasons...)
		return nil
	}
	choice, err := compat.Choose(tables, offered, n.Facts)
	if err != nil {
		return err
	}
	if choice.Wheel == nil {
		p.Unfit = true
		p.refuse("have a wheel built for it: dsbuild ship INVENTORY", choice.Verdict.Reasons...)
		return nil
	}
	p.decide(choice.Wheel, choice.Verdict, n, opt)
	p.Chosen, p.Remarks = choice.Why, slices.Concat(p.Remarks, choice.Why)
	return nil
}

// decide decides the action on a node with its chosen wheel.
func (p *NodePlan) decide(w *wheel.Loaded, verdict compat.Verdict, n ProbeResult, opt PlanOptions) {
	p.Wheel, p.Remarks = w, verdict.Remarks
	if len(verdict.Reasons) > 0 {
		p.Unfit = true
		p.refuse(verdict.Hint(), verdict.Reasons...)
		return
	}
	extra, lacks, err := chooseExtraWheels(*w, n.Facts, opt.Bundle, opt.Force)
	d := n.Facts.DeepSpeed
	// A node that runs the wheel still installs if it lacks requirements that dsbuild can add.
	whole := opt.Bundle == nil || err == nil && len(extra)+len(lacks) == 0
	if d != nil && d.Intact && d.SHA256 == w.Manifest.SHA256 && !n.Facts.Unfinished && !opt.Force && whole {
		p.Action = change.UpToDate
		return
	}
	p.Action, p.Extra = change.Install, extra
	p.need, p.free = neededRoom(w.Manifest.Size+extraSize(extra)), min(n.Facts.FreeBytes, n.Facts.FreeTmpBytes)
	if obstacles, hint := installObstacles(*w, n.Facts, extra, lacks, err, opt); len(obstacles) > 0 {
		p.SetRefused(hint, obstacles...)
	}
}

// environmentFaults returns the reasons why dsbuild cannot change an environment at all, and a hint.
func environmentFaults(n ProbeResult) (reasons []string, hint string) {
	f := n.Facts
	part := f.MissingPython()
	switch {
	case part != "":
		return []string{"no usable Python: " + part + " is missing"}, f.PythonHint("set python: in the inventory to the interpreter of the environment (absolute)")
	case f.ExternallyManaged:
		return []string{"its Python is managed by the system (PEP 668) and must not be changed"},
			"make an environment there (python3 -m venv, uv venv) and name its python in the inventory"
	// After an interrupted change the RECORD may be missing: the agent repairs that first.
	case len(f.NoRecord) > 0 && !f.Unfinished:
		for _, path := range f.NoRecord[:min(len(f.NoRecord), 3)] {
			reasons = append(reasons, "its DeepSpeed was installed without a RECORD, so dsbuild could not put it back: "+node.ShownPath(path))
		}
		return reasons, node.AdviceFor("remove-deepspeed", n.Python)
	case f.ReadOnly:
		return []string{"its environment is on a file system that is mounted read-only: " + node.ShownPath(f.SitePackages)},
			"mount it writable; if it was, the node's disk may be failing (dmesg)"
	case f.HomeOwner != "":
		return []string{fmt.Sprintf("the user may not write into %s, which belongs to %s", node.ShownPath(f.Prefix+"/.dsbuild"), node.ShownPath(f.HomeOwner))},
			"set user: in the inventory to that user, or give the folder to the owner of the environment (chown -R)"
	case !f.Writable:
		return []string{"the user may not write into " + node.ShownPath(f.Prefix)}, "set user: in the inventory to the owner of the environment"
	}
	return nil, ""
}

// missingTorchOrPip returns the reasons why an environment cannot take any wheel, and a hint.
func missingTorchOrPip(f node.Facts, opt PlanOptions) (reasons []string, hint string) {
	if f.Torch == "" {
		return []string{"its environment has no torch"}, "set python: in the inventory to the environment that has torch"
	}
	if err := opt.NoPip[wheel.Minor(f.Python)]; err != nil && f.Pip == "" && f.PipWheel == "" {
		return []string{fmt.Sprintf("its environment has no pip, and dsbuild has none to send: %v", err)}, "install pip into the environment"
	}
	return nil, ""
}

// roomFactor and roomMargin give the free space that a wheel needs: the upload, the unpacked
// files and their byte code. The old version, moved aside, already has its space.
const (
	roomFactor = 4
	roomMargin = 32 << 20
)

// neededRoom returns the free space that wheels of size bytes need.
func neededRoom(size int64) int64 { return roomFactor*size + roomMargin }

// installObstacles returns the reasons why an environment cannot take a wheel that fits it: missing
// requirements, foreign commands or a full disk.
func installObstacles(w wheel.Loaded, f node.Facts, extra []wheel.BundleWheel, lacks []missing, err error, opt PlanOptions) (reasons []cause.Message, hint string) {
	switch {
	case err != nil:
		reasons, hint = append(reasons, cause.From(err)), "dsbuild cannot read the wheel's METADATA: build the wheel again"
	case len(lacks) > 0:
		var reason string
		reason, hint = shortage(lacks, f, opt)
		reasons = append(reasons, cause.Message{Text: reason})
	}
	if reason, try := foreignCommands(w, f); reason != "" {
		reasons, hint = append(reasons, cause.Message{Text: reason}), cmp.Or(hint, try)
	}
	if full, try := checkDisk(f, w.Manifest.Size+extraSize(extra)); full.Text != "" {
		reasons, hint = append(reasons, full), cmp.Or(hint, try)
	}
	return reasons, hint
}

// foreignCommands returns a reason and a hint if commands of the wheel would replace those of
// another package, or files of no package.
func foreignCommands(w wheel.Loaded, f node.Facts) (reason, hint string) {
	var reasons []string
	for _, name := range w.Commands {
		switch owner, taken := f.Taken[name]; {
		case taken && owner != "":
			reasons = append(reasons, fmt.Sprintf("%s belongs to %s", name, cmp.Or(node.PlainVersion(owner), "another package")))
		case taken && !f.Unfinished: // else it may be DeepSpeed's own, whose RECORD an interrupted change lost
			reasons = append(reasons, name+" belongs to no package")
		}
	}
	if len(reasons) == 0 {
		return "", ""
	}
	return "the wheel would replace commands that are not DeepSpeed's: " + strings.Join(reasons, ", "), "move them away there, or build a wheel without these commands"
}

func resolveGroup(plans []NodePlan, members []int) {
	leader := -1
	for _, i := range members {
		if plans[i].Action == change.Refuse {
			refuseOthers(plans, members, i, cause.Message{Text: strings.Join(plans[i].Reasons, "; "), Cause: plans[i].Cause()})
			return
		}
		if leader < 0 && (plans[i].Action == change.Install || plans[i].Action == change.Rollback) {
			leader = i
		}
	}
	first := members[0]
	for _, i := range members {
		if plans[i].Wheel != plans[first].Wheel {
			refuseOthers(plans, members, -1, cause.Messagef("they need different wheels: %s and %s", plans[first].Wheel.Manifest.Name, plans[i].Wheel.Manifest.Name))
			return
		}
	}
	if leader < 0 {
		return // all run the wheel already
	}
	for _, i := range members {
		if i != leader {
			plans[i].Action, plans[i].Leader = change.Shared, leader
		}
	}
}

// refuseOthers refuses the members of a shared environment, except the one with index but.
func refuseOthers(plans []NodePlan, members []int, but int, why cause.Message) {
	for _, i := range members {
		if i == but || plans[i].Action == change.Refuse {
			continue
		}
		with := but
		if but < 0 { // any other one
			with = members[slices.IndexFunc(members, func(m int) bool { return m != i })]
		}
		plans[i].Action, plans[i].Unfit = change.Refuse, but >= 0 && plans[but].Unfit
		plans[i].Reasons = []string{plans[i].NoteCause(cause.Messagef("shares its environment with %s: %s", cause.Own(plans[with].Name), why))}
		plans[i].Hint = "give nodes with different needs separate environments"
	}
}

// Print writes the plan of a deploy, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	err := p.Decisions.Print(w, []string{"WHEEL"}, func(i int) (cells, why []string) {
		n, wheel := p.Nodes[i], "-"
		if n.Wheel != nil && n.Action != change.Refuse {
			wheel = n.Wheel.Manifest.Name
		}
		switch n.Action {
		case change.Install:
			if len(n.Extra) > 0 {
				why = []string{"with " + strings.Join(extraWheelNames(n.Extra), ", ")}
			}
		case change.Shared:
			why = []string{"shares its environment with " + p.Nodes[n.Leader].Name}
		case change.Rollback:
			why = []string{"back to " + n.Back}
		case change.UpToDate:
			why = []string{"runs this wheel already"}
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
		bytes, nodes = bytes+n.Wheel.Manifest.Size+extraSize(n.Extra), nodes+1
		if nodes == 1 || n.free-n.need < fullest.free-fullest.need {
			fullest = n
		}
	}
	if err == nil && nodes > 0 {
		_, err = fmt.Fprintf(w, "sends %s to %s; %s has the least room: %s free, %s needed\n",
			ui.Size(bytes), ui.Count(nodes, "node"), fullest.Name, ui.Size(fullest.free), ui.Size(fullest.need))
	}
	return err
}

// ApplyInUse applies the policy to the nodes whose environment is to be changed while processes use it.
func (p Plan) ApplyInUse(nodes []ProbeResult, policy change.InUse) {
	users := make([]node.Processes, len(nodes))
	for i, n := range nodes {
		users[i] = node.Processes{InUse: n.Facts.InUse, More: n.Facts.InUseMore}
		at := slices.IndexFunc(n.Facts.Missing, func(m string) bool { return strings.HasPrefix(m, "in_use") })
		if a := p.Nodes[i].Action; at >= 0 && (a == change.Install || a == change.Rollback || a == change.Shared) {
			p.Nodes[i].Remarks = append(p.Nodes[i].Remarks, "dsbuild cannot see whether it is in use: "+n.Facts.Missing[at])
		}
	}
	p.Decisions.ApplyInUse(users, policy)
}
