package page

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// view is what the template shows.
type view struct {
	Verdict     string
	Good        bool
	About       []fact
	Wheels      []wheel
	Counts      []count
	Total       int
	Differences []difference
	Agree       string // in what all nodes agree
	Groups      []group
	Reasons     []reason
	More        int // reasons that are not among them
	Remarks     []remark
	MoreRemarks int
	Columns     []column
	Rows        []row
	Data        data
}

// fact is something said about one thing.
type fact struct{ Label, Text string }

// wheel is one of those that were dealt with; in the table it is a number.
type wheel struct {
	Number       int
	Name, SHA256 string
}

// group is a wheel of a fleet that was asked what it needs: for whom it is, and
// why it is what it is.
type group struct {
	Name, Nodes string
	Count       int
	State       string
	Failed      bool
	Running     string // nodes that ran it before; "" where all did, or none
	For         string // what it was made for
	Why         []string
	Error       string
	Hint        hint
}

// count is how many nodes have a status; Before counts those left of it in the bar.
type count struct {
	Status    deploy.Status
	N, Before int
}

// difference is a property in which nodes differ.
type difference struct {
	Title  string
	Must   bool   // of those in which the nodes of one job must agree
	Whose  string // whose the norm is
	Column int
	Values []value
	More   int // values that are not among them
}

// value is what some nodes have; the norm is what most have.
type value struct {
	Text  string
	Norm  bool
	Odd   string // as in a cell; "" also of what is not known
	Nodes string // folded
	Count int
	Word  int // its place among the words of the data; unknown as itself
}

// reason is why nodes are not ok, in the words of the report.
type reason struct {
	Status  deploy.Status
	Nodes   string
	Count   int
	Step    string
	Error   string
	Example string // whose words these are, where others said it in other words
	Hint    hint
	Log     string // a file on the machine that wrote the page
}

// remark is what is worth knowing about nodes, and no fault.
type remark struct {
	Text  string
	Nodes string
	Count int
}

// hint is a hint, with the command that is in it.
type hint struct{ Before, Command, After string }

// row is nodes of which everything is equal that the table shows, but for what
// no two nodes have alike.
type row struct {
	Nodes string
	Count int
	Cells []cell
}

// newView prepares a report for the template.
func newView(r *deploy.Report, about deploy.About) view {
	members := newMembers(r)
	t := newTable(r, members)
	v := view{
		Verdict: ui.Clean(r.Verdict()),
		Good:    r.Err() == nil,
		About:   head(about),
		Total:   len(r.Nodes),
		Counts:  counts(r),
		Columns: t.columns,
	}
	v.Reasons, v.More = reasons(r)
	v.Remarks, v.MoreRemarks = remarks(r)
	for i, w := range r.Wheels {
		v.Wheels = append(v.Wheels, wheel{i + 1, ui.Clean(w.Name), ui.Clean(w.SHA256)})
	}
	folds := t.fold(members)
	for _, f := range folds {
		v.Rows = append(v.Rows, row{f.names, len(f.members), f.cells})
	}
	for _, g := range r.Groups {
		v.Groups = append(v.Groups, newGroup(g))
	}
	words := newWords()
	v.Data = newData(t, members, folds, words)
	v.Differences, v.Agree = t.differences(words)
	v.Data.Words = words.list // the last: all above are in it
	return v
}

// head says what was done, when, and by whom.
func head(about deploy.About) []fact {
	inventory := about.Inventory
	if inventory == "-" {
		inventory = "standard input"
	}
	var facts []fact
	for _, f := range []fact{{"Command", about.Command}, {"Inventory", inventory}, {"By", about.By}, {"At", about.At.Format("2006-01-02 15:04:05 MST")}} {
		if f.Text != "" {
			facts = append(facts, fact{f.Label, ui.Clean(f.Text)})
		}
	}
	return facts
}

// newGroup prepares a wheel of the report of ship.
func newGroup(g deploy.Group) group {
	words := map[string]string{"build": "to be built", "store": "was in the store", "placed": "was built before", "running": "ran on all of them", "built": fmt.Sprintf("built in %.0f s", g.Seconds), "failed": "failed"}
	view := group{
		Name: ui.Clean(g.Name), Nodes: ui.Clean(ui.FoldNames(g.Nodes)), Count: len(g.Nodes), State: cmp.Or(words[g.State], ui.Clean(g.State)), Failed: g.State == "failed",
		Error: ui.Clean(g.Error), Hint: newHint(g.Hint),
	}
	if n := len(g.Running); n > 0 && n < len(g.Nodes) {
		view.Running = ui.Clean(ui.FoldNames(g.Running))
	}
	var parts []string
	for _, p := range []fact{{"Python", g.Python}, {"torch", g.Torch}, {"CUDA", g.CUDA}, {"arch", strings.Join(g.Archs, ";")}, {"", g.CPU}, {"ops", strings.Join(g.Ops, ", ")}} {
		if p.Text != "" {
			parts = append(parts, strings.TrimSpace(p.Label+" "+p.Text))
		}
	}
	view.For = ui.Clean(strings.Join(parts, ", "))
	for _, why := range g.Why {
		view.Why = append(view.Why, ui.Clean(why))
	}
	return view
}

// counts counts nodes by status, the worst last.
func counts(r *deploy.Report) []count {
	s := r.Summary
	all := []count{
		{Status: deploy.OK, N: s.OK},
		{Status: deploy.Skipped, N: s.Skipped},
		{Status: deploy.Differs, N: s.Differs},
		{Status: deploy.Refused, N: s.Refused},
		{Status: deploy.Unreachable, N: s.Unreachable},
		{Status: deploy.Failed, N: s.Failed},
	}
	before := 0
	var some []count
	for _, c := range all {
		if c.N > 0 {
			c.Before = before
			some = append(some, c)
		}
		before += c.N
	}
	return some
}

// mostReasons is how many reasons are listed: nobody reads more, and the table
// has them all.
const mostReasons = 100

// reasons are the causes of the report.
func reasons(r *deploy.Report) (all []reason, more int) {
	causes := r.Why()
	more = max(0, len(causes)-mostReasons)
	for _, c := range causes[:len(causes)-more] {
		one := reason{Status: c.Status, Nodes: ui.Clean(ui.FoldNames(c.Nodes)), Count: len(c.Nodes), Step: ui.Clean(c.Step), Error: ui.Clean(c.Said), Hint: newHint(c.Hint)}
		if !c.Alike {
			one.Example = ui.Clean(c.Node)
		}
		one.Log = ui.Clean(c.Log)
		all = append(all, one)
	}
	return all, more
}

// mostRemarks is how many remarks are listed.
const mostRemarks = 30

// remarks puts together the nodes of which the same is worth knowing.
func remarks(r *deploy.Report) (all []remark, more int) {
	var said []ui.Named
	for _, n := range r.Nodes {
		for _, text := range n.Remarks {
			said = append(said, ui.Named{Name: n.Name, Text: text})
		}
	}
	folded := ui.Fold(said)
	more = max(0, len(folded)-mostRemarks)
	for _, f := range folded[:len(folded)-more] {
		all = append(all, remark{ui.Clean(f.Text), ui.Clean(f.Names), f.Count})
	}
	return all, more
}

// newHint finds the command in a hint: what follows a colon, up to what is said
// besides.
func newHint(text string) hint {
	text = ui.Clean(text)
	at := strings.Index(text, ": dsbuild ")
	if at < 0 {
		return hint{Before: text}
	}
	at += len(": ")
	end := len(text)
	for _, mark := range []string{" (", ";", ", or ", "\n"} {
		if i := strings.Index(text[at:], mark); i >= 0 {
			end = min(end, at+i)
		}
	}
	return hint{text[:at], text[at:end], text[end:]}
}
