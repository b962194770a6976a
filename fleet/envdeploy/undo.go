package envdeploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// end is the end of a node's steps. If one has failed, it takes the change back.
func (n *nodeState) end(ctx context.Context, failed error) {
	defer n.Disconnect()
	if failed == nil {
		n.Status = report.OK
		n.Release()
		return
	}
	var is struct {
		change.UndoReply
		Current *Environment `json:"current"` // the environment in use now
	}
	var seen begun
	undone, err := n.run.Undo(ctx, n.Node, n.agent(), &is, &seen)
	if !undone {
		return
	}
	n.now = cmp.Or(is.Current, seen.Current)
	change.AddOutcome(n.Node, n.outcome(is.UndoReply, err), err)
}

// outcome describes the state of the node after an undo, which may have failed with err.
func (n *nodeState) outcome(is change.UndoReply, err error) error {
	switch {
	case err != nil:
		n.now = nil
		return errors.New("cannot determine which environment is current, the old or the new one; both are complete")
	case is.Recorded:
		n.Changed = true
		return errors.New("the new environment stays current")
	case n.now == nil:
		return errors.New("rolled back to no environment")
	}
	return fmt.Errorf("environment %s stays current", report.ShortSum(node.PlainVersion(n.now.Digest)))
}
