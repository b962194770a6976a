package inventory

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Select returns the part of the inventory that expr names, in the order of
// the file: a list, separated by commas, of nodes, ranges of nodes, node/env
// names and groups; what follows a "!" is left out. Exclusions alone leave out
// of everything. An empty expr is everything. What the inventory does not
// know is an error, and so is a selection of nothing.
func (inv *Inventory) Select(expr string) (*Inventory, error) {
	if strings.TrimSpace(expr) == "" {
		return inv, nil
	}
	index := inv.byName()
	chosen, excluded := make(map[int]bool), make(map[int]bool)
	failure := &Error{}
	excludeOnly := true
	for _, term := range splitTerms(expr) {
		target := chosen
		if rest, exclude := strings.CutPrefix(term, "!"); exclude {
			term, target = strings.TrimSpace(rest), excluded
		} else {
			excludeOnly = false
		}
		for _, i := range inv.find(term, index, failure) {
			target[i] = true
		}
	}
	if len(failure.Problems) > 0 {
		return nil, failure
	}
	selected := *inv
	selected.Hosts = nil
	for i, h := range inv.Hosts {
		if (excludeOnly || chosen[i]) && !excluded[i] {
			selected.Hosts = append(selected.Hosts, h)
		}
	}
	if len(selected.Hosts) == 0 {
		failure.add("the selection "+strconv.Quote(clip(expr))+" leaves no node", "")
		return nil, failure
	}
	return &selected, nil
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
func (inv *Inventory) find(term string, index map[string][]int, failure *Error) []int {
	names, err := Expand(term)
	var wrong *RangeError
	if errors.As(err, &wrong) {
		failure.add("the selection "+strconv.Quote(clip(term))+": "+wrong.Message, "")
		return nil
	}
	var found []int
	for _, name := range names {
		hosts, ok := index[name]
		if !ok {
			if len(failure.Problems) == maxProblems {
				return found // enough to see what is wrong
			}
			failure.add("no node or group is called "+strconv.Quote(clip(name)), inv.suggest(name, index))
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
	if near := nearest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return "dsbuild nodes " + inv.Path + " lists them"
}

func (e *Error) add(message, hint string) {
	e.Problems = append(e.Problems, Problem{Message: message, Hint: hint})
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
