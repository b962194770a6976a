package check

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed page.html.tmpl
var pageTemplate string

//go:embed page.css
var pageStyle string

// view holds the cleaned texts of the page.
type view struct {
	htmlpage.Page
	Good     bool
	Verdict  string
	About    [][2]string
	Causes   []viewCause
	Together []string
	Left     []string
	Rows     [][]string
}

type viewCause struct {
	Level, Check, Nodes, Text, Hint string
	Count                           int
	As                              string // the node that said Text, if other nodes used other words
}

// Page writes the report as one HTML page. It loads nothing and runs no scripts: the
// nodes' words are escaped, and the page's policy allows only its one style.
func (r *Report) Page(w io.Writer, about report.About) error {
	tmpl, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return err
	}
	v := view{
		Page:    htmlpage.New([]byte(pageStyle), nil),
		Good:    r.Ready,
		Verdict: ui.Clean(r.Verdict()),
		About: [][2]string{
			{"command", about.Command},
			{"inventory", about.Inventory},
			{"by", about.By},
			{"at", about.At.Format(time.RFC1123Z)},
			{"master", ui.Clean(r.Master.Address)},
		},
	}
	for _, c := range r.Causes {
		one := viewCause{string(c.Level), string(c.Check), ui.FoldNames(c.Nodes), ui.Clean(c.Text), ui.Clean(c.Hint), len(c.Nodes), ""}
		if !c.alike {
			one.As = c.Node
		}
		v.Causes = append(v.Causes, one)
	}
	for _, line := range r.jointLines() {
		v.Together = append(v.Together, ui.Clean(line))
	}
	for _, n := range r.NotChecked {
		v.Left = append(v.Left, string(n.Check)+": "+ui.Clean(n.Why))
	}
	for _, row := range r.tableRows() {
		for i := range row {
			row[i] = ui.Clean(row[i])
		}
		v.Rows = append(v.Rows, row)
	}
	var page strings.Builder
	if err := tmpl.Execute(&page, v); err != nil {
		return err
	}
	_, err = io.WriteString(w, page.String())
	return err
}
