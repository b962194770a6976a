package deploy

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// cellSep separates the cells of a row while rows are folded.
const cellSep = "\x00"

// Print writes the report for a person: a table in which equal nodes are one
// row, then every failure once, then a verdict.
func (r *Report) Print(w io.Writer) error {
	var rows, errs []ui.Named
	slowest := map[string]float64{}
	for _, n := range r.Nodes {
		row := strings.Join(n.cells(), cellSep)
		rows = append(rows, ui.Named{Name: n.Name, Text: row})
		total := 0.0
		for _, s := range n.Seconds {
			total += s
		}
		slowest[row] = max(slowest[row], total)
		if n.Error != "" {
			text := n.Step + ": " + n.Error
			if n.Status == Skipped {
				text = n.Error // no step of it went wrong
			}
			if n.Hint != "" {
				text += "\n  hint: " + n.Hint
			}
			errs = append(errs, ui.Named{Name: n.Name, Text: text})
		}
	}
	var table [][]string
	for _, f := range ui.Fold(rows) {
		table = append(table, append(append([]string{f.Names}, strings.Split(f.Text, cellSep)...), fmt.Sprintf("%.1f", slowest[f.Text])))
	}
	if err := ui.Table(w, []string{"NODES", "STATUS", "DEEPSPEED", "TORCH", "CUDA", "STEP", "SECONDS"}, table); err != nil {
		return err
	}
	for _, f := range ui.Fold(errs) {
		if _, err := fmt.Fprintf(w, "%s: %s\n", f.Names, ui.Clean(f.Text)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, r.verdict())
	if err == nil && r.idle() {
		_, err = fmt.Fprintln(w, r.idleVerdict())
	}
	return err
}

func (n NodeReport) cells() []string {
	status, deepspeed, torch, cuda := string(n.Status), "-", "-", "-"
	if n.Status == OK && !n.Changed {
		status += ", unchanged"
	}
	if n.After != nil {
		deepspeed = n.After.Version
	}
	if n.Facts != nil {
		torch, cuda = cmp.Or(n.Facts.Torch, "-"), cmp.Or(n.Facts.TorchCUDA, "-")
	}
	return []string{status, deepspeed, torch, cuda, cmp.Or(n.Step, "-")}
}

// verdict is the last line: what the fleet is in.
func (r *Report) verdict() string {
	total := len(r.Nodes)
	if r.Summary.OK < total {
		parts := []string{fmt.Sprintf("%d of %d nodes ok", r.Summary.OK, total)}
		for _, c := range []struct {
			n    int
			what Status
		}{{r.Summary.Failed, Failed}, {r.Summary.Unreachable, Unreachable}, {r.Summary.Refused, Refused}, {r.Summary.Differs, Differs}, {r.Summary.Skipped, Skipped}} {
			if c.n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
			}
		}
		return strings.Join(parts, ", ")
	}
	if !r.Consistent {
		return fmt.Sprintf("%s ok, but they run different things", nodes(total))
	}
	first := r.Nodes[0]
	equal := ", all equal"
	if total == 1 || r.given && len(r.Wheels) > 1 {
		equal = ""
	}
	what := "no deepspeed"
	switch {
	case first.After == nil:
	case len(r.Wheels) <= 1 && first.After.SHA256 != "":
		what = fmt.Sprintf("deepspeed %s (sha256 %.8s)", first.After.Version, first.After.SHA256)
	case len(r.Wheels) <= 1:
		what = "deepspeed " + first.After.Version
	default:
		what = fmt.Sprintf("deepspeed %s in %d wheels", public(first.After.Version), len(r.Wheels))
	}
	line := fmt.Sprintf("%s ok%s: %s", nodes(total), equal, what)
	if torches := r.values(func(f *node.Facts) string { return f.Torch }); torches != "" { // a rollback does not need one
		line += ", torch " + torches
	}
	if cudas := r.values(func(f *node.Facts) string { return f.TorchCUDA }); cudas != "" {
		line += ", CUDA " + cudas
	}
	return line
}

// values are the different values of a fact, for a sentence.
func (r *Report) values(of func(*node.Facts) string) string {
	var all []string
	for _, n := range r.Nodes {
		if v := of(n.Facts); v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, " and ")
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// Print writes what a deploy would do, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	var rows []ui.Named
	for _, n := range p.Nodes {
		wheel, why := "-", n.Remarks
		if n.Wheel != nil && n.Action != Refuse {
			wheel = n.Wheel.Manifest.Name
		}
		switch n.Action {
		case Refuse, Absent:
			why = n.Reasons
		case Install:
			if len(n.Fetch) > 0 {
				why = append([]string{"from its index " + strings.Join(n.Fetch, ", ")}, why...)
			}
			if len(n.Along) > 0 {
				why = append([]string{"with " + strings.Join(names(n.Along), ", ")}, why...)
			}
		case Follow:
			why = append([]string{"shares its environment with " + p.Nodes[n.Leader].Name}, why...)
		case Return:
			why = append([]string{"back to " + n.Back}, why...)
		case Leave:
			why = append([]string{"runs this wheel already"}, why...)
		}
		rows = append(rows, ui.Named{Name: n.Name, Text: strings.Join([]string{string(n.Action), wheel, cmp.Or(strings.Join(why, "; "), "-")}, cellSep)})
	}
	var table [][]string
	for _, f := range ui.Fold(rows) {
		table = append(table, append([]string{f.Names}, strings.Split(f.Text, cellSep)...))
	}
	return ui.Table(w, []string{"NODES", "ACTION", "WHEEL", "WHY"}, table)
}
