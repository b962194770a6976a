package page

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
)

// column is a column of the table of nodes, after the names.
type column struct {
	title htmlpage.Text
	of    func(report.Node) string // "" is not known

	// Only for properties in which nodes are compared:
	compared bool
	diff     *report.Difference // nil: nodes agree
	unknown  bool               // an empty value means that the probe could not find it out
	norm     string             // the most frequent known value, if nodes differ
}

// columns returns the columns: first the outcome, then the compared properties, the most important
// first, without empty columns.
func columns(r *report.Report) []column {
	numbers := map[string]string{}
	for i, w := range r.Wheels {
		numbers[w.Name] = strconv.Itoa(i + 1)
	}
	all := []column{
		{title: "Status", of: func(n report.Node) string { return string(n.Status) }},
		{title: "Step", of: func(n report.Node) string { return n.Step }},
		{title: "Wheel", of: func(n report.Node) string { return numbers[n.Wheel] }},
		{title: "Before", of: before},
	}
	properties := node.Properties()
	for _, d := range r.Differences {
		if !slices.ContainsFunc(properties, func(p node.Property) bool { return p.Name == d.What }) {
			properties = append(properties, node.Property{Name: d.What}) // a package that came with DeepSpeed
		}
	}
	for _, p := range properties {
		c := column{
			title: htmlpage.Text(node.Title(p.Name)), compared: true, unknown: p.Unknown,
			of: func(n report.Node) string { return value(p, n) },
		}
		if p.Name == "wheel" {
			c.title = "wheel's sha256"
		}
		if at := slices.IndexFunc(r.Differences, func(d report.Difference) bool { return d.What == p.Name }); at >= 0 {
			c.addDifference(&r.Differences[at])
		} else if p.Unknown {
			continue // where nodes agree, it is of no interest
		}
		all = append(all, c)
	}
	return slices.DeleteFunc(all, func(c column) bool {
		return !slices.ContainsFunc(r.Nodes, func(n report.Node) bool { return c.of(n) != "" })
	})
}

// value is a property of a node. The facts are from the probe, before any change: DeepSpeed's are from
// the end.
func value(p node.Property, n report.Node) string {
	if n.Facts == nil {
		return ""
	}
	f := *n.Facts
	f.DeepSpeed = nil
	if n.After != nil {
		f.DeepSpeed = &node.Installed{Version: n.After.Version, SHA256: n.After.SHA256}
	}
	return p.Of(f)
}

// addDifference takes the values of the column from a difference.
func (c *column) addDifference(d *report.Difference) {
	c.diff = d
	shown := map[string]string{} // by node
	for _, v := range d.Values {
		for _, name := range v.Nodes {
			if v.Value != "" || !c.unknown {
				shown[name] = c.shown(v.Value)
			}
		}
	}
	c.of = func(n report.Node) string { return shown[n.Name] }
	c.norm = c.shown(d.Values[0].Value)
	if d.Values[0].Value == "" && c.unknown && len(d.Values) > 1 {
		c.norm = c.shown(d.Values[1].Value)
	}
}

// shown is a value of a difference as the page displays it.
func (c column) shown(value string) string {
	switch {
	case value == "" && c.unknown:
		return "unknown"
	case c.diff.What == "wheel":
		return report.ShortSum(value)
	}
	return cmp.Or(value, "none")
}

// odd marks a value: "" if it is the norm, "must" if a node with it does not run the same thing as the
// others, else "may".
func (c column) odd(value string) string {
	switch {
	case c.diff == nil, value == "", value == "unknown", value == c.norm:
		return ""
	case c.diff.Must:
		return "must"
	}
	return "may"
}

// before is the DeepSpeed that a change replaced, or "".
func before(n report.Node) string {
	switch {
	case n.Before == nil && n.Changed:
		return "none"
	case n.Before == nil, n.After != nil && *n.After == *n.Before:
		return ""
	}
	return n.Before.Build()
}

// nodes returns the table of nodes. Nodes with the same cause and equal cells share a row, which shows the
// seconds of the slowest.
func nodes(r *report.Report, columns []column) *htmlpage.Table {
	causes := map[string]int{}
	for i, c := range r.Why() {
		for _, name := range c.Nodes {
			causes[name] = i + 1
		}
	}
	t := &htmlpage.Table{Main: true, Columns: []htmlpage.Column{{Title: "Node"}}}
	for _, c := range columns {
		t.Columns = append(t.Columns, htmlpage.Column{Title: c.title})
	}
	t.Columns = append(t.Columns, htmlpage.Column{Title: "Seconds", Number: true})
	places := map[string]int{}
	var names [][]string
	var slowest []float64
	for _, n := range r.Nodes {
		key := []string{strconv.Itoa(causes[n.Name])}
		for _, c := range columns {
			key = append(key, c.of(n))
		}
		at, seen := places[strings.Join(key, "\x00")]
		if !seen {
			at = len(t.Rows)
			places[strings.Join(key, "\x00")] = at
			t.Rows, names, slowest = append(t.Rows, newRow(n, columns)), append(names, nil), append(slowest, 0)
		}
		names[at], slowest[at] = append(names[at], n.Name), max(slowest[at], n.Total())
		t.Rows[at].Nodes = append(t.Rows[at].Nodes, htmlpage.Text(n.Name))
	}
	for i := range t.Rows {
		t.Rows[i].Cells[0] = named(names[i])
		t.Rows[i].Cells = append(t.Rows[i].Cells, htmlpage.Cell{Text: htmlpage.Text(fmt.Sprintf("%.1f", slowest[i]))})
	}
	return t
}

// newRow returns the row of a node, without its name and its seconds.
func newRow(n report.Node, columns []column) htmlpage.Row {
	row := htmlpage.Row{Status: string(n.Status), Cells: make([]htmlpage.Cell, 1)}
	for _, c := range columns {
		cell := htmlpage.Cell{Text: htmlpage.Text(c.of(n)), Odd: c.odd(c.of(n))}
		if c.title == "Status" {
			cell.Status = row.Status
		}
		row.Cells = append(row.Cells, cell)
	}
	return row
}

// named is a cell with the names of nodes.
func named(names []string) htmlpage.Cell {
	c := htmlpage.Cell{Text: folded(names)}
	if len(names) > 1 {
		c.Small = htmlpage.Text(fmt.Sprintf("%d nodes", len(names)))
	}
	return c
}

// differences lists the properties in which nodes differ, with the nodes of each value, and names those in
// which they agree.
func differences(columns []column) htmlpage.Section {
	out := &htmlpage.Table{Columns: []htmlpage.Column{{Title: "Property"}, {Title: "Value"}, {Title: "Nodes"}}}
	var agree []string
	for _, c := range columns {
		switch {
		case !c.compared:
			continue
		case c.diff == nil:
			agree = append(agree, string(c.title))
			continue
		}
		head := htmlpage.Cell{Text: c.title, Small: "may differ"}
		if c.diff.Must {
			head.Small = "must agree"
		}
		for i, v := range c.diff.Values {
			if i == maxValues {
				rest := fmt.Sprintf("and %d other values", len(c.diff.Values)-maxValues)
				out.Rows = append(out.Rows, htmlpage.Row{Dim: true, Cells: []htmlpage.Cell{{}, {Text: htmlpage.Text(rest)}, {}}})
				break
			}
			value := c.shown(v.Value)
			out.Rows = append(out.Rows, htmlpage.Row{Cells: []htmlpage.Cell{
				head, {Text: htmlpage.Text(value), Odd: c.odd(value)}, named(v.Nodes),
			}})
			head = htmlpage.Cell{}
		}
	}
	s := htmlpage.Section{Title: "Differences", Table: out}
	if len(out.Rows) == 0 {
		s.Table, s.List = nil, []htmlpage.Text{"No differences in the compared properties."}
	}
	if len(agree) > 0 {
		s.After = htmlpage.Text("All reachable nodes agree on " + strings.Join(agree, ", ") + ".")
	}
	return s
}
