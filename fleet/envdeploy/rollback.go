package envdeploy

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
)

// planRollback decides which nodes undo a run: the one named, or the latest of their last changes if run is empty. It
// leaves the others as they are, and decides on each node by itself. It is pure.
func planRollback(nodes []ProbeResult, run string) (Plan, error) {
	last := lists.Map(nodes, func(n ProbeResult) change.LastChange {
		known := change.LastChange{Err: n.Err}
		if n.Err == nil {
			known.LastChange = n.State.Last
		}
		return known
	})
	undo, err := change.NewUndoing(last, run, "environment")
	if err != nil {
		return Plan{}, err
	}
	plan := newPlan(nodes, func(i int, p *NodePlan) {
		n := nodes[i]
		if n.Facts.MissingPython() != "" && n.State.Last == nil {
			p.refuse(n.Facts.PythonHint(fault.SetInterpreter("a Python on the node").String()), n.Facts.NoPython())
			return
		}
		undo.Decide(&p.Decision, last[i])
		switch {
		case p.Action != change.Rollback:
		case n.State.Previous == nil: // this run made the first environment
			undo.RejectNone(&p.Decision, "")
		default:
			p.Back = n.State.Previous.Digest
		}
	})
	plan.Undone = undo.Run()
	return plan, nil
}

// rollBack switches back to the environment before.
func (n *nodeState) rollBack(ctx context.Context) error {
	if err := n.run.AwaitFree(ctx, n.Node, &n.plan.Decision); err != nil {
		return err
	}
	b, err := n.lock(ctx, nil, false)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Run == n.run.Fleet.Run && b.Current.Digest == n.plan.Back {
		n.Release() // another node that shares the folder has switched back meanwhile
		n.now = b.Current
		return n.prove(ctx, b.Current.Python)
	}
	if b.Before == nil || b.Before.Digest != n.plan.Back || b.Run != n.state.Last.Last().ID {
		return fault.WithHint(errors.New("environment changed after the probe"),
			"check with --dry-run, then rerun the rollback")
	}
	accepted, err := n.run.CheckPrevious(ctx, n.Node)
	if err != nil {
		return err
	}
	var done struct {
		Python string `json:"python"`
	}
	order := agent.Request{"do": "roll_back", "journal": n.newEntry(b.Before.Digest), "accepted": accepted}
	if err := change.Call(ctx, n.Node, order, &done); err != nil {
		return err
	}
	now := *b.Before
	now.Python = done.Python
	n.Changed, n.now = true, &now
	return n.prove(ctx, done.Python)
}
