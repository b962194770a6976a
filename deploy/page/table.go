package page

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// member is a node of the report, and what is compared of it.
type member struct {
	deploy.NodeReport
	facts *node.Facts // nil: nothing is known
	wheel string      // its number among those of the report
	cause int         // why it is not ok: nodes of one number for one reason; 0 of others
}

// newMembers are the nodes of a report. Facts are as probed, before anything was
// done: the DeepSpeed is that of the end.
func newMembers(r *deploy.Report) []member {
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
		members[i] = member{NodeReport: n, wheel: numbers[n.Wheel], cause: causes[n.Name]}
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

// column is one thing said of every node. Those that are compared know in what
// nodes differ.
type column struct {
	Key, Title string
	Number     bool // that each node has for itself: rows are folded over it

	of   func(member) string
	is   *node.Property // nil: not compared
	rare bool           // shown only where nodes differ

	diff        *deploy.Difference // nil: nodes agree
	has         map[string]string  // by node, where they differ
	norm, whose string             // what most nodes have there, and whose it is
}

// cell is what a column says of a node. What is not known is not the same as none.
type cell struct {
	Text    string
	Unknown bool
	Odd     string // "must" or "may": it is not what most nodes have
}

// table is the columns, and what nodes have in them.
type table struct {
	columns []column
	cells   [][]cell // by member
}

// newTable fills the cells with what nodes have.
func newTable(r *deploy.Report, members []member) *table {
	t := &table{columns: columns(r.Differences)}
	t.columns = slices.DeleteFunc(t.columns, func(c column) bool { return c.needless(members) })
	for _, m := range members {
		t.cells = append(t.cells, t.row(m))
	}
	return t
}

// needless says that a column would tell nothing: it is empty, or one that is
// shown only where nodes differ.
func (c column) needless(members []member) bool {
	if c.is != nil {
		return c.rare && c.diff == nil
	}
	return !slices.ContainsFunc(members, func(m member) bool { return c.of(m) != "" })
}

// row is the cells of a node.
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

// value is what a node has of a property. One without a usable Python was not
// asked, and has nothing that others could differ from.
func (c column) value(m member) (value string, known bool) {
	if c.diff == nil {
		value = c.is.Of(*m.facts)
		return value, value != "" || m.facts.Python != ""
	}
	value, known = c.has[m.Name]
	return value, known
}

// cell is a value of a column that is compared.
func (c column) cell(value string, known bool) cell {
	if !known || c.unknown(value) {
		return cell{Unknown: true}
	}
	return cell{Text: c.shown(value), Odd: c.weight(value)}
}

// unknown says that a value is none: the property could not be found out.
func (c column) unknown(value string) bool { return value == "" && c.is.Unknown }

// weight says what it means that a node has a value: "" where it is that of most
// nodes, "must" where such a node does not run the same thing, else "may".
func (c column) weight(value string) string {
	switch {
	case c.diff == nil, c.unknown(value), value == c.norm:
		return ""
	case c.diff.Must && c.is.Key(value) != c.is.Key(c.norm):
		return "must"
	}
	return "may"
}

// settle finds what most nodes have, of those that have anything, and whose it is
// to be called.
func (c *column) settle() {
	known := slices.DeleteFunc(slices.Clone(c.diff.Values), func(v deploy.DifferenceValue) bool { return c.unknown(v.Value) })
	c.norm, c.whose = known[0].Value, "most nodes"
	if len(known) > 1 && len(known[0].Nodes) == len(known[1].Nodes) {
		c.whose = "the first of them"
	}
}

// shown is a value as the page shows it.
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

// columns are those of the table: what was done, then what is compared, the
// weightiest first, then what nodes have each for themselves.
func columns(differences []deploy.Difference) []column {
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

// compared are the columns of the properties, and of what else nodes differ in.
func compared(differences []deploy.Difference) []column {
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
		if at < 0 { // a package that came to some nodes with DeepSpeed
			at, columns = len(columns), append(columns, column{Key: d.What, Title: ui.Clean(d.What), is: &node.Property{Name: d.What}})
		}
		c := &columns[at]
		c.diff, c.has = &differences[i], map[string]string{}
		c.settle()
		for _, v := range d.Values {
			for _, name := range v.Nodes {
				c.has[name] = v.Value
			}
		}
	}
	return columns
}

// before is the DeepSpeed that was there before a change, and is no more.
func before(m member) string {
	switch {
	case m.Before == nil && m.Changed:
		return "none"
	case m.Before == nil, m.After != nil && *m.After == *m.Before:
		return ""
	}
	return m.Before.Version
}

// serial is the group of --serial in which a node was changed.
func serial(m member) string {
	if m.Serial == 0 {
		return ""
	}
	return strconv.Itoa(m.Serial)
}

func free(m member) string {
	if m.facts == nil || m.facts.FreeBytes == 0 {
		return "" // unknown: no environment was found to look at
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

// fold is nodes that are one row.
type fold struct {
	names   string
	members []int
	cells   []cell
}

// fold puts nodes together of which everything is equal but what each has for
// itself; of that the row shows the span.
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

// key is equal for nodes that are one row.
func (t *table) key(i int, m member) string {
	words := []string{strconv.Itoa(m.cause)}
	for at, c := range t.cells[i] {
		if !t.columns[at].Number {
			words = append(words, c.Text)
		}
	}
	return fmt.Sprintf("%q", words)
}

// sum gives a group its names and cells.
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

// span is the least and the most of what nodes have in a column of numbers.
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

// mostValues is how many values of a property are listed: who has more has a
// property of which no two nodes need be alike.
const mostValues = 30

// differences are the properties in which nodes differ, and in words those in
// which they agree.
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
		d.More = max(0, len(c.diff.Values)-mostValues)
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
