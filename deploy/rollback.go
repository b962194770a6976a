package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// NewRollbackPlan decides which nodes go back to the version before the last deploy. It is pure.
func NewRollbackPlan(nodes []Known) Plan {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	for i, n := range nodes {
		p := NodePlan{Name: n.Name, Leader: i}
		switch reasons, hint := unusable(n.Facts); {
		case n.Err != nil:
			p.Action, p.Reasons = Absent, []string{p.said(cause.From(n.Err))}
		case len(reasons) > 0:
			p.Action, p.Reasons, p.Hint = Refuse, reasons, hint
		case n.Facts.Previous == nil:
			p.Action, p.Reasons = Refuse, []string{"there is nothing to go back to"}
			p.Hint = "what the last deploy replaced is kept, one step back"
		default:
			p.Action, p.Back = Return, previousName(n.Facts.Previous)
		}
		plan.Nodes[i] = p
	}
	share(plan.Nodes, nodes)
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

// goBack tells the agent to exchange the installed version for the previous one.
func (d *Deployment) goBack(ctx context.Context, u *nodeRun) error {
	if err := d.free(ctx, u); err != nil {
		return err
	}
	b, err := d.begin(ctx, u, nil, false)
	if err != nil {
		return err
	}
	if planned := u.facts.Previous; b.Previous == nil || planned == nil || *b.Previous != *planned {
		return hint.With(fmt.Errorf("another change came in between: the rollback would bring back %s, not %s", previousName(b.Previous), previousName(planned)),
			"look with --dry-run, then roll back again")
	}
	var done struct {
		Version string         `json:"version"`
		Record  string         `json:"record"`
		Noted   map[string]any `json:"noted"` // dsbuild's note on that version; nil if something else installed it
	}
	if err := u.session.ask(ctx, map[string]any{"do": "roll_back"}, &done); err != nil {
		return err
	}
	u.changed, u.after, u.record, u.noted = true, nil, done.Record, nil
	if done.Noted != nil {
		u.noted = done.Noted
	}
	if done.Version != "" {
		sha, _ := done.Noted["sha256"].(string)
		u.after = &Version{done.Version, sha}
	}
	return nil
}

// verifyBack compares the files of the restored version with its RECORD. It does not load the
// ops: an op that fails now may have failed before the deploy, too.
func (d *Deployment) verifyBack(ctx context.Context, u *nodeRun) error {
	if u.after == nil {
		return nil
	}
	if u.record == "" {
		return errors.New("the version put back has no RECORD")
	}
	return runVerify(ctx, u, wheel.Manifest{}, map[string]any{"level": VerifyFiles, "version": u.after.Version, "record": u.record, "ops": []string{}})
}

// recordBack makes the rollback final and deletes the version that it replaced.
func (d *Deployment) recordBack(ctx context.Context, u *nodeRun) error {
	at := time.Now().UTC().Format(time.RFC3339)
	e := journalEntry{Do: "rollback", Run: d.run, At: at, By: d.opt.By, Node: u.host.Name, Before: u.before, Verify: VerifyFiles}
	if u.after != nil {
		e.SHA256 = u.after.SHA256
	}
	return u.session.ask(ctx, map[string]any{"do": "record", "forget": true, "installed": u.noted, "journal": e}, nil)
}
