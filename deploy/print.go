package deploy

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// cellSep separates the cells of a row while dsbuild folds equal rows.
const cellSep = "\x00"

// Print writes the plan of a deploy, equal nodes in one row.
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
			if len(n.Extra) > 0 {
				why = append([]string{"with " + strings.Join(extraWheelNames(n.Extra), ", ")}, why...)
			}
		case Shared:
			why = append([]string{"shares its environment with " + p.Nodes[n.Leader].Name}, why...)
		case Rollback:
			why = append([]string{"back to " + n.Back}, why...)
		case UpToDate:
			why = append([]string{"runs this wheel already"}, why...)
		}
		row := func(why []string) string {
			return strings.Join([]string{string(n.Action), wheel, cmp.Or(strings.Join(why, "; "), "-")}, cellSep)
		}
		rows = append(rows, ui.Named{Name: n.Name, Text: row(why), Cause: row(n.causesOf(why))})
	}
	var table [][]string
	for _, f := range ui.Fold(rows) {
		if f.Example != "" {
			f.Text += " (as on " + f.Example + ")"
		}
		table = append(table, append([]string{f.Names}, strings.Split(f.Text, cellSep)...))
	}
	if err := ui.Table(w, []string{"NODES", "ACTION", "WHEEL", "WHY"}, table); err != nil {
		return err
	}
	return p.printGroups(w)
}

// Left lists the nodes that the plan leaves as they are: refused, or not reached.
func (p Plan) Left() []report.LeftNode {
	var left []report.LeftNode
	for _, n := range p.Nodes {
		if n.Action == Refuse || n.Action == Absent {
			left = append(left, report.LeftNode{Name: n.Name, Unfit: n.Unfit, Hint: n.Hint})
		}
	}
	return left
}

// printGroups prints the sizes of the groups of --serial, if there are any.
func (p Plan) printGroups(w io.Writer) error {
	var sizes []int
	for _, n := range p.Nodes {
		for len(sizes) < n.Serial {
			sizes = append(sizes, 0)
		}
		if n.Serial > 0 {
			sizes[n.Serial-1]++
		}
	}
	if len(sizes) == 0 {
		return nil
	}
	const most = 8
	words := make([]string, min(len(sizes), most))
	for i := range words {
		words[i] = strconv.Itoa(sizes[i])
	}
	if len(sizes) > most {
		words[most-1] = "…, " + strconv.Itoa(sizes[len(sizes)-1])
	}
	_, err := fmt.Fprintf(w, "in %d groups, one after the other: %s nodes\n", len(sizes), strings.Join(words, ", "))
	return err
}

// Err is the error that the report of this plan will have, as far as the plan can tell.
func (p Plan) Err() error {
	return report.PlanErr(len(p.Nodes), p.Left())
}
