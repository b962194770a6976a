package page

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
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
	Key, Title string
	Number     bool // a number that each node has for itself: a folded row shows its span

	of   func(member) string
	is   *node.Property // nil: not compared
	rare bool           // shown only if nodes differ

	diff        *report.Difference // nil: nodes agree
	has         map[string]string  // value by node, if nodes differ
	norm, whose string             // the most frequent value, and a text for the nodes that have it
}

// cell is a column's value for a node. Unknown is not the same as none.
type cell struct {
	Text    string
	Unknown bool
	Odd     string // "must" or "may" if the value is not the norm, else ""
}

// table holds the columns, and the cells of each node.
type table struct {
	columns []column
	cells   [][]cell // by member
}

// newTable chooses the columns and fills the cells.
func newTable(r *report.Report, members []member) *table {
	t := &table{columns: columns(r.Differences)}
	t.columns = slices.DeleteFunc(t.columns, func(c column) bool { return c.needless(members) })
	for _, m := range members {
		t.cells = append(t.cells, t.row(m))
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

// row returns the cells of a node.
func (t *table) row(m member) []cell {
	cells := make([]cell, len(t.columns))
	for i, c := range t.columns {
		switch {
		case c.is == nil:
			cells[i] = cell{Text: ui.Clean(c.of(m))}
		case m.facts == nil:
			cells[i] = cell{Unknown: true}
		default:
			cells[i] = c.cell(c.value(m))
		}
	}
	return cells
}

// value returns a node's value of a property. For a node without a usable Python it is not known,
// because nothing could be asked there.
func (c column) value(m member) (value string, known bool) {
	if c.diff == nil {
		value = c.is.Of(*m.facts)
		return value, value != "" || m.facts.Python != ""
	}
	value, known = c.has[m.Name]
	return value, known
}

// cell makes a cell of a compared column.
func (c column) cell(value string, known bool) cell {
	if !known || c.unknown(value) {
		return cell{Unknown: true}
	}
	return cell{Text: c.shown(value), Odd: c.weight(value)}
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
func (c column) shown(value string) string {
	if c.Key == "wheel" {
		value = value[:min(len(value), 12)] // a sha256
	}
	none := "none"
	if c.is.Unknown {
		none = "not known"
	}
	return cmp.Or(ui.Clean(value), none)
}

// columns returns the columns of the table: first the outcome, then the compared properties, the
// most important first, then the numbers that each node has for itself.
func columns(differences []report.Difference) []column {
	return slices.Concat([]column{
		{Key: "status", Title: "Status", of: func(m member) string { return string(m.Status) }},
		{Key: "step", Title: "Step", of: func(m member) string { return m.Step }},
		{Key: "chosen", Title: "Wheel", of: func(m member) string { return m.wheel }},
		{Key: "before", Title: "Before", of: before},
	}, compared(differences), []column{
		{Key: "serial", Title: "Group", of: serial, Number: true},
		{Key: "free", Title: "Free", of: free, Number: true},
		{Key: "seconds", Title: "Seconds", of: func(m member) string { return fmt.Sprintf("%.1f", total(m.Seconds)) }, Number: true},
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
		title := cmp.Or(usual[p.Name], rare[p.Name], p.Name)
		columns = append(columns, column{Key: p.Name, Title: title, is: &p, rare: usual[p.Name] == ""})
	}
	for i, d := range differences {
		at := slices.IndexFunc(columns, func(c column) bool { return c.Key == d.What })
		if at < 0 { // a package that dsbuild installed on some nodes with DeepSpeed
			at, columns = len(columns), append(columns, column{Key: d.What, Title: ui.Clean(d.What), is: &node.Property{Name: d.What}})
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

// fold is a set of nodes that share a row.
type fold struct {
	names   string
	members []int
	cells   []cell
}

// fold groups nodes with the same cause whose cells are equal except for numbers; a row shows
// the span of the numbers.
func (t *table) fold(members []member) []fold {
	places := map[string]int{}
	var groups []fold
	for i, m := range members {
		key := t.key(i, m)
		at, seen := places[key]
		if !seen {
			at, places[key] = len(groups), len(groups)
			groups = append(groups, fold{})
		}
		groups[at].members = append(groups[at].members, i)
	}
	for i := range groups {
		t.sum(&groups[i], members)
	}
	return groups
}

// key returns a key that is equal for nodes in the same row.
func (t *table) key(i int, m member) string {
	words := []string{strconv.Itoa(m.cause)}
	for at, c := range t.cells[i] {
		if !t.columns[at].Number {
			words = append(words, c.Text)
		}
	}
	return fmt.Sprintf("%q", words)
}

// sum sets the names and the cells of a group.
func (t *table) sum(g *fold, members []member) {
	names := make([]string, len(g.members))
	for i, at := range g.members {
		names[i] = members[at].Name
	}
	g.names = ui.Clean(ui.FoldNames(names))
	g.cells = slices.Clone(t.cells[g.members[0]])
	for at, c := range t.columns {
		if c.Number {
			g.cells[at].Text = t.span(at, g.members)
		}
	}
}

// span is the range of a group's numbers in a column.
func (t *table) span(at int, members []int) string {
	var texts []string
	for _, m := range members {
		if text := t.cells[m][at].Text; text != "" {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	number := func(text string) float64 {
		digits, _, _ := strings.Cut(text, " ")
		n, _ := strconv.ParseFloat(digits, 64)
		return n
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	least, most := texts[0], texts[len(texts)-1]
	if least == most {
		return most
	}
	least, _, _ = strings.Cut(least, " ")
	return least + "–" + most
}

// maxValues bounds the listed values of a property. If a property has more values, each node may
// have its own.
const maxValues = 30

// differences returns the properties in which nodes differ, and the titles of those in which they
// agree.
func (t *table) differences(words *words) (all []difference, agree string) {
	var same []string
	for i, c := range t.columns {
		switch {
		case c.is == nil:
			continue
		case c.diff == nil:
			same = append(same, c.Title)
			continue
		}
		d := difference{Title: c.Title, Must: c.diff.Must, Whose: c.whose, Column: i}
		d.More = max(0, len(c.diff.Values)-maxValues)
		for _, v := range c.diff.Values[:len(c.diff.Values)-d.More] {
			text := c.shown(v.Value)
			one := value{text, v.Value == c.norm, c.weight(v.Value), ui.Clean(ui.FoldNames(v.Nodes)), len(v.Nodes), unknown}
			if !c.unknown(v.Value) {
				one.Word = words.of(text)
			}
			d.Values = append(d.Values, one)
		}
		all = append(all, d)
	}
	return all, strings.Join(same, ", ")
}
