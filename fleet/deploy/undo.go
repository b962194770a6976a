package deploy

import (
	"context"
	"errors"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// end is the end of a node's steps. If one has failed, it undoes the change.
func (n *nodeState) end(ctx context.Context, failed error) {
	defer n.Disconnect()
	if failed == nil {
		n.Status = report.OK
		n.Release()
		return
	}
	var is struct {
		change.UndoReply
		Before *report.Version `json:"before"` // the version installed now
	}
	var seen begun
	undone, err := n.run.Undo(ctx, n.Node, n.agent(), &is, &seen)
	if !undone {
		return
	}
	if seen.Now != nil {
		is.Before = &report.Version{Version: seen.Now.Version, SHA256: seen.Now.SHA256}
	}
	change.AddOutcome(n.Node, n.outcome(is.UndoReply, is.Before, err), err)
}

// outcome describes the state of the node after an undo, which may have failed with err: before is the version that
// is there if nothing was recorded.
func (n *nodeState) outcome(is change.UndoReply, before *report.Version, err error) error {
	switch {
	case err != nil:
		n.after = nil
		return n.describeUnseen(err)
	case is.Recorded && is.Finished:
		n.Changed = true
		return errors.New(n.after.String() + " is installed and recorded")
	case is.Recorded:
		n.Changed = true
		return errors.New(n.after.String() + " is installed; the next run finishes recording it")
	case n.plan.Action == change.Rollback:
		n.Changed, n.after = false, before
		return nodeerr.Errorf("unchanged: %s", nodeerr.Own(before.String()))
	case before == nil:
		n.Changed, n.after = false, nil
		return errors.New("rolled back; DeepSpeed is not installed")
	}
	n.Changed, n.after = false, before
	return nodeerr.Errorf("rolled back to %s", nodeerr.Own(before.String()))
}

// describeUnseen describes the state of the node, whose undo failed or gave no answer.
func (n *nodeState) describeUnseen(err error) error {
	var refused *agent.Failure
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("rollback failed: %w; the next deploy retries it first", err)
	case n.Step == "record":
		return errors.New("either version may be installed; deploy again")
	case errors.Is(err, remote.ErrLost):
		return errors.New("the node rolls back on its own, but this could not be confirmed")
	}
	if n.Err.Error() == err.Error() {
		return errors.New("environment state is unknown; the next deploy repairs it")
	}
	return fmt.Errorf("environment state is unknown (%w); the next deploy repairs it", err)
}
