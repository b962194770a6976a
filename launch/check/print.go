package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Cause is one finding of several nodes. The texts may differ in names and addresses.
type Cause struct {
	Finding
	Node  string   `json:"node"` // the first of Nodes, which has Text
	Nodes []string `json:"nodes"`
	alike bool     // all nodes have exactly the same text
}

// groupCauses merges equal findings of several nodes: errors first, in the order of the
// checks.
func groupCauses(nodes []NodeReport) []Cause {
	all := []Cause{}
	place := map[string]int{}
	for _, n := range nodes {
		for _, f := range n.Findings {
			key := strings.Join([]string{string(f.Check), string(f.Level), cmp.Or(f.cause, f.Text)}, "\x00")
			at, seen := place[key]
			if !seen {
				at, place[key] = len(all), len(all)
				all = append(all, Cause{Finding: f, Node: n.Name, alike: true})
			}
			c := &all[at]
			c.alike = c.alike && c.Text == f.Text
			if !slices.Contains(c.Nodes, n.Name) {
				c.Nodes = append(c.Nodes, n.Name)
			}
		}
	}
	order := append([]Check{Connect}, Skippable()...)
	slices.SortStableFunc(all, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(slices.Index(order, a.Check), slices.Index(order, b.Check)))
	})
	return all
}

// String returns a human-readable cause.
func (c Cause) String() string {
	who := foldNames(c.Nodes)
	if len(c.Nodes) > 1 {
		who = fmt.Sprintf("%s (%d nodes)", who, len(c.Nodes))
	}
	if !c.alike {
		who += ", e.g. " + c.Node
	}
	kind := string(c.Check)
	if c.Level == Warning {
		kind += " (warning)"
	}
	text := fmt.Sprintf("%s: %s: %s", who, kind, c.Text)
	if c.Hint != "" {
		text += "\n  hint: " + c.Hint
	}
	return text
}

// maxCauses is the number of printed causes; --json lists all.
const maxCauses = 30

// Print writes the human-readable report: a table with one row for equal nodes, the merged
// findings, the joint checks, and a verdict.
func (r *Report) Print(w io.Writer) error {
	columns := []string{"NODES", "STATUS", "GPUS", "TORCH", "INTERFACE", "SECONDS"}
	if err := ui.Table(w, columns, r.tableRows()); err != nil {
		return err
	}
	lines := r.findingLines()
	if p := r.Pairs; p.Tried > 0 {
		lines = append(lines, fmt.Sprintf("connections between nodes: %d of %d", p.Tried-p.Failed, p.Tried))
	}
	for _, s := range r.Collectives {
		lines = append(lines, s.String())
	}
	for _, n := range r.NotChecked {
		lines = append(lines, fmt.Sprintf("not checked: %s: %s", n.Check, n.Why))
	}
	lines = append(lines, r.Verdict())
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, ui.Clean(line)); err != nil {
			return err
		}
	}
	return nil
}

// tableRows are the rows of the table. Nodes that differ only in time share a row.
func (r *Report) tableRows() [][]string {
	type row struct {
		cells, names []string
		slow         float64
	}
	var rows []*row
	for _, n := range r.Nodes {
		cells := []string{string(n.Status), "-", "-", cmp.Or(n.Interface, "-")}
		if n.Facts != nil {
			cells[1], cells[2] = fmt.Sprint(len(n.Facts.GPUs)), cmp.Or(n.Facts.Torch, "-")
		}
		at := slices.IndexFunc(rows, func(o *row) bool { return slices.Equal(o.cells, cells) })
		if at < 0 {
			at, rows = len(rows), append(rows, &row{cells: cells})
		}
		o := rows[at]
		o.names, o.slow = append(o.names, n.Name), max(o.slow, n.Seconds)
	}
	var table [][]string
	for _, o := range rows {
		table = append(table, append(append([]string{ui.FoldCell(o.names)}, o.cells...), fmt.Sprintf("%.1f", o.slow)))
	}
	return table
}

// findingLines writes the causes.
func (r *Report) findingLines() []string {
	lines := lists.Map(r.Causes[:min(len(r.Causes), maxCauses)], Cause.String)
	if more := len(r.Causes) - maxCauses; more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more findings; for all of them, use --report FILE.json", more))
	}
	return lines
}

// String writes a collective in one line.
func (s Sum) String() string {
	text := fmt.Sprintf("all-reduce with %s: %s on %s",
		s.Backend, ui.Count(s.Processes, "process"), ui.Count(len(s.Nodes), "node"))
	if len(s.Without) > 0 {
		text += fmt.Sprintf(" (without %s)", foldNames(s.Without))
	}
	if !s.OK {
		return text + ": " + s.Error
	}
	text += fmt.Sprintf(": all results correct; %s in %s", ui.Size(s.Bytes), shortTime(s.Seconds))
	if s.Bandwidth > 0 {
		text += fmt.Sprintf(", %s/s bus bandwidth", ui.Size(int64(s.Bandwidth)))
	}
	return text + fmt.Sprintf("; latency %s", shortTime(s.Latency))
}

// shortTime writes a time in suitable units.
func shortTime(seconds float64) string {
	switch {
	case seconds < 0.001:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// Verdict summarizes the report in one line.
func (r *Report) Verdict() string {
	total := len(r.Nodes)
	parts := []string{fmt.Sprintf("%d of %d nodes ready", r.Summary.OK, total)}
	if r.Ready {
		parts = []string{ui.Count(total, "node") + " ready for a job"}
		if n := len(r.Causes); n > 0 {
			parts = append(parts, ui.Count(n, "warning"))
		}
	}
	if n := r.Summary.Failed; n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	if n := r.Summary.Unreachable; n > 0 {
		parts = append(parts, fmt.Sprintf("%d unreachable", n))
	}
	if n := r.Summary.Skipped; n > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", n))
	}
	return strings.Join(parts, ", ")
}
