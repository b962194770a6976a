package page

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// data is the input of the script. Most numbers are indexes into Words, because most nodes of a
// fleet have the same texts; unknown is not an index.
type data struct {
	Words   []string     `json:"words"`
	Columns []dataColumn `json:"columns"`
	Details []string     `json:"details"` // titles of further properties; "# title" begins a section
	Steps   []string     `json:"steps"`
	Nodes   []dataNode   `json:"nodes"`
	Groups  []dataGroup  `json:"groups"`
}

// unknown stands for an unknown value instead of an index.
const unknown = -1

type dataColumn struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	Norm  int    `json:"norm"`  // unknown if nodes agree, or are not compared
	Whose string `json:"whose"` // the nodes that have the norm, for a sentence
	Must  []int  `json:"must"`  // values of nodes that do not run the same thing
	// Compared columns appear among the details, too. Numbers are aligned to the right.
	Compared bool `json:"compared"`
	Number   bool `json:"number"`
}

type dataNode struct {
	Name    int       `json:"name"`
	Status  string    `json:"status"`
	Group   int       `json:"group"`
	Cells   []int     `json:"cells"`
	Details []int     `json:"details"`
	Seconds []float64 `json:"seconds"` // by step
	Error   int       `json:"error"`
	Hint    [3]int    `json:"hint"` // the text before the command, the command, the text after it
}

type dataGroup struct {
	Name  int   `json:"name"`
	Cells []int `json:"cells"`
}

func newDataColumn(c column, words *words) dataColumn {
	d := dataColumn{Key: ui.Clean(c.Key), Title: c.Title, Norm: unknown, Must: []int{}, Compared: c.is != nil, Number: c.Number}
	if c.diff == nil {
		return d
	}
	d.Norm, d.Whose = words.of(c.shown(c.norm)), c.whose
	for _, v := range c.diff.Values {
		if c.weight(v.Value) == "must" {
			d.Must = append(d.Must, words.of(c.shown(v.Value)))
		}
	}
	return d
}

// words are the texts of the data, each stored once and cleaned.
type words struct {
	list  []string
	place map[string]int // by the original text
}

func newWords() *words { return &words{[]string{}, map[string]int{}} }

// of returns the index of a text, and adds the text if it is new.
func (w *words) of(text string) int {
	at, seen := w.place[text]
	if !seen {
		at = len(w.list)
		w.place[text], w.list = at, append(w.list, ui.Clean(text))
	}
	return at
}

// newData prepares a report for the script.
func newData(t *table, members []member, folds []fold, words *words) data {
	order := steps(members)
	d := data{Steps: make([]string, len(order)), Nodes: make([]dataNode, len(members))}
	for _, c := range t.columns {
		d.Columns = append(d.Columns, newDataColumn(c, words))
	}
	for i, s := range order {
		d.Steps[i] = ui.Clean(s)
	}
	for at, g := range folds {
		d.Groups = append(d.Groups, dataGroup{words.of(g.names), places(g.cells, words)})
		for _, i := range g.members {
			d.Nodes[i] = d.node(members[i], t.cells[i], order, words)
			d.Nodes[i].Group = at
		}
	}
	return d
}

// node prepares a node; order is the order of the steps.
func (d *data) node(m member, cells []cell, order []string, words *words) dataNode {
	n := dataNode{Name: words.of(m.Name), Status: string(m.Status), Cells: places(cells, words), Error: words.of(m.Complaint())}
	h := newHint(m.Hint)
	n.Hint = [3]int{words.of(h.Before), words.of(h.Command), words.of(h.After)}
	for _, s := range order {
		n.Seconds = append(n.Seconds, math.Round(m.Seconds[s]*100)/100)
	}
	all := details(m)
	if d.Details == nil {
		for _, f := range all {
			d.Details = append(d.Details, f.Label)
		}
	}
	for _, f := range all {
		n.Details = append(n.Details, words.of(f.Text))
	}
	return n
}

func places(cells []cell, words *words) []int {
	all := make([]int, len(cells))
	for i, c := range cells {
		all[i] = unknown
		if !c.Unknown {
			all[i] = words.of(c.Text)
		}
	}
	return all
}

// steps returns the steps that any node went through, in their order.
func steps(members []member) []string {
	seen := map[string]bool{}
	for _, m := range members {
		for s := range m.Seconds {
			seen[s] = true
		}
	}
	order := []string{"connect", "probe", "fit", "put", "install", "rollback", "verify", "record"}
	known := slices.DeleteFunc(order, func(s string) bool { return !seen[s] })
	for _, s := range known {
		delete(seen, s)
	}
	return slices.Concat(known, slices.Sorted(maps.Keys(seen)))
}

// details returns the properties that do not fit into the table, in sections. Every node has the
// same titles. A text is empty if the report has no value for it.
func details(m member) []fact {
	f := m.Facts
	if f == nil {
		f = &node.Facts{}
	}
	return slices.Concat(ofWheel(m, f), ofEnvironment(m.Facts != nil, f), ofMachine(m.Facts != nil, f))
}

func ofWheel(m member, f *node.Facts) []fact {
	is := f.DeepSpeed
	if is == nil {
		is = &node.Installed{}
	}
	return []fact{
		{"# DeepSpeed", ""},
		{"Wheel", m.Wheel},
		{"Installed with it", strings.Join(m.ExtraWheels, ", ")},
		{"Before", version(m.Before)},
		{"Now", version(m.After)},
		{"Found by the probe", is.Version},
		{"Package", is.Path},
		{"Operators", strings.Join(is.Ops, ", ")},
		{"Files", integrity(f.DeepSpeed)},
		{"Built for", builtFor(is.Build)},
		{"Previous version, for a rollback", previous(f.Previous)},
		{"Remarks", strings.Join(m.Remarks, "\n")},
		{"Log", m.Log},
	}
}

func ofEnvironment(known bool, f *node.Facts) []fact {
	return []fact{
		{"# Environment", ""},
		{"Interpreter", f.Executable},
		{"Prefix", f.Prefix},
		{"Kind", f.Environment},
		{"Container", f.Container},
		{"Python tag", f.Tag},
		{"site-packages", f.SitePackages},
		{"Identity of site-packages", f.SiteID},
		{"pip", f.Pip},
		{"Writable", yes(known, f.Writable)},
		{"Externally managed", yes(known && f.ExternallyManaged, true)},
		{"CXX11 ABI", abi(f.CXX11ABI)},
		{"In use by", processes(f.InUse)},
		{"Unfinished change", yes(f.Unfinished, true)},
		{"Files of an interrupted run", yes(f.Leftovers, true)},
	}
}

func ofMachine(known bool, f *node.Facts) []fact {
	facts := []fact{
		{"# Machine", ""},
		{"Platform", f.Platform},
		{"libstdc++", f.Libstdcxx},
		{"GPUs", f.Devices()},
		{"Free space, environment", ""},
		{"Free space, temporary", ""},
		{"Not known", strings.Join(f.Missing, "\n")},
	}
	if known {
		facts[4].Text, facts[5].Text = ui.Size(f.FreeBytes), ui.Size(f.FreeTmpBytes)
	}
	return facts
}

func version(v *report.Version) string {
	switch {
	case v == nil:
		return ""
	case v.SHA256 == "":
		return v.Version
	}
	return v.Version + "\nsha256 " + v.SHA256
}

// integrity describes whether the files of a DeepSpeed are those of its wheel.
func integrity(is *node.Installed) string {
	switch {
	case is == nil:
		return ""
	case is.Intact:
		return "match their RECORD"
	case len(is.Altered) > 0:
		return "altered:\n" + strings.Join(is.Altered, "\n")
	case is.SHA256 == "":
		return "not installed by dsbuild"
	}
	return "altered"
}

func builtFor(b *node.Build) string {
	if b == nil {
		return ""
	}
	var parts []string
	for _, p := range []fact{{"torch", b.Torch}, {"CUDA", b.CUDA}, {"NCCL", b.NCCL}, {"", b.Accelerator}} {
		if p.Text != "" {
			parts = append(parts, strings.TrimSpace(p.Label+" "+p.Text))
		}
	}
	return strings.Join(parts, ", ")
}

func previous(p *node.Previous) string {
	if p == nil {
		return ""
	}
	return cmp.Or(p.Version, "no DeepSpeed")
}

func processes(all []node.Process) string {
	var lines []string
	for _, p := range all {
		line := fmt.Sprintf("%s, pid %s of %s", p.Command, strconv.Itoa(p.PID), p.User)
		if p.Job != "" {
			line += ", " + p.Job
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func yes(known, is bool) string {
	switch {
	case !known:
		return ""
	case is:
		return "yes"
	}
	return "no"
}

func abi(is *bool) string { return yes(is != nil, is != nil && *is) }
