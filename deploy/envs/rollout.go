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
func (p Plan) rollout(sizes deploy.Serial) *deploy.Rollout {
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
	return deploy.NewRollout(ready, waiting, sizes)
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

// assignGroups notes for each node the group of --serial that will change it, if no group fails.
func (p Plan) assignGroups(sizes deploy.Serial) {
	if len(sizes) == 0 {
		return
	}
	order := p.rollout(sizes)
	for number := 1; ; number++ {
		group := order.NextGroup()
		if len(group) == 0 {
			return
		}
		for _, i := range group {
			p.Nodes[i].Serial = number
		}
		order.UseNextSize()
	}
}

// Apply carries out the plan of the survey. The report is complete even if ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *report.Report {
	order := d.plan.rollout(d.opt.Serial)
	left := d.members(d.plan.unchanged())
	defer d.showProgress()()
	start := time.Now()
	for number := 1; ; number++ {
		group := d.members(order.NextGroup())
		if len(group)+len(left) == 0 {
			return d.Report()
		}
		d.changeGroup(ctx, group, left, start)
		left = nil
		if len(d.opt.Serial) > 0 {
			d.fleet.ShowGroup(number)
		}
		failed, ok := settle(group, number)
		if err := d.opt.Serial.StopAfter(number, failed, len(group), d.opt.TooMany); err != nil && ctx.Err() == nil {
			d.skipRest(order, err)
			return d.Report()
		}
		if ok {
			order.UseNextSize()
		}
	}
}

// settle notes the group in which nodes were changed. It returns those that failed, and whether one
// is ok.
func settle(group []*nodeRun, number int) (failed []string, ok bool) {
	for _, u := range group {
		if u.Status != report.Skipped {
			u.serial = number
		}
		if u.Failed() {
			failed = append(failed, u.Host.Name)
		}
		ok = ok || u.Status == report.OK
	}
	return failed, ok
}

// changeGroup changes a group of nodes, and verifies the nodes in left, which are not changed.
func (d *Deployment) changeGroup(ctx context.Context, group, left []*nodeRun, start time.Time) {
	var walks []fleet.Walk
	for _, u := range append(left, group...) {
		u.waitUntil = time.Now().Add(d.opt.InUse.Wait)
		if u.plan.waits { // counted from the start of Apply
			u.waitUntil = start.Add(d.opt.InUse.Wait)
		}
		walks = append(walks, fleet.Walk{Node: u.Node, Steps: u.steps(), End: u.end})
	}
	d.announce(group)
	d.fleet.Walk(ctx, walks, d.fleet.StopWhen(len(d.failed())))
}

// skipRest gives the nodes of all further groups the reason why dsbuild does not start them.
func (d *Deployment) skipRest(order *deploy.Rollout, why error) {
	for rest := d.members(order.NextGroup()); len(rest) > 0; rest = d.members(order.NextGroup()) {
		for _, u := range rest {
			u.Err = why
		}
	}
}

// members returns the nodes at indexes.
func (d *Deployment) members(at []int) []*nodeRun {
	nodes := make([]*nodeRun, len(at))
	for i, place := range at {
		nodes[i] = d.nodes[place]
	}
	return nodes
}

// failed returns the names of the nodes that failed so far.
func (d *Deployment) failed() []string {
	var names []string
	for _, u := range d.nodes {
		if u.Failed() {
			names = append(names, u.Host.Name)
		}
	}
	return names
}

// showProgress displays the progress of Apply.
func (d *Deployment) showProgress() (hide func()) {
	title, walks, bytes := "deploying the environment", 0, int64(0)
	for _, u := range d.nodes {
		if u.plan.Action == deploy.Rollback {
			title = "rolling back"
		}
		if len(u.steps()) > 0 {
			walks, bytes = walks+1, bytes+u.plan.Size()
		}
	}
	return d.fleet.Show(title, walks, bytes, d.failed())
}

// announce tells a Broadcaster, or else the relay, which nodes of a group get the same files.
func (d *Deployment) announce(group []*nodeRun) {
	b, broadcasts := d.opt.Dialer.(remote.Broadcaster)
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
	for f, all := range nodes {
		if broadcasts {
			b.Announce(f.SHA256, fleet.Names(all))
		}
		if d.relay.Announce(f, all) {
			d.fleet.Widen(len(all))
		}
	}
}
