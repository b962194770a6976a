package inventory

import (
	"errors"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Select returns the part of the inventory that expr names, in the order of
// the file: a list, separated by commas, of nodes, ranges of nodes, node/env
// names and groups; what follows a "!" is left out. Exclusions alone leave out
// of everything. An empty expr is everything. What the inventory does not
// know is an error, and so is a selection of nothing, or of a node that cannot
// be reached.
func (inv *Inventory) Select(expr string) (*Inventory, error) {
	if strings.TrimSpace(expr) == "" {
		return inv.usable()
	}
	index := inv.byName()
	chosen, excluded := make(map[int]bool), make(map[int]bool)
	var wrong mistake.List
	excludeOnly := true
	for _, term := range splitTerms(expr) {
		target := chosen
		if rest, exclude := strings.CutPrefix(term, "!"); exclude {
			term, target = strings.TrimSpace(rest), excluded
		} else {
			excludeOnly = false
		}
		for _, i := range inv.find(term, index, &wrong) {
			target[i] = true
		}
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	selected := *inv
	selected.Hosts = nil
	for i, h := range inv.Hosts {
		if (excludeOnly || chosen[i]) && !excluded[i] {
			selected.Hosts = append(selected.Hosts, h)
		}
	}
	if len(selected.Hosts) == 0 {
		wrong.Add(Position{}, "", "the selection %q leaves no node", mistake.Clip(expr))
		return nil, wrong.Err()
	}
	return selected.usable()
}

// usable refuses what dsbuild cannot reach, and keeps the remarks about what it
// can.
func (inv *Inventory) usable() (*Inventory, error) {
	if len(inv.faults)+len(inv.Remarks) == 0 {
		return inv, nil
	}
	there := make(map[string]bool, len(inv.Hosts))
	for _, h := range inv.Hosts {
		there[h.Node] = true
	}
	if err := inv.faulty(there); err != nil {
		return nil, err
	}
	kept := *inv
	kept.faults = nil
	kept.Remarks = slices.DeleteFunc(slices.Clone(inv.Remarks), func(r Remark) bool { return r.Node != "" && !there[r.Node] })
	return &kept, nil
}

// faulty is an error of the faults of the nodes that are there; what is said of
// several in one place is said once.
func (inv *Inventory) faulty(there map[string]bool) error {
	nodes := make(map[fault][]string)
	var order []fault
	for _, f := range inv.faults {
		if !there[f.node] {
			continue
		}
		name := f.node
		f.node = ""
		if nodes[f] == nil {
			order = append(order, f)
		}
		nodes[f] = append(nodes[f], name)
	}
	var wrong mistake.List
	for _, f := range order {
		p := f.problem
		names := ui.FoldNames(nodes[f])
		if p.Position.Line == 0 {
			p.Message = mistake.Clip(names) + ": " + p.Message
		}
		if f.apart {
			p.Hint = "leave it out: --limit '!" + strings.Join(splitTerms(names), ",!") + "'"
		}
		wrong.Problems = append(wrong.Problems, p)
	}
	return wrong.Err()
}

// byName maps every name that a selection may use to indexes into Hosts.
func (inv *Inventory) byName() map[string][]int {
	index := make(map[string][]int)
	for i, h := range inv.Hosts {
		index[h.Node] = append(index[h.Node], i)
		if h.Name != h.Node {
			index[h.Name] = append(index[h.Name], i)
		}
		for _, g := range h.Groups {
			index[g] = append(index[g], i)
		}
	}
	return index
}

// find returns the indexes of the hosts that a term without "!" names.
func (inv *Inventory) find(term string, index map[string][]int, failure *mistake.List) []int {
	names, err := Expand(term)
	var wrong *RangeError
	if errors.As(err, &wrong) {
		failure.Add(Position{}, "", "the selection %q: %s", mistake.Clip(term), wrong.Message)
		return nil
	}
	var found []int
	for _, name := range names {
		hosts, ok := index[name]
		if !ok {
			if len(failure.Problems) == mistake.Shown {
				return found // enough to see what is wrong
			}
			failure.Add(Position{}, inv.suggest(name, index), "no node or group is called %q", mistake.Clip(name))
		}
		found = append(found, hosts...)
	}
	return found
}

// suggest is the hint for a name that the inventory does not know.
func (inv *Inventory) suggest(name string, index map[string][]int) string {
	known := make([]string, 0, len(index))
	for k := range index {
		known = append(known, k)
	}
	slices.Sort(known)
	if near := mistake.Nearest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return "dsbuild nodes " + inv.Path + " lists them"
}

// splitTerms splits at the commas outside brackets.
func splitTerms(expr string) []string {
	var terms []string
	depth, start := 0, 0
	for i, c := range expr {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				terms = append(terms, strings.TrimSpace(expr[start:i]))
				start = i + 1
			}
		}
	}
	return append(terms, strings.TrimSpace(expr[start:]))
}
