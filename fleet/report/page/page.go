// Package page writes the report of a fleet as an HTML page.
package page

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Limits of the page's lists. The JSON report is complete.
const (
	maxReasons = 100
	maxNotes   = 30
	maxValues  = 30 // of a property; if there are more, each node may have its own
)

// Write writes the page of a report.
func Write(w io.Writer, r *report.Report, about report.About) error {
	columns := columns(r)
	page := htmlpage.Page{
		Title: htmlpage.Text(r.Verdict()), Outcome: htmlpage.OutcomeOf(r.Err() == nil),
		About: About(about), Counts: counts(r),
	}
	if r.Undone != nil {
		page.About = append(page.About, htmlpage.Fact{Label: "Undoes run", Text: htmlpage.Text(r.Undone.String())})
	}
	add := func(s htmlpage.Section) {
		if s.Table != nil || len(s.Items) > 0 || len(s.List) > 0 || s.After != "" {
			page.Sections = append(page.Sections, s)
		}
	}
	if len(r.Wheels) > 0 { // with their numbers, which the table of nodes uses
		t := &htmlpage.Table{Columns: []htmlpage.Column{{Title: "Wheel"}, {Title: "File"}, {Title: "sha256"}}}
		for i, w := range r.Wheels {
			sum := htmlpage.Text(w.SHA256)
			t.Rows = append(t.Rows, htmlpage.Row{Cells: []htmlpage.Cell{
				{Text: htmlpage.Text(fmt.Sprint(i + 1))}, {Text: htmlpage.Text(w.Name)}, {Text: sum, Copy: sum},
			}})
		}
		add(htmlpage.Section{Title: "Wheels", Table: t})
	}
	add(htmlpage.Section{Title: "Wheels and their nodes", Items: groups(r)})
	add(reasonsSection(r))
	add(differences(columns))
	add(notes(r))
	add(htmlpage.Section{Title: "Nodes", Table: nodes(r, columns)})
	return page.Write(w)
}

// About describes a run for the head of a page.
func About(about report.About) []htmlpage.Fact {
	inventory := about.Inventory
	if inventory == "-" {
		inventory = "standard input"
	}
	return []htmlpage.Fact{
		{Label: "Command", Text: htmlpage.Text(about.Command)},
		{Label: "Inventory", Text: htmlpage.Text(inventory)},
		{Label: "By", Text: htmlpage.Text(about.By)},
		{Label: "At", Text: htmlpage.Text(about.At.Format("2006-01-02 15:04:05 MST"))},
	}
}

// counts counts nodes by status, the worst status last.
func counts(r *report.Report) []htmlpage.Count {
	s := r.Summary
	var some []htmlpage.Count
	for _, c := range []struct {
		status report.Status
		n      int
	}{
		{report.OK, s.OK},
		{report.Skipped, s.Skipped},
		{report.Differs, s.Differs},
		{report.Refused, s.Refused},
		{report.Unreachable, s.Unreachable},
		{report.Failed, s.Failed},
	} {
		if c.n > 0 {
			some = append(some, htmlpage.Count{Status: string(c.status), N: c.n})
		}
	}
	return some
}

// groups lists the wheels in the report of ship, each with the reasons for its choice.
func groups(r *report.Report) []htmlpage.Item {
	var items []htmlpage.Item
	for _, g := range r.Groups {
		states := map[string]string{
			"build": "to be built", "store": "from the wheel cache", "placed": "already built", "running": "already running on all nodes",
			"built": fmt.Sprintf("built in %.0f s", g.Seconds), "failed": "failed",
		}
		item := htmlpage.Item{
			Title: htmlpage.Text(g.Name + " " + cmp.Or(states[g.State], g.State)), Nodes: folded(g.Nodes), Count: len(g.Nodes),
			Text: htmlpage.Text(g.Error), Hint: htmlpage.Text(g.Hint), Status: "done",
		}
		if g.State == "failed" {
			item.Status = "failed"
		}
		if n := len(g.Running); n > 0 && n < len(g.Nodes) {
			item.List = append(item.List, "Already running on "+folded(g.Running)+".")
		}
		var words []string
		for _, w := range [][2]string{
			{"Python", g.Python},
			{"torch", g.Torch},
			{"CUDA", g.CUDA},
			{"arch", strings.Join(g.Archs, ";")},
			{"", g.CPU},
			{"ops", strings.Join(g.Ops, ", ")},
		} {
			if w[1] != "" {
				words = append(words, strings.TrimSpace(w[0]+" "+w[1]))
			}
		}
		item.List = append(item.List, htmlpage.Text(strings.Join(words, ", ")))
		for _, why := range g.Why {
			item.List = append(item.List, htmlpage.Text(why))
		}
		items = append(items, item)
	}
	return items
}

// reasonsSection lists the causes of failures, in the words of the report.
func reasonsSection(r *report.Report) htmlpage.Section {
	s := htmlpage.Section{Title: "Causes"}
	causes := r.Why()
	if more := len(causes) - maxReasons; more > 0 {
		s.After = htmlpage.Text(fmt.Sprintf("%d more in the JSON report.", more))
		causes = causes[:maxReasons]
	}
	for _, c := range causes {
		item := htmlpage.Item{
			Status: string(c.Status), Title: htmlpage.Text(c.Status), Nodes: folded(c.Nodes), Count: len(c.Nodes),
			Text: htmlpage.Text(c.Said), Hint: htmlpage.Text(c.Hint), Log: htmlpage.Text(c.Log),
		}
		if c.Step != "" {
			item.Title += htmlpage.Text(" at " + c.Step)
		}
		if !c.Alike {
			item.From = htmlpage.Text(c.Node)
		}
		s.Items = append(s.Items, item)
	}
	return s
}

// notes lists the notes on all nodes, each once with its nodes.
func notes(r *report.Report) htmlpage.Section {
	s := htmlpage.Section{Title: "Notes"}
	var said []ui.Named
	for _, n := range r.Nodes {
		for _, text := range n.Notes {
			said = append(said, ui.Named{Name: n.Name, Text: text})
		}
	}
	all := ui.Fold(said)
	if more := len(all) - maxNotes; more > 0 {
		s.After = htmlpage.Text(fmt.Sprintf("%d more in the JSON report.", more))
		all = all[:maxNotes]
	}
	for _, f := range all {
		s.List = append(s.List, htmlpage.Text(f.Text+": "+f.Names))
	}
	return s
}

// folded writes the names of nodes as ranges.
func folded(names []string) htmlpage.Text { return htmlpage.Text(ui.FoldNames(names)) }
