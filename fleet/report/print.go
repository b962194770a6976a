package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// cellSep separates the cells of a row while dsbuild folds equal rows.
const cellSep = "\x00"

// Print writes the report for a person: a table with one row for equal nodes, then each cause of
// failure once, then the verdict. It also lists the properties in which nodes differ and, after
// verify, the notes.
func (r *Report) Print(w io.Writer) error {
	var rows []string // equal strings for nodes that share a row
	names, slowest := map[string][]string{}, map[string]float64{}
	for _, n := range r.Nodes {
		row := strings.Join(n.cells(r.isVerify()), cellSep)
		if names[row] == nil {
			rows = append(rows, row)
		}
		names[row] = append(names[row], n.Name)
		slowest[row] = max(slowest[row], n.Total())
	}
	var table [][]string
	for _, row := range rows {
		cells := append([]string{ui.FoldCell(names[row])}, strings.Split(row, cellSep)...)
		table = append(table, append(cells, fmt.Sprintf("%.1f", slowest[row])))
	}
	last := "STEP"
	if r.isVerify() {
		last = "PYTHON"
	}
	if err := ui.Table(w, []string{"NODES", "STATUS", "DEEPSPEED", "TORCH", "CUDA", last, "SECONDS"}, table); err != nil {
		return err
	}
	lines := slices.Concat(r.differences(), r.causes())
	if r.isVerify() || r.Undone != nil {
		lines = append(lines, r.notes()...)
	}
	lines = slices.Concat(lines, r.computed(), r.passedOn(), r.pythons())
	if r.Undone != nil {
		lines = append(lines, "undoes run "+r.Undone.String())
	}
	if gate := r.failedGate(); gate != nil {
		lines = append(lines, gate.String())
	}
	lines = append(lines, r.Verdict())
	if idle := r.idleVerdict(); idle != "" {
		lines = append(lines, idle)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, ui.Clean(line)); err != nil {
			return err
		}
	}
	return nil
}

// computed returns a line about each op that was compared with torch: its comparison on the node that is nearest to
// the tolerance.
func (r *Report) computed() (lines []string) {
	nodes, worst := map[string][]string{}, map[string]Comparison{}
	for _, n := range r.Nodes {
		for _, c := range n.Compared {
			if w, ok := worst[c.Op]; !ok || c.Worst*w.Most > w.Worst*c.Most {
				worst[c.Op] = c
			}
			nodes[c.Op] = append(nodes[c.Op], n.Name)
		}
	}
	for _, op := range slices.Sorted(maps.Keys(worst)) {
		c := worst[op]
		names, _ := ui.FoldWithin(nodes[op], maxNamed)
		lines = append(lines, ui.OneLine(fmt.Sprintf("%s computes the same as torch on %s: off by at most %.1e, allowed %.1e (%s, %s)",
			op, names, c.Worst, c.Most, c.Name, c.Device)))
	}
	return lines
}

// passedOn returns a line with the bytes sent by dsbuild and by other nodes, or nil if no node passed files on.
func (r *Report) passedOn() []string {
	var sent, nodes int64
	for _, n := range r.Nodes {
		for _, s := range n.From {
			if s.Node == "" {
				sent += s.Bytes
			} else {
				nodes += s.Bytes
			}
		}
	}
	if nodes == 0 {
		return nil
	}
	return []string{fmt.Sprintf("transfers: %s from dsbuild, %s between nodes", ui.Size(sent), ui.Size(nodes))}
}

// pythons returns lines with the Python that jobs run in an environment, or nil in reports of other commands.
func (r *Report) pythons() (lines []string) {
	var said []ui.Named
	for _, n := range r.Nodes {
		if e := n.Environment; e != nil && e.Python != "" && n.Status == OK {
			said = append(said, ui.Named{Name: n.Name, Text: ui.OneLine(e.Python)})
		}
	}
	for _, f := range ui.Fold(said) {
		lines = append(lines, fmt.Sprintf("Python for jobs on %s: %s", f.Names, f.Text))
	}
	return lines
}

// causes returns the causes of failure as text: each once, with its nodes, the error of one of
// them, and a hint.
func (r *Report) causes() []string {
	var lines []string
	causes := r.Why()
	for _, c := range causes[:min(len(causes), maxCauses)] {
		lines = append(lines, c.String())
	}
	more := 0
	for _, c := range causes[len(lines):] {
		more += len(c.Nodes)
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more causes, on %s: --report FILE.html lists all",
			len(causes)-len(lines), ui.Count(more, "node")))
	}
	return lines
}

// String is a cause for people: the nodes, their number, the error and the hint.
func (c Cause) String() string {
	who, _ := ui.FoldWithin(c.Nodes, maxNamed)
	if len(c.Nodes) > 1 {
		who = strings.TrimSpace(fmt.Sprintf("%s (%s)", who, ui.Count(len(c.Nodes), "node")))
	}
	if !c.Alike {
		who += ", e.g. " + c.Node
	}
	text := ui.ShortenMiddle(c.Said, maxSaid)
	switch lines := strings.Split(text, "\n"); {
	case c.Status == Differs && len(lines) > 1:
		text = "differs:\n  " + strings.Join(lines, "\n  ")
	case c.Step != "" && c.Status != Differs:
		text = c.Step + ": " + text
	}
	if c.Hint != "" {
		text += "\n  hint: " + c.Hint
	}
	if c.Log != "" {
		text += "\n  log: " + c.Log
	}
	return who + ": " + text
}

// Bounds on printed lists; --json has the full lists.
const (
	maxValues = 6   // values of one property
	maxNotes  = 12  // different notes
	maxNames  = 60  // characters of folded names for the value that most nodes have
	maxNamed  = 200 // characters of folded names in a cause
	maxCauses = 20
	maxSaid   = 900 // characters of an error
)

// differences returns a line for each property in which nodes differ. After a deploy it lists
// only properties that must agree, and only if every node is ok: otherwise the causes explain the
// failure already.
func (r *Report) differences() []string {
	var lines []string
	for _, d := range r.Differences {
		if !r.isVerify() && (!d.Must || r.Summary.OK < len(r.Nodes)) {
			continue
		}
		var sides []string
		for i, v := range d.Values[:min(len(d.Values), maxValues)] {
			value, who := cmp.Or(ui.OneLine(v.Value), "none"), ui.FoldShort(v.Nodes)
			if d.What == "wheel" {
				value = ShortSum(v.Value)
			}
			if i == 0 && len(who) > maxNames {
				who = ui.Count(len(v.Nodes), "node")
			}
			sides = append(sides, value+" on "+who)
		}
		if more := len(d.Values) - maxValues; more > 0 {
			sides = append(sides, fmt.Sprintf("%d more values", more))
		}
		may := ""
		if !d.Must {
			may = " (may differ)"
		}
		lines = append(lines, node.Title(d.What)+may+": "+strings.Join(sides, "; "))
	}
	return lines
}

// notes returns the notes about nodes, equal ones in one line.
func (r *Report) notes() []string {
	var all []ui.Named
	for _, n := range r.Nodes {
		for _, text := range n.Notes {
			all = append(all, ui.Named{Name: n.Name, Text: text})
		}
	}
	var lines []string
	folded := ui.Fold(all)
	for _, f := range folded[:min(len(folded), maxNotes)] {
		lines = append(lines, fmt.Sprintf("%s (note): %s", f.Names, f.Text))
	}
	if more := len(folded) - maxNotes; more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more notes", more))
	}
	return lines
}

func (n Node) cells(verified bool) []string {
	status, deepspeed, torch, cuda, last := string(n.Status), "-", "-", "-", n.Step
	if n.Status == OK && !n.Changed && !verified {
		status += ", unchanged"
	}
	switch {
	case n.After != nil:
		deepspeed = strings.Replace(n.After.Build(), "(sha256 ", "(", 1) // the table fits into 80 columns
	case n.StateUnknown:
		deepspeed = "?"
	}
	if verified {
		last = ""
	}
	if n.Facts != nil {
		torch, cuda = cmp.Or(n.Facts.Torch, "-"), cmp.Or(n.Facts.TorchCUDA, "-")
		if verified {
			last = n.Facts.Python
		}
	}
	return []string{status, deepspeed, torch, cuda, cmp.Or(last, "-")}
}

// Verdict is the last line of the report: the state of the fleet.
func (r *Report) Verdict() string {
	total := len(r.Nodes)
	if r.Summary.OK < total {
		parts := []string{fmt.Sprintf("%d of %d nodes ok", r.Summary.OK, total)}
		for _, c := range []struct {
			n    int
			what Status
		}{
			{r.Summary.Failed, Failed},
			{r.Summary.Unreachable, Unreachable},
			{r.Summary.Refused, Refused},
			{r.Summary.Differs, Differs},
			{r.Summary.Skipped, Skipped},
		} {
			if c.n > 1 && c.what == Differs {
				parts = append(parts, fmt.Sprintf("%d differ", c.n))
			} else if c.n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
			}
		}
		return strings.Join(parts, ", ")
	}
	if !r.Consistent {
		return fmt.Sprintf("%s ok, but running different software", ui.Count(total, "node"))
	}
	first := r.Nodes[0]
	equal := ", all equal"
	if total == 1 || !r.alike || r.Mixed && len(r.Wheels) > 1 {
		equal = ""
	}
	what := "no deepspeed"
	switch {
	case first.After == nil:
	case len(r.Wheels) <= 1:
		what = "deepspeed " + first.After.Build()
	default:
		what = fmt.Sprintf("deepspeed %s in %d wheels", publicPart(first.After.Version), len(r.Wheels))
	}
	line := fmt.Sprintf("%s ok%s: %s", ui.Count(total, "node"), equal, what)
	// A rollback does not need torch.
	if torches := r.values(func(f *node.Facts) string { return f.Torch }); torches != "" {
		line += ", torch " + torches
	}
	if cudas := r.values(func(f *node.Facts) string { return f.TorchCUDA }); cudas != "" {
		line += ", CUDA " + cudas
	}
	return line + r.environments() + r.others()
}

// environments lists the whole environments of the nodes. It returns "" in reports of other commands.
func (r *Report) environments() string {
	var all []string
	for _, n := range r.Nodes {
		if e := n.Environment; e != nil && e.Digest != "" && !slices.Contains(all, ShortSum(e.Digest)) {
			all = append(all, ShortSum(e.Digest))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ", environment " + r.Nodes[0].Environment.Name + " " + strings.Join(all, " and ")
}

// others lists the properties in which nodes differ although all are ok.
func (r *Report) others() string {
	names := lists.Map(r.Differences, func(d Difference) string { return node.Title(d.What) })
	if !r.isVerify() || len(names) == 0 {
		return ""
	}
	return "; differences: " + strings.Join(names, ", ")
}

// values lists the different values of a fact, for a sentence.
func (r *Report) values(of func(*node.Facts) string) string {
	var all []string
	for _, n := range r.Nodes {
		if v := of(n.Facts); v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, " and ")
}

// PrintHints writes the hints for nodes that a plan leaves as they are, equal ones in one line. edit
// changes a hint of nodes, a value of --limit, before it is written.
func PrintHints(w io.Writer, left []ExcludedNode, edit func(hint, nodes string) string) error {
	var hints []ui.Named
	for _, n := range left {
		if n.Hint != "" {
			hints = append(hints, ui.Named{Name: n.Name, Text: n.Hint})
		}
	}
	for _, f := range ui.Fold(hints) {
		if _, err := fmt.Fprintf(w, "%s: hint: %s\n", f.Names, ui.Clean(edit(f.Text, f.Names))); err != nil {
			return err
		}
	}
	return nil
}

// Total is the sum of the steps' durations on a node, in seconds.
func (n Node) Total() float64 {
	sum := 0.0
	for _, s := range n.Seconds {
		sum += s
	}
	return sum
}
