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
		Current *Environment `json:"current"` // the one that is there now
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
		return errors.New("the node has the old environment or the new one, whole; dsbuild could not find out which")
	case is.Recorded:
		n.Changed = true
		return errors.New("the new environment is current and stays")
	case n.now == nil:
		return errors.New("no environment is current, as before")
	}
	return fmt.Errorf("the environment %s stays current", report.ShortSum(node.PlainVersion(n.now.Digest)))
}
