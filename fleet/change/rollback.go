package change

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// LastChange is what is known of dsbuild's last change of a node.
type LastChange struct {
	*node.LastChange       // nil if there was none
	Err              error // why it is unknown
}

// Undoing is a rollback: it undoes one run, on the nodes whose last change this run made.
type Undoing struct {
	run      node.Run // its ID is empty if there is none
	undoable bool     // some node can undo it
	kept     string   // what a node keeps one of: a version, or an environment
}

// NewUndoing chooses the run to undo: the named one, or the latest of the nodes' last changes if wanted is empty. kept is
// version or environment. It is pure.
func NewUndoing(nodes []LastChange, wanted, kept string) (Undoing, error) {
	run, err := chooseRun(nodes, wanted, kept)
	undoable := slices.ContainsFunc(nodes, func(n LastChange) bool { return n.LastChange != nil && n.Has(run) && !n.Undone })
	return Undoing{run, undoable, kept}, err
}

// chooseRun returns the run to undo, with an empty ID if there is none, or if it is unclear which is the latest because the
// notes of a node cannot be used. A node that was not reached may have the wanted run.
func chooseRun(nodes []LastChange, wanted, kept string) (node.Run, error) {
	var known []node.Run
	for _, n := range nodes {
		if n.LastChange == nil {
			continue
		}
		for _, r := range n.Runs {
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
	unclear := slices.ContainsFunc(nodes, func(n LastChange) bool { return n.LastChange != nil && n.Last().ID == "" })
	switch {
	case at >= 0:
		return known[at], nil
	case wanted == "" && len(known) > 0 && !unclear:
		return known[len(known)-1], nil
	case wanted == "", slices.ContainsFunc(nodes, func(n LastChange) bool { return n.Err != nil }):
		return node.Run{ID: wanted}, nil
	}
	hint := "no node keeps a previous " + kept
	if len(known) > 0 {
		hint = "runs that can be undone: " + strings.Join(lists.Map(known, node.Run.String), ", ")
	}
	return node.Run{}, fault.New(fault.Usage, hint, "--run: no node has run %q as its last change", wanted)
}

// Decide decides whether a node undoes the run. A node that this run did not change is left as it is.
func (u Undoing) Decide(p *Decision, last LastChange) {
	switch {
	case last.LastChange == nil && !u.undoable:
		u.RejectNone(p, "")
	case last.LastChange == nil:
		p.leave(u.none())
	case last.Last().ID != "" && u.run.ID == "" && !last.Undone:
		p.leave("its last change is run " + last.Last().String() + "; --run undoes it: the last change of another node is unknown")
	case last.Last().ID != "" && !last.Has(u.run): // without an ID, Wrong has the reason
		p.leave("its last change is run " + last.Last().String())
	case last.Undone && !u.undoable:
		u.RejectNone(p, ": this run was rolled back already")
	case last.Undone:
		p.leave("rolled back already")
	case last.Wrong != "":
		p.SetRefused(node.HintFor(last.Advice, "", node.Facts{}), nodeerr.Message{Text: node.NewNodeError(last.Wrong).Error()})
	default:
		p.Action = Rollback
		if last.Interrupted {
			p.Notes = append(p.Notes, "the run was interrupted: its changes are undone")
		}
	}
}

// none is the reason why a node restores nothing.
func (u Undoing) none() string { return "no previous " + u.kept + " to roll back to" }

// RejectNone rejects a node that keeps nothing to restore.
func (u Undoing) RejectNone(p *Decision, why string) {
	p.SetRefused(node.HintFor("one-"+u.kept+"-back", "", node.Facts{}), nodeerr.Message{Text: u.none() + why})
}

// leave leaves a node as it is.
func (p *Decision) leave(why string) { p.Action, p.Notes = Leave, []string{"unchanged: " + why} }

// Run returns the run that is undone. It returns nil if there is none.
func (u Undoing) Run() *node.Run {
	if u.run.ID == "" {
		return nil
	}
	return &u.run
}

// PrintUndone prints which run the plan of a rollback undoes.
func PrintUndone(w io.Writer, run *node.Run) error {
	if run == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "undoes run %s\n", ui.Clean(run.String()))
	return err
}
