package deploy

import (
	"context"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/verify"
)

// NewRollbackPlan decides which nodes go back to the version before the last deploy. It is pure.
func NewRollbackPlan(nodes []ProbeResult) Plan {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	for i, n := range nodes {
		p := NodePlan{Name: n.Name, Leader: i}
		switch reasons, try := environmentFaults(n); {
		case n.Err != nil:
			p.Action, p.Reasons, p.Hint = Absent, []string{p.noteCause(cause.From(n.Err))}, fault.Hint(n.Err)
		case len(reasons) > 0:
			p.Action, p.Reasons, p.Hint = Refuse, reasons, try
		case n.Facts.Previous == nil:
			p.Action, p.Reasons = Refuse, []string{"there is nothing to go back to"}
			p.Hint = "a node keeps only the version that the last deploy replaced"
		default:
			p.Action, p.Back = Rollback, previousName(n.Facts.Previous)
		}
		plan.Nodes[i] = p
	}
	resolveSharing(plan.Nodes, nodes)
	return plan
}

// previousName describes the version that a rollback puts back.
func previousName(p *node.Previous) string {
	switch {
	case p == nil:
		return "nothing"
	case p.Version == "":
		return "no DeepSpeed"
	}
	return "DeepSpeed " + p.Version
}

// rollback takes a node back to the version before the last deploy.
type rollback struct{ node *nodeRun }

// steps returns the steps of the rollback.
func (r rollback) steps() []fleet.Step {
	u := r.node
	limit, wait := u.run.fleet.Limit, u.run.opt.InUse.Wait
	return []fleet.Step{
		u.awaitFreeStep(),
		{Name: "rollback", Limit: wait + limit(installLimit), Do: r.exchange}, // takes the lock, exchanges the versions
		{Name: "verify", Limit: limit(verifyLimit), Do: r.verify},
		{Name: "record", Limit: recordLimit, Do: r.record, Needed: u.holdsLock},
	}
}

// exchange tells the agent to exchange the installed version for the previous one.
func (r rollback) exchange(ctx context.Context) error {
	u := r.node
	if err := u.awaitFree(ctx); err != nil {
		return err
	}
	b, err := u.startAgent(ctx, nil, false)
	if err != nil {
		return err
	}
	if planned := u.facts.Previous; b.Previous == nil || planned == nil || *b.Previous != *planned {
		return fault.WithHint(fmt.Errorf("another change was made since the survey: the rollback would bring back %s, not %s", previousName(b.Previous), previousName(planned)),
			"check with --dry-run, then roll back again")
	}
	accepted, err := u.session.AskKept(ctx, u.run.opt.Policy)
	if err != nil {
		return err
	}
	var done struct {
		Version       string         `json:"version"`
		Record        string         `json:"record"`
		Altered       []string       `json:"altered"` // in that version, and was before the deploy
		Noted         map[string]any `json:"noted"`   // dsbuild's note on that version; nil if something else installed it
		WrongByteCode []string       `json:"wrong_byte_code"`
	}
	if err := u.session.Ask(ctx, agent.Order{"do": "roll_back", "accepted": accepted}, &done); err != nil {
		return err
	}
	if n := len(done.WrongByteCode); n > 0 {
		u.Warn("the version before had byte code that was not that of its modules, which the node has removed: %s", ui.Count(n, "file"))
	}
	u.change.changed, u.change.after, u.change.recordSHA256, u.change.altered, u.change.note = true, nil, done.Record, done.Altered, nil
	if done.Noted != nil {
		u.change.note = done.Noted
	}
	if done.Version != "" {
		sha, _ := done.Noted["sha256"].(string)
		u.change.after = &report.Version{Version: done.Version, SHA256: sha}
	}
	return nil
}

// verify compares the files of the restored version with the digests that the deploy noted. It compares them
// with no RECORD and loads no op: what is wrong now was wrong before the deploy, too.
func (r rollback) verify(ctx context.Context) error {
	return r.node.session.Ask(ctx, agent.Order{"do": "verify_back"}, nil)
}

// record makes the rollback final and deletes the version that it replaced.
func (r rollback) record(ctx context.Context) error {
	u := r.node
	at := time.Now().UTC().Format(time.RFC3339)
	e := journalEntry{Do: "rollback", Run: u.run.fleet.Run, At: at, By: u.run.opt.By, Node: u.Host.Name, Before: u.change.before, Verify: verify.LevelFiles}
	if u.change.after != nil {
		e.SHA256 = u.change.after.SHA256
	}
	return u.session.Ask(ctx, agent.Order{"do": "record", "forget": true, "installed": u.change.note, "journal": e}, nil)
}
