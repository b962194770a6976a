package nightly

import (
	"io"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// maxShown bounds the history that is shown.
const maxShown = 30

// writePage writes the report as one HTML page; nights are the newest first.
func (r *Report) writePage(w io.Writer, nights []past) error {
	stages := r.stageLines()
	p := htmlpage.Page{
		Title: htmlpage.Text(r.verdictLine()), Outcome: htmlpage.GoodIf(r.Good),
		About: []htmlpage.Fact{
			{Label: "Night", Text: htmlpage.Text(r.ID)},
			{Label: "Began", Text: htmlpage.Text(r.Started.Format(time.RFC1123Z))},
			{Label: "Took", Text: htmlpage.Text(ui.Duration(r.Ended.Sub(r.Started)))},
			{Label: "By", Text: htmlpage.Text(r.By)},
		},
	}
	if r.Resumed {
		p.About = append(p.About, htmlpage.Fact{Label: "Resumed", Text: "an earlier run of this night was interrupted"})
	}
	for _, line := range stages[:len(stages)-1] { // the last one says where the page is
		p.Lines = append(p.Lines, htmlpage.Text(line))
	}
	for _, c := range []htmlpage.Count{
		{Status: string(Built), N: r.Summary.Built},
		{Status: string(Stored), N: r.Summary.Stored},
		{Status: string(Unchanged), N: r.Summary.Unchanged},
		{Status: string(Failed), N: r.Summary.Failed},
	} {
		if c.N > 0 {
			p.Counts = append(p.Counts, c)
		}
	}
	p.Sections = []htmlpage.Section{
		{Title: "Wheels", Table: r.wheelTable()},
		{Title: "Nights", Table: r.nightTable(nights[:min(len(nights), maxShown)])},
	}
	return p.Write(w)
}

// wheelTable shows the wheels with their changes since the build before.
func (r *Report) wheelTable() *htmlpage.Table {
	t := &htmlpage.Table{Main: true, Columns: []htmlpage.Column{
		{Title: "Wheel"}, {Title: "Status"}, {Title: "Size", Number: true}, {Title: "Time", Number: true}, {Title: "Since last night"},
	}}
	for i, texts := range r.rows() {
		e := r.Entries[i]
		row := htmlpage.Row{Status: string(e.Status)}
		for _, text := range texts {
			row.Cells = append(row.Cells, htmlpage.Cell{Text: htmlpage.Text(text)})
		}
		row.Cells[1].Status = row.Status
		changes := &row.Cells[4]
		if e.Build != nil {
			row.Cells[0].Small = htmlpage.Text(e.Build.Version)
		}
		if at := compareURL(e); at != "" && e.Error == "" {
			changes.Links = []htmlpage.Link{{Text: "commits", To: at}}
		}
		if e.Hint != "" {
			changes.Small = htmlpage.Text("\nhint: " + e.Hint)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// nightTable shows the result and the build time of each wheel in each night.
func (r *Report) nightTable(nights []past) *htmlpage.Table {
	t := &htmlpage.Table{Columns: []htmlpage.Column{{Title: "Night"}}}
	for _, e := range r.Entries {
		t.Columns = append(t.Columns, htmlpage.Column{Title: htmlpage.Text(e.Name)})
	}
	for _, n := range nights {
		row := htmlpage.Row{Cells: []htmlpage.Cell{{Text: htmlpage.Text(n.Started.Format("2006-01-02 15:04"))}}}
		for _, e := range r.Entries {
			cell := htmlpage.Cell{Text: "–"}
			if was, ok := n.Entries[e.Name]; ok {
				cell = htmlpage.Cell{Text: htmlpage.Text(was.Status), Status: string(was.Status)}
				if was.Seconds > 0 {
					cell.Text += htmlpage.Text(" " + formatSeconds(was.Seconds))
				}
			}
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// compareURL returns the address of the changes between two commits, "" if it is not known.
func compareURL(e *EntryReport) string {
	if e.Before == nil || e.Build == nil || e.Before.Commit == "" || e.Build.Commit == "" || e.Before.Commit == e.Build.Commit {
		return ""
	}
	at, ok := strings.CutPrefix(e.Build.Source, "git+https://github.com/")
	if !ok {
		return ""
	}
	at, _, _ = strings.Cut(at, "@")
	return "https://github.com/" + strings.TrimSuffix(at, ".git") + "/compare/" + e.Before.Commit + "..." + e.Build.Commit
}
