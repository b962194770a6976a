package page

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/node"
)

// member is a node of the report, prepared for comparison.
type member struct {
	report.Node
	facts *node.Facts // nil: no facts are known
	wheel string      // its wheel's number in the report
	cause int         // number of the cause for which it is not ok; 0 if it is ok
}

// newMembers prepares the nodes of a report. The facts are from the probe, before any change;
// only DeepSpeed is replaced by the version at the end.
func newMembers(r *report.Report) []member {
	numbers := map[string]string{}
	for i, w := range r.Wheels {
		numbers[w.Name] = strconv.Itoa(i + 1)
	}
	causes := map[string]int{}
	for i, c := range r.Why() {
		for _, name := range c.Nodes {
			causes[name] = i + 1
		}
	}
	members := make([]member, len(r.Nodes))
	for i, n := range r.Nodes {
		members[i] = member{Node: n, wheel: numbers[n.Wheel], cause: causes[n.Name]}
		if n.Facts == nil {
			continue
		}
		f := *n.Facts
		f.DeepSpeed = nil
		if n.After != nil {
			f.DeepSpeed = &node.Installed{Version: n.After.Version, SHA256: n.After.SHA256}
		}
		members[i].facts = &f
	}
	return members
}

// column is one property of every node. A compared column also holds the differences between
// nodes.
type column struct {
	key    string
	title  htmlpage.Text
	number bool // a number that each node has for itself: a folded row shows its span

	of   func(member) string
	is   *node.Property // nil: not compared
	rare bool           // shown only if nodes differ

	diff        *report.Difference // nil: nodes agree
	has         map[string]string  // value by node, if nodes differ
	norm, whose string             // the most frequent value, and a text for the nodes that have it
}

// table holds the columns after the names of the nodes, and the cells of each node.
type table struct {
	columns []column
	cells   [][]htmlpage.Cell // by member; the first is its name
}

// newTable chooses the columns and fills the cells.
func newTable(r *report.Report, members []member) *table {
	t := &table{columns: columns(r.Differences)}
	t.columns = slices.DeleteFunc(t.columns, func(c column) bool { return c.needless(members) })
	for _, m := range members {
		cells := []htmlpage.Cell{{Text: htmlpage.Text(m.Name)}}
		for _, c := range t.columns {
			cells = append(cells, c.cell(m))
		}
		t.cells = append(t.cells, cells)
	}
	return t
}

// needless reports whether a column has nothing to show: it is empty, or it is rare and the nodes
// agree.
func (c column) needless(members []member) bool {
	if c.is != nil {
		return c.rare && c.diff == nil
	}
	return !slices.ContainsFunc(members, func(m member) bool { return c.of(m) != "" })
}

// cell returns the cell of a node. It is empty for what is not known, such as all that Python reports on a
// node without a usable Python.
func (c column) cell(m member) htmlpage.Cell {
	switch {
	case c.key == "status":
		return htmlpage.Cell{Text: htmlpage.Text(m.Status), Status: string(m.Status)}
	case c.is == nil:
		return htmlpage.Cell{Text: htmlpage.Text(c.of(m))}
	case m.facts == nil:
		return htmlpage.Cell{}
	}
	var value string
	var known bool
	if c.diff == nil {
		value = c.is.Of(*m.facts)
		known = value != "" || m.facts.Python != ""
	} else {
		value, known = c.has[m.Name]
	}
	if !known || c.unknown(value) {
		return htmlpage.Cell{}
	}
	return htmlpage.Cell{Text: c.shown(value), Odd: c.weight(value)}
}

// unknown reports whether an empty value means that the probe could not find out the property.
func (c column) unknown(value string) bool { return value == "" && c.is.Unknown }

// weight rates a value: "" if it is the norm, "must" if a node with it does not run the same
// thing as the others, else "may".
func (c column) weight(value string) string {
	switch {
	case c.diff == nil, c.unknown(value), value == c.norm:
		return ""
	case c.diff.Must && c.is.Key(value) != c.is.Key(c.norm):
		return "must"
	}
	return "may"
}

// setNorm sets the norm to the most frequent known value, and the text for the nodes that have it.
func (c *column) setNorm() {
	known := slices.DeleteFunc(slices.Clone(c.diff.Values), func(v report.DifferenceValue) bool { return c.unknown(v.Value) })
	c.norm, c.whose = known[0].Value, "most nodes"
	if len(known) > 1 && len(known[0].Nodes) == len(known[1].Nodes) {
		c.whose = "the first value"
	}
}

// shown is a value as the page displays it.
func (c column) shown(value string) htmlpage.Text {
	if c.key == "wheel" {
		value = value[:min(len(value), 12)] // a sha256
	}
	none := "none"
	if c.is.Unknown {
		none = "not known"
	}
	return htmlpage.Text(cmp.Or(value, none))
}

// columns returns the columns of the table: first the outcome, then the compared properties, the
// most important first, then the numbers that each node has for itself.
func columns(differences []report.Difference) []column {
	return slices.Concat([]column{
		{key: "status", title: "Status", of: func(m member) string { return string(m.Status) }},
		{key: "step", title: "Step", of: func(m member) string { return m.Step }},
		{key: "chosen", title: "Wheel", of: func(m member) string { return m.wheel }},
		{key: "before", title: "Before", of: before},
	}, compared(differences), []column{
		{key: "serial", title: "Group", of: serial, number: true},
		{key: "free", title: "Free", of: free, number: true},
		{key: "seconds", title: "Seconds", of: func(m member) string { return fmt.Sprintf("%.1f", total(m.Seconds)) }, number: true},
	})
}

// compared returns the columns of the properties, and of packages in which nodes differ.
func compared(differences []report.Difference) []column {
	usual := map[string]string{
		"deepspeed": "DeepSpeed", "torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "transformers": "transformers",
		"python": "Python", "glibc": "glibc", "driver": "Driver", "gpus": "GPUs", "cpu": "CPU",
	}
	rare := map[string]string{
		"wheel": "Wheel sha256", "cxx11abi": "CXX11 ABI", "libstdcxx": "libstdc++", "container": "Container", "environment": "Environment",
	}
	var columns []column
	for _, p := range node.Properties() {
		title := htmlpage.Text(cmp.Or(usual[p.Name], rare[p.Name], p.Name))
		columns = append(columns, column{key: p.Name, title: title, is: &p, rare: usual[p.Name] == ""})
	}
	for i, d := range differences {
		at := slices.IndexFunc(columns, func(c column) bool { return c.key == d.What })
		if at < 0 { // a package that dsbuild installed on some nodes with DeepSpeed
			at, columns = len(columns), append(columns, column{key: d.What, title: htmlpage.Text(d.What), is: &node.Property{Name: d.What}})
		}
		c := &columns[at]
		c.diff, c.has = &differences[i], map[string]string{}
		c.setNorm()
		for _, v := range d.Values {
			for _, name := range v.Nodes {
				c.has[name] = v.Value
			}
		}
	}
	return columns
}

// before is the DeepSpeed version that a change replaced; "" if nothing changed.
func before(m member) string {
	switch {
	case m.Before == nil && m.Changed:
		return "none"
	case m.Before == nil, m.After != nil && *m.After == *m.Before:
		return ""
	}
	return m.Before.Version
}

// serial is the group of --serial that changed a node.
func serial(m member) string {
	if m.Serial == 0 {
		return ""
	}
	return strconv.Itoa(m.Serial)
}

func free(m member) string {
	if m.facts == nil || m.facts.FreeBytes == 0 {
		return "" // unknown: the probe found no environment
	}
	return fmt.Sprintf("%.1f GiB", float64(m.facts.FreeBytes)/(1<<30))
}

func total(seconds map[string]float64) float64 {
	sum := 0.0
	for _, s := range seconds {
		sum += s
	}
	return sum
}

// nodes returns the table of nodes. Nodes with the same cause whose cells are equal except for numbers
// share a row, which shows the span of the numbers.
func (t *table) nodes(members []member) *htmlpage.Table {
	steps := steps(members)
	out := &htmlpage.Table{Main: true, Columns: []htmlpage.Column{{Title: "Node"}}, Labels: t.labels(steps)}
	for _, c := range t.columns {
		out.Columns = append(out.Columns, htmlpage.Column{Title: c.title, Number: c.number})
	}
	places := map[string]int{}
	var groups [][]int
	for i, m := range members {
		key := t.key(i, m)
		at, seen := places[key]
		if !seen {
			at, places[key] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], i)
	}
	for _, group := range groups {
		first := group[0]
		row := htmlpage.Row{Status: string(members[first].Status), Cells: slices.Clone(t.cells[first])}
		var names []string
		for _, i := range group {
			names = append(names, members[i].Name)
			row.Records = append(row.Records, t.record(members[i], t.cells[i], steps))
		}
		row.Cells[0] = named(names)
		for at, c := range t.columns {
			if c.number {
				row.Cells[at+1].Text = t.span(at+1, group)
			}
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

// named is a cell with the names of nodes.
func named(names []string) htmlpage.Cell {
	c := htmlpage.Cell{Text: folded(names)}
	if len(names) > 1 {
		c.Small = htmlpage.Text(fmt.Sprintf("%d nodes", len(names)))
	}
	return c
}

// key returns a key that is equal for nodes in the same row.
func (t *table) key(i int, m member) string {
	words := []string{strconv.Itoa(m.cause)}
	for at, c := range t.columns {
		if !c.number {
			words = append(words, string(t.cells[i][at+1].Text))
		}
	}
	return fmt.Sprintf("%q", words)
}

// span is the range of the numbers of a row in a column.
func (t *table) span(at int, members []int) htmlpage.Text {
	number := func(text htmlpage.Text) float64 {
		digits, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseFloat(digits, 64)
		return n
	}
	var texts []htmlpage.Text
	for _, m := range members {
		if text := t.cells[m][at].Text; text != "" {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	byNumber := func(a, b htmlpage.Text) int { return cmp.Compare(number(a), number(b)) }
	least, most := slices.MinFunc(texts, byNumber), slices.MaxFunc(texts, byNumber)
	if least == most {
		return most
	}
	digits, _, _ := strings.Cut(string(least), " ")
	return htmlpage.Text(digits) + "–" + most
}

// differences lists the properties in which nodes differ, with the nodes of each value, and names those in
// which they agree.
func (t *table) differences() htmlpage.Section {
	out := &htmlpage.Table{Columns: []htmlpage.Column{{Title: "Property"}, {Title: "Value"}, {Title: "Nodes"}}}
	var agree []string
	for _, c := range t.columns {
		switch {
		case c.is == nil:
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
			value := htmlpage.Cell{Text: c.shown(v.Value), Odd: c.weight(v.Value)}
			if v.Value == c.norm {
				value.Small = htmlpage.Text(c.whose)
			}
			out.Rows = append(out.Rows, htmlpage.Row{Cells: []htmlpage.Cell{head, value, named(v.Nodes)}})
			head = htmlpage.Cell{}
		}
	}
	s := htmlpage.Section{Title: "Differences", Table: out}
	if len(out.Rows) == 0 {
		s.Table, s.List = nil, []htmlpage.Text{"No compared property differs."}
	}
	if len(agree) > 0 {
		s.After = htmlpage.Text("All nodes that answered agree in " + strings.Join(agree, ", ") + ".")
	}
	return s
}
