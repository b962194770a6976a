package envs

import (
	"context"
	"time"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// rollout is the order in which the nodes of the plan are changed.
func (p Plan) rollout(sizes fleet.Serial) *fleet.Rollout {
	var ready, waiting [][]int
	for i, n := range p.Nodes {
		switch {
		case n.Action != deploy.Install && n.Action != deploy.Rollback:
		case n.waits:
			waiting = append(waiting, []int{i})
		default:
			ready = append(ready, []int{i})
		}
	}
	return fleet.NewRollout(ready, waiting, sizes)
}

// unchanged returns the indexes of the nodes that have their environment already.
func (p Plan) unchanged() (at []int) {
	for i, n := range p.Nodes {
		if n.Action == deploy.UpToDate {
			at = append(at, i)
		}
	}
	return at
}

// assignGroups notes for each node the group of --serial that will change it, assuming that no group
// fails.
func (p Plan) assignGroups(sizes fleet.Serial) {
	p.rollout(sizes).AssignGroups(func(node, group int) { p.Nodes[node].Serial = group })
}

// Apply carries out the plan of the survey. The report is complete even if ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *report.Report {
	rollout, unchanged := d.plan.rollout(d.opt.Serial), d.plan.unchanged()
	defer d.showProgress(rollout.Total() + len(unchanged))()
	start := time.Now()
	d.fleet.ChangeGroups(ctx, rollout, unchanged, func(group, unchanged []int) {
		d.changeGroup(ctx, d.members(group), d.members(unchanged), start)
	})
	return d.Report()
}

// changeGroup changes a group of nodes, and verifies the nodes in unchanged.
func (d *Deployment) changeGroup(ctx context.Context, group, unchanged []*nodeRun, start time.Time) {
	var nodeSteps []fleet.NodeSteps
	for _, u := range append(unchanged, group...) {
		u.waitUntil = time.Now().Add(d.opt.InUse.Wait)
		if u.plan.waits { // counted from the start of Apply
			u.waitUntil = start.Add(d.opt.InUse.Wait)
		}
		nodeSteps = append(nodeSteps, fleet.NodeSteps{Node: u.Node, Steps: u.steps(), End: u.end})
	}
	d.announce(group)
	d.fleet.RunSteps(ctx, nodeSteps, d.fleet.StopWhen(len(d.fleet.Failed())))
}

// members returns the nodes at indexes.
func (d *Deployment) members(at []int) []*nodeRun {
	nodes := make([]*nodeRun, len(at))
	for i, place := range at {
		nodes[i] = d.nodes[place]
	}
	return nodes
}

// showProgress displays the progress of Apply on a number of nodes.
func (d *Deployment) showProgress(nodes int) (hide func()) {
	title, bytes := "deploying the environment", int64(0)
	for _, u := range d.nodes {
		if u.plan.Action == deploy.Rollback {
			title = "rolling back"
		}
		bytes += u.plan.Size()
	}
	return d.fleet.Show(title, nodes, bytes)
}

// announce tells a Broadcaster, or else the relay, which nodes of a group get the same files.
func (d *Deployment) announce(group []*nodeRun) {
	_, broadcasts := d.opt.Dialer.(remote.Broadcaster)
	nodes := map[relay.File][]*fleet.Node{}
	for _, u := range group {
		if u.plan.Python && (broadcasts || u.brought.runsRelay(refOf(u.plan.Set))) {
			python := u.plan.Set.Python
			file := relay.File{Path: d.opt.Files.Paths[python.SHA256], SHA256: python.SHA256, Size: python.Size}
			nodes[file] = append(nodes[file], u.Node)
		}
		for _, f := range u.plan.Send {
			file := relay.File{Path: d.opt.Files.Paths[f.SHA256], SHA256: f.SHA256, Size: f.Size}
			nodes[file] = append(nodes[file], u.Node)
		}
	}
	d.transfer.Relay.AnnounceAll(d.fleet, d.opt.Dialer, nodes)
}
