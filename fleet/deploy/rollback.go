package deploy

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// NewRollbackPlan decides which nodes undo a run: the one named, or the latest of their last changes if run is empty. It
// leaves the others as they are. It is pure.
func NewRollbackPlan(nodes []ProbeResult, run string) (Plan, error) {
	last := lists.Map(nodes, func(n ProbeResult) change.LastChange {
		known := change.LastChange{Err: n.Err}
		if n.Err == nil && n.Facts.Previous != nil {
			known.LastChange = &n.Facts.Previous.LastChange
		}
		return known
	})
	undo, err := change.NewUndoing(last, run, "version")
	if err != nil {
		return Plan{}, err
	}
	plan := newPlan(nodes, func(i int, n *NodePlan) {
		if undo.Decide(&n.Decision, last[i]); n.Action == change.Rollback {
			n.Back = previousName(nodes[i].Facts.Previous)
		}
	})
	plan.Undone = undo.Run()
	return plan, nil
}

// previousName describes the version that a rollback restores.
func previousName(p *node.Previous) string {
	switch {
	case p == nil:
		return "nothing"
	case p.Version == "":
		return "no DeepSpeed"
	}
	return (&report.Version{Version: p.Version, SHA256: p.SHA256}).Plain().String()
}

// rollBack makes the agent exchange the installed version for the previous one.
func (n *nodeState) rollBack(ctx context.Context) error {
	if err := n.run.AwaitFree(ctx, n.Node, &n.plan.Decision); err != nil {
		return err
	}
	before, planned := n.before, n.Facts.Previous
	b, err := n.lock(ctx, nil, false)
	if err != nil {
		return err
	}
	if planned.Interrupted && b.Undone == planned.Last().ID { // the agent has undone the change
		n.Changed, n.before = true, before
		n.Release()
		return nil
	}
	now := b.Previous
	if now == nil || planned.Interrupted || now.Last() != planned.Last() || previousName(now) != previousName(planned) {
		err := fmt.Errorf("environment changed after the probe: rollback would restore %s, not %s",
			previousName(now), previousName(planned))
		return fault.WithHint(err, "check with --dry-run, then rerun the rollback")
	}
	accepted, err := n.run.CheckPrevious(ctx, n.Node)
	if err != nil {
		return err
	}
	var done struct {
		Version       string         `json:"version"`
		Record        string         `json:"record"`
		Altered       []string       `json:"altered"` // in that version, and was before the deploy
		Noted         map[string]any `json:"noted"`   // nodeState.note
		WrongByteCode []string       `json:"wrong_byte_code"`
	}
	if err := change.Call(ctx, n.Node, agent.Request{"do": "roll_back", "accepted": accepted}, &done); err != nil {
		return err
	}
	if wrong := len(done.WrongByteCode); wrong > 0 {
		n.Warn("removed byte code of the restored version that did not match its modules: %s",
			ui.Count(wrong, "file"))
	}
	n.Changed, n.after, n.recordSHA256, n.altered, n.note = true, nil, done.Record, done.Altered, done.Noted
	if done.Version != "" {
		sha, _ := done.Noted["sha256"].(string)
		n.after = &report.Version{Version: done.Version, SHA256: sha}
	}
	return nil
}

// verifyBack lets the agent compare the files of the restored version with the digests that the deploy noted. It needs
// no RECORD and loads no op: what is wrong now was wrong before the deploy, too.
func (n *nodeState) verifyBack(ctx context.Context) error {
	return change.Call(ctx, n.Node, agent.Request{"do": "verify_back"}, nil)
}

// recordBack makes the rollback final and deletes the version that it replaced.
func (n *nodeState) recordBack(ctx context.Context) error {
	e := journalEntry{JournalEntry: n.run.NewEntry(n.Node, "rollback"), Before: n.before, Verify: verify.LevelFiles}
	if n.after != nil {
		e.SHA256 = n.after.SHA256
	}
	return n.finish(ctx, agent.Request{"do": "record", "forget": true, "installed": n.note, "journal": e})
}
