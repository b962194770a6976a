package deploy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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
	undone, err := chooseRun(nodes, run)
	if err != nil {
		return Plan{}, err
	}
	undoable := slices.ContainsFunc(nodes, func(n ProbeResult) bool {
		return n.Err == nil && n.Facts.Previous.Has(undone) && !n.Facts.Previous.Undone
	})
	plan := newPlan(nodes, func(i int, p *NodePlan) {
		p.decideRollback(nodes[i].Facts.Previous, undone, undoable, nodes[i].Python)
	})
	if undone.ID != "" {
		plan.Undone = &undone
	}
	return plan, nil
}

// chooseRun returns the run to undo, with an empty ID if there is none. A node that was not reached may have the wanted
// run.
func chooseRun(nodes []ProbeResult, wanted string) (node.Run, error) {
	var known []node.Run
	for _, n := range nodes {
		if n.Err != nil || n.Facts.Previous == nil {
			continue
		}
		for _, r := range n.Facts.Previous.Runs {
			at := slices.IndexFunc(known, func(k node.Run) bool { return k.ID == r.ID })
			if at < 0 {
				known = append(known, r)
			} else if r.At > known[at].At {
				known[at] = r
			}
		}
	}
	slices.SortFunc(known, func(a, b node.Run) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	at := slices.IndexFunc(known, func(k node.Run) bool { return k.ID == wanted })
	switch {
	case at >= 0:
		return known[at], nil
	case wanted == "" && len(known) > 0:
		return known[len(known)-1], nil
	case wanted == "", slices.ContainsFunc(nodes, func(n ProbeResult) bool { return n.Err != nil }):
		return node.Run{ID: wanted}, nil
	}
	hint := "no node keeps a previous version"
	if len(known) > 0 {
		hint = "runs that can be undone: " + strings.Join(lists.Map(known, node.Run.String), ", ")
	}
	return node.Run{}, fault.New(fault.Usage, hint, "--run: no node has run %q as its last change", wanted)
}

// decideRollback decides whether a node undoes a run. undoable reports whether some node can; python is the node's in the
// inventory.
func (n *NodePlan) decideRollback(p *node.Previous, undone node.Run, undoable bool, python string) {
	const none = "no previous version to roll back to"
	unusable := p != nil && p.Last().ID == "" // the reason is in p.Wrong
	switch {
	case p == nil && !undoable:
		n.refuse("deploy the version you want; only the version before the last deploy is kept", none)
	case p == nil:
		n.Action, n.Notes = change.Leave, []string{"unchanged: " + none}
	case !unusable && !p.Has(undone):
		n.Action, n.Notes = change.Leave, []string{"unchanged: its last change is run " + p.Last().String()}
	case p.Undone && !undoable:
		n.refuse("deploy the version you want; only the version before the last deploy is kept",
			none+": this run was rolled back already")
	case p.Undone:
		n.Action, n.Notes = change.Leave, []string{"unchanged: rolled back already"}
	case p.Wrong != "":
		n.refuse(node.HintFor(p.Advice, python, ""), node.NewNodeError(p.Wrong).Error())
	default:
		n.Action, n.Back = change.Rollback, previousName(p)
		if p.Interrupted {
			n.Notes = append(n.Notes, "the run was interrupted: its changes are undone")
		}
	}
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

// rollBack tells the agent to exchange the installed version for the previous one.
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
	if now == nil || planned.Interrupted || now.Last() != planned.Last() || now.Version != planned.Version {
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
