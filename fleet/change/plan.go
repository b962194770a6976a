package change

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Action is dsbuild's action on a node.
type Action string

// The actions of a plan.
const (
	Install  Action = "install"  // put, install, verify, record
	Rollback Action = "rollback" // restore the previous version
	UpToDate Action = "verify"   // has the result already: only verify
	Shared   Action = "follow"   // shares an environment with another node, which installs
	Leave    Action = "leave"    // not changed by the run that a rollback undoes: leave it as it is
	Refuse   Action = "refuse"   // incompatible wheel or unmet requirement: send nothing
	Absent   Action = "skip"     // not reached or not probed
)

// Decision is the action on one node, with the reasons for it.
type Decision struct {
	Name         string
	Action       Action
	Reasons      []string // why the node is refused or absent
	Unfit        bool     // refused because the wheel is incompatible, not because the node lacks something
	Notes        []string // notes for the user; they do not stop the change
	Hint         string
	Leader       int  // index of the node that installs for it; its own index if it installs itself
	Serial       int  // number of its batch, from 1; zero without a batch
	WaitsForIdle bool // wait until no process uses its environment

	usedBy  nodeerr.Message // the processes that use its environment, which the policy ignores
	outside []*Outsider     // the nodes outside the run that share its environment
	// Change sets these for AwaitFree.
	deadline time.Time     // of the wait for processes to end
	sharing  []*fleet.Node // the nodes that follow it, or share its environment outside the run

	common map[string]string // by text, for reasons and notes that hold a node's own details: the text without them
}

// SetAbsent skips a node that was not reached.
func (p *Decision) SetAbsent(err error) {
	p.Action, p.Reasons, p.Hint = Absent, []string{p.TextOf(nodeerr.From(err))}, fault.Hint(err)
}

// SetRefused marks the node as refused. Nothing is sent to it.
func (p *Decision) SetRefused(hint string, why ...nodeerr.Message) {
	p.Action, p.Hint, p.Reasons = Refuse, hint, nil
	for _, m := range why {
		p.Reasons = append(p.Reasons, p.TextOf(m))
	}
}

// TextOf returns the text of a reason or note, and records the part that it shares with other nodes'.
func (p *Decision) TextOf(m nodeerr.Message) string {
	if m.Common != "" && m.Common != m.Text {
		if p.common == nil {
			p.common = map[string]string{}
		}
		p.common[m.Text] = m.Common
	}
	return m.Text
}

// commonOf returns reasons or notes without a node's own details.
func (p *Decision) commonOf(texts []string) []string {
	return lists.Map(texts, func(text string) string { return cmp.Or(p.common[text], text) })
}

// Common returns the reasons without the node's own details: equal for nodes with the same reasons.
func (p *Decision) Common() string { return strings.Join(p.commonOf(p.Reasons), "; ") }

// Decisions are a plan: one decision for each node, in inventory order.
type Decisions []*Decision

// rollout is the order in which the nodes are changed, without the nodes that stay unchanged. Nodes that share an
// environment are in the same group, the leader first.
func (p Decisions) rollout(sizes fleet.Serial) *fleet.Rollout {
	var ready, waiting [][]int
	for i, n := range p {
		switch {
		case n.Action != Install && n.Action != Rollback:
		case n.WaitsForIdle:
			waiting = append(waiting, p.membersOf(i))
		default:
			ready = append(ready, p.membersOf(i))
		}
	}
	return fleet.NewRollout(ready, waiting, sizes)
}

// membersOf returns the indexes of a node to be changed and of the nodes that follow it.
func (p Decisions) membersOf(leader int) []int {
	members := []int{leader}
	for i, n := range p {
		if n.Action == Shared && n.Leader == leader {
			members = append(members, i)
		}
	}
	return members
}

// AssignGroups sets the batch that will change each node, assuming that no batch fails.
func (p Decisions) AssignGroups(serial fleet.Serial) {
	p.rollout(serial).AssignGroups(func(node, group int) { p[node].Serial = group })
}

// Excluded returns the nodes that the plan leaves unchanged: refused, or not reached.
func (p Decisions) Excluded() []report.ExcludedNode {
	var excluded []report.ExcludedNode
	for _, n := range p {
		if n.Action == Refuse || n.Action == Absent {
			excluded = append(excluded, report.ExcludedNode{Name: n.Name, Unfit: n.Unfit, Hint: n.Hint})
		}
	}
	return excluded
}

// Err returns the error that the report of this plan will have, as far as the plan can predict it.
func (p Decisions) Err() error { return report.PlanError(len(p), p.Excluded()) }

// cellSep separates the cells of a row while dsbuild folds equal rows.
const cellSep = "\x00"

// Print writes the plan in about ten lines, with equal nodes in one row. details returns a node's cells for columns,
// and the texts to print before its notes.
func (p Decisions) Print(w io.Writer, columns []string, details func(i int) (cells, why []string)) error {
	var rows []ui.Named
	for i, n := range p {
		cells, why := details(i)
		if why = append(why, n.Notes...); n.Action == Refuse || n.Action == Absent {
			why = n.Reasons
		}
		row := func(why []string) string {
			all := append([]string{string(n.Action)}, cells...)
			return strings.Join(append(all, cmp.Or(strings.Join(why, "; "), "-")), cellSep)
		}
		rows = append(rows, ui.Named{Name: n.Name, Text: row(why), Cause: row(n.commonOf(why))})
	}
	var table [][]string
	for _, f := range ui.Fold(rows) {
		if f.Example != "" {
			f.Text += " (e.g. " + f.Example + ")"
		}
		table = append(table, append([]string{f.Cell}, strings.Split(f.Text, cellSep)...))
	}
	const most = 8
	if rest := len(table) - most; rest > 1 {
		table = append(table[:most], []string{"…", "", fmt.Sprintf("%d more rows (--json lists every node)", rest)})
	}
	heads := append(append([]string{"NODES", "ACTION"}, columns...), "WHY")
	if err := ui.Table(w, heads, table); err != nil {
		return err
	}
	return p.printGroups(w)
}

// printGroups prints the sizes of the groups of --serial, if there are any.
func (p Decisions) printGroups(w io.Writer) error {
	var sizes []int
	for _, n := range p {
		for len(sizes) < n.Serial {
			sizes = append(sizes, 0)
		}
		if n.Serial > 0 {
			sizes[n.Serial-1]++
		}
	}
	if len(sizes) == 0 {
		return nil
	}
	const most = 8
	words := make([]string, min(len(sizes), most))
	for i := range words {
		words[i] = strconv.Itoa(sizes[i])
	}
	if len(sizes) > most {
		words[most-1] = "…, " + strconv.Itoa(sizes[len(sizes)-1])
	}
	_, err := fmt.Fprintf(w, "%d batches: %s nodes\n", len(sizes), strings.Join(words, ", "))
	return err
}
