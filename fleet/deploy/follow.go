package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// lateHint is the hint if a node does not see another node's change.
const lateHint = "rerun the command: network file systems can show changes late"

// follow probes a node that shares an environment with a changed node, its leader, to learn its
// version now. It does not trust the leader's answer for this node.
func (n *nodeState) follow(ctx context.Context) error {
	leader, before := n.run.nodes[n.plan.Leader], n.before
	name := nodeerr.Own(leader.Host.Name)
	if leader.Status == report.Refused {
		what := nodeerr.Messagef("shares an environment with %s, which was refused: %v", name, leader.Err)
		return &change.InUseError{What: what}
	}
	err := n.probe(ctx)
	if err != nil {
		n.after, n.StateUnknown = nil, true
	} else {
		n.before = before
	}
	switch {
	case leader.Status != report.OK:
		err := nodeerr.Errorf("shares an environment with %s, which failed", name)
		return fault.WithHint(err, "see the error of %s", leader.Host.Name)
	case err != nil:
		return fmt.Errorf("cannot determine the installed version: %w", err)
	}
	n.Changed = leader.Changed
	if leader.plan.Action == change.Rollback && !leader.Facts.Previous.Interrupted && n.Facts.DeepSpeed != nil &&
		!slices.Equal(n.Facts.DeepSpeed.Altered, leader.altered) {
		err := nodeerr.Errorf("shares an environment with %s, but sees different files", name)
		return fault.WithHint(err, lateHint)
	}
	if now, sees := leader.after.String(), n.after.String(); n.recordSHA256 != leader.recordSHA256 || sees != now {
		if sees == now {
			sees = "it with another RECORD"
		}
		err := nodeerr.Errorf("shares an environment with %s, which now has %s, but this node sees %s", name, now, sees)
		return fault.WithHint(err, lateHint)
	}
	return nil
}

// verifyFollower verifies a node that shares an environment with a node that has already
// recorded the change: it is too late to undo the change.
func (n *nodeState) verifyFollower(ctx context.Context) error {
	err := n.verify(ctx)
	if err == nil || !n.Changed {
		return err
	}
	leader := n.run.nodes[n.plan.Leader].Host.Name
	back := fault.Command{Do: "rollback", Nodes: []string{leader}}
	try := strings.TrimPrefix(fault.Hint(err)+"; to roll back: "+back.String(), "; ")
	err = nodeerr.Errorf("%w; the environment shared with %s keeps the new wheel", err, nodeerr.Own(leader))
	return fault.AddHint(err, try)
}
