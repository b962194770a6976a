package envdeploy

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// NewRollbackPlan decides which nodes go back to the environment before. It is pure.
func NewRollbackPlan(nodes []ProbeResult, policy change.InUse) Plan {
	plan := planRollback(nodes)
	plan.agree(nodes, policy)
	return plan
}

// planRollback is NewRollbackPlan for each node alone.
func planRollback(nodes []ProbeResult) Plan {
	return newPlan(nodes, func(p *NodePlan, n ProbeResult) {
		switch {
		case n.Facts.MissingPython() != "" && n.State.Previous == nil:
			p.refuse(n.Facts.PythonHint("set interpreter: in environment.yaml to a Python on the node, and re-lock"), n.Facts.NoPython())
		case n.State.Previous == nil:
			p.refuse("deploy the environment you want; only the environment before the last switch is kept", "no previous environment to roll back to")
		default:
			p.Action = change.Rollback
		}
	})
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
	if b.Current != nil && b.Run == n.run.Fleet.Run && b.Current.Digest == n.state.Previous.Digest {
		n.Release() // another node that shares the folder has switched back meanwhile
		n.now = b.Current
		return n.prove(ctx, b.Current.Python)
	}
	if planned := n.state.Previous; b.Before == nil || b.Before.Digest != planned.Digest {
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
