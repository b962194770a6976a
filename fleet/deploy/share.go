package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// proveSharing corrects the SiteIDs in known: nodes that provably share site-packages keep a common one, all
// others that claimed to share lose theirs.
func (d *Deployment) proveSharing(ctx context.Context, known []ProbeResult) {
	claims := make([]change.Claim, len(known))
	for i, n := range known {
		if n.Err == nil {
			claims[i] = change.Claim{Node: d.nodes[i].Node, Folder: n.Facts.SitePackages, ID: n.Facts.SiteID, Writable: n.Facts.Writable}
		}
	}
	change.ProveSharing(ctx, claims, d.Fleet.Forks())
	for i, n := range known {
		if n.Err == nil {
			known[i].Facts.SiteID = claims[i].ID
		}
	}
}

// lateHint is the hint where a node does not see what another one has changed.
const lateHint = "a network file system may show changes late: run the same command again"

// findSharedInstallation probes a node that shares its environment with a changed node, its leader, to learn its
// version now. It does not trust the leader's answer for this node.
func (u *nodeRun) findSharedInstallation(ctx context.Context) error {
	leader, before := u.run.nodes[u.plan.Leader], u.before
	if leader.Status == report.Refused {
		return &change.InUseError{What: cause.Messagef("shares its environment with %s, which was refused: %v", cause.Own(leader.Host.Name), leader.Err)}
	}
	err := u.Probe(ctx)
	if err != nil {
		u.after, u.Unseen = nil, true
	} else {
		u.before = before
	}
	switch {
	case leader.Status != report.OK:
		return fault.WithHint(cause.Errorf("shares its environment with %s, where the change did not succeed", cause.Own(leader.Host.Name)), "see the error of %s", leader.Host.Name)
	case err != nil:
		return fmt.Errorf("dsbuild could not find out the version in its environment: %w", err)
	}
	u.Changed = leader.Changed
	if leader.plan.Action == change.Rollback && u.facts.DeepSpeed != nil && !slices.Equal(u.facts.DeepSpeed.Altered, leader.altered) {
		return fault.WithHint(cause.Errorf("shares its environment with %s, and sees other files there", cause.Own(leader.Host.Name)), lateHint)
	}
	if u.recordSHA256 != leader.recordSHA256 || u.after.String() != leader.after.String() {
		return fault.WithHint(cause.Errorf("shares its environment with %s, which has %s now; this node sees %s", cause.Own(leader.Host.Name), leader.after.String(), u.after.String()),
			lateHint)
	}
	return nil
}
