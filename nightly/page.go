package nightly

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed page.html.tmpl page.css
var files embed.FS

// view is the data of the page.
type view struct {
	htmlpage.Page
	Good    bool
	Verdict string
	About   [][2]string
	Wheels  []viewWheel
	Stages  []string
	Nights  []viewNight // the newest first
	Plot    *plot
}

type viewWheel struct {
	*EntryReport
	Size, Took, Compare string
}

type viewNight struct {
	At    string
	Cells []viewCell // in the order of the wheels
}

type viewCell struct {
	Status Status
	Text   string
}

// writePage writes the report as one HTML page that asks for nothing and runs nothing.
func (r *Report) writePage(w io.Writer, nights []past) error {
	tmpl, err := template.ParseFS(files, "page.html.tmpl")
	if err != nil {
		return err
	}
	style, err := files.ReadFile("page.css")
	if err != nil {
		return err
	}
	v := view{
		Page: htmlpage.New(style, nil), Good: r.Good, Verdict: r.verdictLine(), Stages: r.stageLines(),
		About: [][2]string{
			{"night", r.ID}, {"began", r.Started.Format(time.RFC1123Z)}, {"took", ui.Duration(r.Ended.Sub(r.Started))}, {"by", r.By},
		},
		Plot: newPlot(r, nights),
	}
	v.Stages = v.Stages[:len(v.Stages)-1] // where the page is, its reader knows
	if r.Resumed {
		v.About = append(v.About, [2]string{"resumed", "an earlier run of this night was interrupted"})
	}
	for _, e := range r.Entries {
		row := viewWheel{EntryReport: e, Compare: compareURL(e)}
		if e.Build != nil {
			row.Size = ui.Size(e.Build.Size)
		}
		if e.Seconds > 0 {
			row.Took = formatSeconds(e.Seconds)
		}
		v.Wheels = append(v.Wheels, row)
	}
	for _, n := range nights[:min(len(nights), maxShown)] {
		row := viewNight{At: n.Started.Format("2006-01-02 15:04")}
		for _, e := range r.Entries {
			was, ok := n.Entries[e.Name]
			cell := viewCell{Status: was.Status, Text: string(was.Status)}
			if !ok {
				cell = viewCell{Text: "–"}
			}
			if was.Seconds > 0 {
				cell.Text += " " + formatSeconds(was.Seconds)
			}
			row.Cells = append(row.Cells, cell)
		}
		v.Nights = append(v.Nights, row)
	}
	return tmpl.Execute(w, v)
}

// maxShown bounds the history that is shown.
const maxShown = 30

// verdictLine is the night in a line.
func (r *Report) verdictLine() string {
	if err := r.Err(); err != nil {
		return err.Error()
	}
	s := r.Summary
	return fmt.Sprintf("%d wheels: %d built, %d from the store, %d unchanged", len(r.Entries), s.Built, s.Stored, s.Unchanged)
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

// plot is how long building took, night by night: a line for each wheel.
type plot struct {
	Width, Height int
	Top           string // the longest time
	From, To      string // the nights
	Lines         []plotLine
}

type plotLine struct {
	Name   string
	Points string // of a polyline
	Dots   []plotDot
	Class  string
}

type plotDot struct {
	X, Y  int
	Title string
}

// The measures of the plot, in its own units.
const (
	plotWidth, plotHeight = 900, 220
	plotLeft              = 70 // for the words at the axis
	plotColours           = 6
)

// newPlot returns nil if there are too few points for a line.
func newPlot(r *Report, nights []past) *plot {
	most, first, last := 0.0, -1, -1
	old := slices.Clone(nights)
	slices.Reverse(old)
	for i, n := range old {
		for _, w := range n.Entries {
			if w.Seconds <= 0 {
				continue
			}
			most, last = max(most, w.Seconds), i
			if first < 0 {
				first = i
			}
		}
	}
	if first == last { // none, or one
		return nil
	}
	p := &plot{Width: plotWidth, Height: plotHeight, Top: formatSeconds(most), From: old[first].Started.Format("2006-01-02"), To: old[last].Started.Format("2006-01-02")}
	for i, e := range r.Entries {
		line := plotLine{Name: e.Name, Class: fmt.Sprintf("c%d", i%plotColours)}
		var points []string
		for j, n := range old[first : last+1] {
			w := n.Entries[e.Name]
			if w.Seconds <= 0 {
				continue
			}
			d := plotDot{
				X:     plotLeft + j*(plotWidth-plotLeft-10)/(last-first),
				Y:     plotHeight - 10 - int(w.Seconds/most*float64(plotHeight-20)),
				Title: fmt.Sprintf("%s, %s: %s", e.Name, n.Started.Format("2006-01-02"), formatSeconds(w.Seconds)),
			}
			line.Dots = append(line.Dots, d)
			points = append(points, fmt.Sprintf("%d,%d", d.X, d.Y))
		}
		line.Points = strings.Join(points, " ")
		if len(points) > 0 {
			p.Lines = append(p.Lines, line)
		}
	}
	return p
}
