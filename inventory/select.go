package inventory

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Select returns the part of the inventory that expr names, in the order of
// the file: a list, separated by commas, of nodes, ranges of nodes, node/env
// names, groups, and patterns of these (gpu*, gpu-?, gpu[ab], gpu[!ab]); what
// follows a "!" is left out. Exclusions alone leave out
// of everything. An empty expr is everything. What the inventory does not
// know is an error, and so is a selection of nothing, or of a node that cannot
// be reached.
func (inv *Inventory) Select(expr string) (*Inventory, error) {
	if strings.TrimSpace(expr) == "" {
		return inv.usable()
	}
	if strings.ContainsAny(expr, "\x01\x02\\") {
		return nil, selectionError("the selection %q: a character that no name has", expr)
	}
	find := selector{inv: inv, index: inv.byName()}
	chosen, excluded := make(map[int]bool), make(map[int]bool)
	excludeOnly := true
	for _, term := range splitTerms(expr) {
		if len(find.wrong.Problems) >= mistake.Shown {
			break
		}
		target := chosen
		if rest, exclude := strings.CutPrefix(term, "!"); exclude {
			term, target = strings.TrimSpace(rest), excluded
		} else {
			excludeOnly = false
		}
		for _, i := range find.find(term) {
			target[i] = true
		}
	}
	if err := find.wrong.Err(); err != nil {
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
		return nil, selectionError("the selection %q leaves no node", expr)
	}
	return selected.usable()
}

func selectionError(format, expr string) error {
	var wrong mistake.List
	wrong.Add(Position{}, "", format, mistake.Clip(expr))
	return wrong.Err()
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

// selector finds what the terms of one selection name.
type selector struct {
	inv    *Inventory
	index  map[string][]int
	sorted []string // its names, for hints
	work   int
	wrong  mistake.List
}

// maxWork bounds what a selection costs: names that it stands for, names compared
// with patterns, and nodes found. It is a second or two.
const maxWork = 10_000_000

// errTooMuch is a selection that costs more than maxWork.
var errTooMuch = errors.New("it names too much, too often")

// find returns the indexes of the hosts that a term without "!" names.
func (s *selector) find(term string) []int {
	names, err := Expand(hideSets(term))
	if s.work += len(names); err == nil && s.work > maxWork {
		err = errTooMuch
	}
	var found []int
	for _, name := range names {
		if err != nil || len(s.wrong.Problems) == mistake.Shown {
			break // enough to see what is wrong
		}
		hosts := s.index[name]
		if strings.ContainsAny(name, "*?\x01") {
			name = showSets(name)
			hosts, err = s.match(name)
		}
		if len(hosts) == 0 && err == nil {
			s.wrong.Add(Position{}, s.suggest(name), "no node or group is called %q", mistake.Clip(name))
		}
		if s.work += len(hosts); err == nil && s.work > maxWork {
			err = errTooMuch
		}
		found = append(found, hosts...)
	}
	if err != nil {
		s.wrong.Add(Position{}, "", "the selection %q: %v", mistake.Clip(term), err)
		return nil
	}
	return found
}

// match returns the hosts whose names, or the names of whose groups, have the
// form of a pattern.
func (s *selector) match(pattern string) ([]int, error) {
	if s.work += len(s.index); s.work > maxWork {
		return nil, errTooMuch
	}
	var found []int
	for name, hosts := range s.index {
		ok, err := path.Match(pattern, name)
		if err != nil {
			return nil, fmt.Errorf("the pattern %q: %w", mistake.Clip(pattern), err)
		}
		if ok {
			found = append(found, hosts...)
		}
	}
	return found, nil
}

// set is what stands in the brackets of a pattern: characters, one of which is a
// letter, or those that may not stand there. [12] and [1-2] are ranges.
var set = regexp.MustCompile(`\[([!^][A-Za-z0-9._-]+|[A-Za-z0-9._-]*[A-Za-z][A-Za-z0-9._-]*)\]`)

// hideSets takes the brackets of sets out of the way of those of ranges.
func hideSets(term string) string { return set.ReplaceAllString(term, "\x01$1\x02") }

// showSets is the pattern of hideSets as path.Match reads it.
func showSets(name string) string {
	return strings.NewReplacer("\x01!", "[^", "\x01", "[", "\x02", "]").Replace(name)
}

// suggest is the hint for a name that the inventory does not know.
func (s *selector) suggest(name string) string {
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.index))
	}
	if near := mistake.Nearest(name, s.sorted); near != "" {
		return "did you mean " + near + "?"
	}
	return "dsbuild nodes " + s.inv.Path + " lists them"
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
