package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Select returns the part of the inventory that matches expr, in file order. expr is a
// comma-separated list of nodes, node ranges, node/env names, groups, globs of these (gpu*, gpu-?,
// gpu[ab], gpu[!ab]), and @FILE for the nodes that are not ok in a report. A term after "!" is
// excluded; exclusions alone start from all nodes. An empty expr selects all nodes. Select returns
// an error for an unknown name, an empty selection, or a selected node that is not supported.
func (inv *Inventory) Select(expr string) (*Inventory, error) {
	if strings.TrimSpace(expr) == "" {
		return inv.usable("")
	}
	if strings.ContainsAny(expr, "\x01\x02\\") {
		return nil, selectionError("invalid character in --limit %q", expr)
	}
	// Map every name that a selection may use to indexes into Hosts.
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
	find := selector{inv: inv, expr: expr, index: index}
	chosen, excluded := make(map[int]bool), make(map[int]bool)
	excludeOnly := true
	for _, term := range splitTerms(expr) {
		if len(find.wrong.Problems) >= lineerr.Shown {
			break
		}
		target := chosen
		if rest, exclude := strings.CutPrefix(term, "!"); exclude {
			term, target = strings.TrimSpace(rest), excluded
		} else {
			excludeOnly = false
		}
		found := find.find
		if file, report := strings.CutPrefix(term, "@"); report {
			term, found = file, find.failedNodes
		}
		for _, i := range found(term) {
			target[i] = true
		}
	}
	if err := find.wrong.Err(); err != nil {
		return nil, err
	}
	selected := *inv
	selected.Hosts, selected.Outside = nil, slices.Clone(inv.Outside)
	for i, h := range inv.Hosts {
		if (excludeOnly || chosen[i]) && !excluded[i] {
			selected.Hosts = append(selected.Hosts, h)
		} else {
			selected.Outside = append(selected.Outside, h)
		}
	}
	if len(selected.Hosts) == 0 {
		return nil, selectionError("no nodes match --limit %q", expr)
	}
	return selected.usable(expr + ",")
}

func selectionError(format, expr string) error {
	var wrong lineerr.List
	wrong.Add(Position{}, "", format, lineerr.Clip(expr))
	return wrong.Err()
}

// usable returns an error if one of the nodes is not supported. Otherwise it keeps only the notes
// about the nodes of this inventory. within are the terms that selected them, for a hint that selects no others.
func (inv *Inventory) usable(within string) (*Inventory, error) {
	if len(inv.faults)+len(inv.Notes) == 0 {
		return inv, nil
	}
	there := make(map[string]bool, len(inv.Hosts))
	for _, h := range inv.Hosts {
		there[h.Node] = true
	}
	// A fault that several nodes share at one place is reported once.
	nodes := make(map[unusable][]string)
	var order []unusable
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
	var wrong lineerr.List
	for _, f := range order {
		p := f.problem
		names := ui.FoldNames(nodes[f])
		if p.Position.Line == 0 {
			p.Message = lineerr.Clip(names) + ": " + p.Message
		}
		if f.apart {
			p.Hint = "exclude it: --limit '" + within + "!" + strings.Join(splitTerms(names), ",!") + "'"
		}
		wrong.Problems = append(wrong.Problems, p)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	kept := *inv
	kept.faults = nil
	kept.Notes = slices.DeleteFunc(slices.Clone(inv.Notes), func(r Note) bool {
		return r.Node != "" && !there[r.Node]
	})
	return &kept, nil
}

// selector finds the hosts selected by terms.
type selector struct {
	inv    *Inventory
	index  map[string][]int
	sorted []string // its names, for hints
	expr   string   // the whole selection
	work   int
	wrong  lineerr.List
}

// maxWork limits the cost of a selection: names after expansion, names compared with patterns,
// and nodes found. It takes a second or two.
const maxWork = 10_000_000

// errTooMuch is a selection that costs more than maxWork.
var errTooMuch = errors.New("too many nodes selected, or the same nodes too often")

// find returns the indexes of the hosts selected by a term without "!".
func (s *selector) find(term string) []int {
	names, err := Expand(set.ReplaceAllString(term, "\x01$1\x02"))
	if s.work += len(names); err == nil && s.work > maxWork {
		err = errTooMuch
	}
	var found []int
	for _, name := range names {
		if err != nil || len(s.wrong.Problems) == lineerr.Shown {
			break // the first mistakes suffice
		}
		hosts := s.index[name]
		if strings.ContainsAny(name, "*?\x01") {
			name = strings.NewReplacer("\x01!", "[^", "\x01", "[", "\x02", "]").Replace(name)
			hosts, err = s.match(name)
		}
		if len(hosts) == 0 && err == nil {
			if s.sorted == nil {
				s.sorted = slices.Sorted(maps.Keys(s.index))
			}
			hint := cmp.Or(lineerr.DidYouMean(name, s.sorted), "list them: dsbuild nodes "+s.inv.Path)
			s.wrong.Add(Position{}, hint, "unknown node or group %q", lineerr.Clip(name))
		}
		if s.work += len(hosts); err == nil && s.work > maxWork {
			err = errTooMuch
		}
		found = append(found, hosts...)
	}
	if err != nil {
		s.wrong.Add(Position{}, "", "--limit %q: %v", lineerr.Clip(cmp.Or(term, s.expr)), err)
		return nil
	}
	return found
}

// match returns the hosts whose name or group matches a pattern.
func (s *selector) match(pattern string) ([]int, error) {
	if s.work += len(s.index); s.work > maxWork {
		return nil, errTooMuch
	}
	var found []int
	for name, hosts := range s.index {
		ok, err := path.Match(pattern, name)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", lineerr.Clip(pattern), err)
		}
		if ok {
			found = append(found, hosts...)
		}
	}
	return found, nil
}

// set matches the brackets of a pattern with characters, at least one of them a letter, or with
// excluded characters. [12] and [1-2] are ranges.
var set = regexp.MustCompile(`\[([!^][A-Za-z0-9._-]+|[A-Za-z0-9._-]*[A-Za-z][A-Za-z0-9._-]*)\]`)

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
