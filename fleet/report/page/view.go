package page

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// view is the data of the template.
type view struct {
	Verdict     string
	Good        bool
	About       []fact
	Wheels      []wheel
	Counts      []count
	Total       int
	Differences []difference
	Agree       string // the titles of the properties in which all nodes agree
	Groups      []group
	Reasons     []reason
	More        int // number of reasons left out
	Remarks     []remark
	MoreRemarks int
	Columns     []column
	Rows        []row
	Data        data
}

// fact is a labelled text.
type fact struct{ Label, Text string }

// wheel is a wheel of the report; the table shows its number.
type wheel struct {
	Number       int
	Name, SHA256 string
}

// group is a wheel in the report of ship, with its nodes and the reasons for its choice.
type group struct {
	Name, Nodes string
	Count       int
	State       string
	Failed      bool
	Running     string // nodes that ran it before; "" if all did, or none
	For         string // its target: Python, torch, CUDA, arch, CPU and ops
	Why         []string
	Error       string
	Hint        hint
}

// count is the number of nodes with a status; Before is the number of nodes to the left of them
// in the bar.
type count struct {
	Status    report.Status
	N, Before int
}

// difference is a property in which nodes differ.
type difference struct {
	Title  string
	Must   bool   // the nodes of one job must agree in it
	Whose  string // the text beside the norm: "most nodes" or "the first value"
	Column int
	Values []value
	More   int // number of values left out
}

// value is a value with the nodes that have it; Norm marks the most frequent one.
type value struct {
	Text  string
	Norm  bool
	Odd   string // as in a cell; "" also for an unknown value
	Nodes string // folded
	Count int
	Word  int // index among the words of the data; the constant unknown for an unknown value
}

// reason is a cause of failure, in the words of the report.
type reason struct {
	Status  report.Status
	Nodes   string
	Count   int
	Step    string
	Error   string
	Example string // the node whose words these are, if others used other words
	Hint    hint
	Log     string // a file on the machine that wrote the page
}

// remark is a note about nodes that is not a fault.
type remark struct {
	Text  string
	Nodes string
	Count int
}

// hint is a hint, split around the command in it.
type hint struct{ Before, Command, After string }

// row is a row of the table: nodes with the same cause and with equal cells, except in columns
// of numbers.
type row struct {
	Nodes string
	Count int
	Cells []cell
}

// newView prepares a report for the template.
func newView(r *report.Report, about report.About) view {
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
	v.Data.Words = words.list // last, because the calls above add words
	return v
}

// head returns the command, the inventory, the user and the time.
func head(about report.About) []fact {
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

// newGroup prepares a group of the report of ship.
func newGroup(g report.Group) group {
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

// counts counts nodes by status, the worst status last.
func counts(r *report.Report) []count {
	s := r.Summary
	all := []count{
		{Status: report.OK, N: s.OK},
		{Status: report.Skipped, N: s.Skipped},
		{Status: report.Differs, N: s.Differs},
		{Status: report.Refused, N: s.Refused},
		{Status: report.Unreachable, N: s.Unreachable},
		{Status: report.Failed, N: s.Failed},
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

// maxReasons bounds the listed reasons: nobody reads more, and the table has them all.
const maxReasons = 100

// reasons returns the causes of the report.
func reasons(r *report.Report) (all []reason, more int) {
	causes := r.Why()
	more = max(0, len(causes)-maxReasons)
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

// maxRemarks bounds the listed remarks.
const maxRemarks = 30

// remarks returns the remarks, each once with all its nodes.
func remarks(r *report.Report) (all []remark, more int) {
	var said []ui.Named
	for _, n := range r.Nodes {
		for _, text := range n.Remarks {
			said = append(said, ui.Named{Name: n.Name, Text: text})
		}
	}
	folded := ui.Fold(said)
	more = max(0, len(folded)-maxRemarks)
	for _, f := range folded[:len(folded)-more] {
		all = append(all, remark{ui.Clean(f.Text), ui.Clean(f.Names), f.Count})
	}
	return all, more
}

// newHint splits a hint around its command. The command follows a colon and ends before a
// bracket, a semicolon, ", or " or a line break.
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
