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
}

// newMembers are the nodes of a report, with the DeepSpeed that each has now.
// Where several wheels were dealt with, the local part of its version says which,
// and is no difference.
func newMembers(r *deploy.Report) []member {
	numbers := map[string]string{}
	for i, w := range r.Wheels {
		numbers[w.Name] = strconv.Itoa(i + 1)
	}
	members := make([]member, len(r.Nodes))
	for i, n := range r.Nodes {
		m := member{NodeReport: n, wheel: numbers[n.Wheel]}
		if n.Facts != nil {
			f := *n.Facts
			f.DeepSpeed = now(n)
			if f.DeepSpeed != nil && len(r.Wheels) > 1 {
				f.DeepSpeed.Version, _, _ = strings.Cut(f.DeepSpeed.Version, "+")
			}
			m.facts = &f
		}
		members[i] = m
	}
	return members
}

// now is the DeepSpeed that a node has at the end: facts are as probed, before
// anything was done.
func now(n deploy.NodeReport) *node.Installed {
	switch {
	case n.After != nil:
		return &node.Installed{Version: n.After.Version, SHA256: n.After.SHA256}
	case n.Status == deploy.OK || n.Before != nil || n.Facts.DeepSpeed == nil:
		return nil
	}
	is := *n.Facts.DeepSpeed
	return &is
}

// column is one thing said of every node. Those with a property are compared.
type column struct {
	Key, Title string
	Must       bool // all nodes of one job must agree in it
	Differs    bool
	Norm       string // what most nodes have, where they differ
	Whose      string // whose the norm is
	Number     bool   // that each node has for itself: rows are folded over it

	of   func(member) string
	is   *node.Property
	rare bool // shown only where nodes differ in it
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
	diffs   []node.Diff // Nodes are places among the members
	cells   [][]cell    // by member
}

// newTable compares the nodes and fills the cells. The report says what matters
// of the differences: nodes that were given different wheels may differ in more.
func newTable(members []member, said []deploy.Difference) *table {
	t := &table{columns: columns()}
	t.compare(members)
	for _, d := range said {
		for i := range t.columns {
			if c := &t.columns[i]; c.Key == d.What && c.Differs {
				c.Must = d.Must
			}
		}
	}
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
		return c.rare && !c.Differs
	}
	return !slices.ContainsFunc(members, func(m member) bool { return c.of(m) != "" })
}

// compare finds out in which columns nodes differ.
func (t *table) compare(members []member) {
	var known []node.Facts
	var places []int
	for i, m := range members {
		if m.facts != nil {
			known, places = append(known, *m.facts), append(places, i)
		}
	}
	for i := range t.columns {
		c := &t.columns[i]
		if c.is == nil {
			continue
		}
		for _, d := range node.Compare(known, []node.Property{*c.is}) {
			c.Differs, c.Must, c.Norm, c.Whose = true, d.Must, d.Values[0].Value, "most nodes"
			if len(d.Values[0].Nodes) == len(d.Values[1].Nodes) {
				c.Whose = "the first of them"
			}
			for v := range d.Values {
				for n, at := range d.Values[v].Nodes {
					d.Values[v].Nodes[n] = places[at]
				}
			}
			t.diffs = append(t.diffs, d)
		}
	}
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
			has := c.is.Of(*m.facts)
			cells[i] = cell{Text: shown(has)}
			switch {
			case has == "" && c.is.Unknown:
				cells[i] = cell{Unknown: true}
			case c.Differs && has != c.Norm:
				cells[i].Odd = c.weight()
			}
		}
	}
	return cells
}

// weight says whether nodes that differ in a column run the same thing.
func (c column) weight() string {
	if c.Must {
		return "must"
	}
	return "may"
}

// shown is a value as the page shows it.
func shown(value string) string { return cmp.Or(ui.Clean(value), "none") }

// columns are those of the table: what was done, then what is compared, the
// weightiest first, then what nodes have each for themselves.
func columns() []column {
	return slices.Concat([]column{
		{Key: "status", Title: "Status", of: func(m member) string { return string(m.Status) }},
		{Key: "step", Title: "Step", of: func(m member) string { return m.Step }},
		{Key: "chosen", Title: "Wheel", of: func(m member) string { return m.wheel }},
		{Key: "before", Title: "Before", of: before},
	}, properties(), []column{
		{Key: "free", Title: "Free", of: free, Number: true},
		{Key: "seconds", Title: "Seconds", of: func(m member) string { return fmt.Sprintf("%.1f", total(m.Seconds)) }, Number: true},
	})
}

// properties are the columns that are compared: what all nodes of one job must
// agree in, and what else tells one machine from another.
func properties() []column {
	titles := map[string]string{
		"deepspeed": "DeepSpeed", "torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "transformers": "transformers",
		"python": "Python", "glibc": "glibc", "driver": "Driver", "gpus": "GPUs", "cpu": "CPU",
	}
	var columns []column
	for _, p := range node.Properties() {
		title, usual := titles[p.Name]
		columns = append(columns, column{Key: p.Name, Title: cmp.Or(title, p.Name), Must: p.Must, is: &p, rare: !usual})
	}
	return columns
}

// before is the DeepSpeed that was there before a change.
func before(m member) string {
	switch {
	case m.Before == nil && m.Changed:
		return "none"
	case m.Before == nil:
		return ""
	case m.Status == deploy.OK && !m.Changed:
		return "the same"
	}
	return m.Before.Version
}

func free(m member) string {
	if m.facts == nil {
		return ""
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

// group is nodes that are one row.
type group struct {
	names   string
	members []int
	cells   []cell
}

// fold puts nodes together of which everything is equal but what each has for
// itself; of that the row shows the span.
func (t *table) fold(members []member) []group {
	places := map[string]int{}
	var groups []group
	for i, m := range members {
		key := t.key(i, m)
		at, seen := places[key]
		if !seen {
			at, places[key] = len(groups), len(groups)
			groups = append(groups, group{})
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
	words := []string{m.Error, m.Hint}
	for at, c := range t.cells[i] {
		if !t.columns[at].Number {
			words = append(words, c.Text)
		}
	}
	return fmt.Sprintf("%q", words)
}

// sum gives a group its names and cells.
func (t *table) sum(g *group, members []member) {
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
	texts := make([]string, len(members))
	for i, m := range members {
		texts[i] = t.cells[m][at].Text
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
func (t *table) differences(members []member, words *words) (all []difference, agree string) {
	var same []string
	diffs := t.diffs
	for i, c := range t.columns {
		switch {
		case c.is == nil:
			continue
		case !c.Differs:
			same = append(same, c.Title)
			continue
		}
		d := difference{Title: c.Title, Must: c.Must, Whose: c.Whose, Column: i}
		d.More = max(0, len(diffs[0].Values)-mostValues)
		for n, v := range diffs[0].Values[:len(diffs[0].Values)-d.More] {
			names := make([]string, len(v.Nodes))
			for i, at := range v.Nodes {
				names[i] = members[at].Name
			}
			d.Values = append(d.Values, value{shown(v.Value), n == 0, ui.Clean(ui.FoldNames(names)), len(names), words.of(shown(v.Value))})
		}
		diffs = diffs[1:]
		all = append(all, d)
	}
	return all, strings.Join(same, ", ")
}
