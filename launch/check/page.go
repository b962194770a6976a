package check

import (
	"io"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
)

// Page writes the report as one HTML page.
func (r *Report) Page(w io.Writer, about report.About) error {
	head := append(page.About(about), htmlpage.Fact{Label: "Master", Text: htmlpage.Text(r.Master.Address)})
	found := htmlpage.Section{Title: "Findings"}
	for _, c := range r.Causes {
		item := htmlpage.Item{
			Status: string(c.Level), Title: htmlpage.Text(string(c.Level) + " " + string(c.Check)),
			Nodes: htmlpage.Text(foldNames(c.Nodes)), Count: len(c.Nodes), Text: htmlpage.Text(c.Text), Hint: htmlpage.Text(c.Hint),
		}
		if !c.alike {
			item.From = htmlpage.Text(c.Node)
		}
		found.Items = append(found.Items, item)
	}
	if len(r.Causes) == 0 {
		found.After = "Nothing."
	}
	sections := []htmlpage.Section{found}
	if lines := r.jointLines(); len(lines) > 0 {
		together := htmlpage.Section{Title: "Together"}
		for _, line := range lines {
			together.List = append(together.List, htmlpage.Text(line))
		}
		sections = append(sections, together)
	}
	if len(r.NotChecked) > 0 {
		left := htmlpage.Section{Title: "Not checked"}
		for _, n := range r.NotChecked {
			left.List = append(left.List, htmlpage.Text(string(n.Check)+": "+n.Why))
		}
		sections = append(sections, left)
	}
	var counts []htmlpage.Count
	for _, status := range []report.Status{report.OK, report.Skipped, report.Unreachable, report.Failed} {
		n := 0
		for _, node := range r.Nodes {
			if node.Status == status {
				n++
			}
		}
		if n > 0 {
			counts = append(counts, htmlpage.Count{Status: string(status), N: n})
		}
	}
	nodes := &htmlpage.Table{Main: true}
	for _, title := range tableHead() {
		nodes.Columns = append(nodes.Columns, htmlpage.Column{Title: htmlpage.Text(title)})
	}
	for _, cells := range r.tableRows() {
		row := htmlpage.Row{Status: cells[1]}
		for _, text := range cells {
			row.Cells = append(row.Cells, htmlpage.Cell{Text: htmlpage.Text(text)})
		}
		row.Cells[1].Status = row.Status
		nodes.Rows = append(nodes.Rows, row)
	}
	return htmlpage.Page{
		Title: htmlpage.Text(r.Verdict()), Outcome: htmlpage.GoodIf(r.Ready), About: head, Counts: counts,
		Sections: append(sections, htmlpage.Section{Title: "Nodes", Table: nodes}),
	}.Write(w)
}
