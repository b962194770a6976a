package inventory

import (
	"errors"
	"strings"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// topKeys returns the keys of the document itself.
func topKeys() []string { return []string{"defaults", "known_hosts", "nodes", "policy"} }

// inventory reads the whole document.
func (r *reader) inventory(body yamldoc.Node) *Inventory {
	inv := &Inventory{}
	var defaults settings
	var nodes yamldoc.Node
	for _, p := range r.Pairs(body, "the inventory", topKeys()) {
		switch p.Key {
		case "defaults":
			defaults, _ = r.settings(p.Node, "defaults", inDefaults)
		case "known_hosts":
			inv.KnownHosts = r.path(p.Node).value
		case "nodes":
			nodes = p.Node
		case "policy":
			inv.Policy = r.path(p.Node).value
		}
	}
	if nodes == nil {
		if len(r.Problems) == 0 {
			r.Add(r.Place(body), "", "no nodes in the inventory")
		}
		return nil
	}
	entries := r.Entries(nodes, "nodes")
	if entries != nil && len(entries) == 0 {
		r.Add(r.Place(nodes), "", "no nodes in the inventory")
	}
	list := nodeList{reader: r, defaults: defaults, first: make(map[string]Position)}
	for _, entry := range entries {
		list.add(entry)
	}
	// Reject a group with the name of a node: --limit could not tell them apart.
	seen := make(map[string]bool)
	for _, g := range list.groups {
		if first, isNode := list.first[g.name]; isNode && !seen[g.name] {
			seen[g.name] = true
			list.Add(g.at, "", "group %s has the same name as the node at %s", g.name, first)
		}
	}
	inv.Hosts = list.hosts
	return inv
}

// nodeList collects the entries of nodes.
type nodeList struct {
	*reader
	defaults settings
	hosts    []Host
	first    map[string]Position // the first place of each node
	groups   []groupUse
	notes    []Note
	held     int // of maxHeld
	full     bool
}

// groupUse is a group and a place where it is used.
type groupUse struct {
	name string
	at   Position
}

// add reads one entry of nodes.
func (l *nodeList) add(entry yamldoc.Node) {
	own, owned := l.settings(entry, "a node", inNode, "hosts")
	hosts, ok := owned["hosts"]
	if !ok {
		if yamldoc.IsMapping(entry) {
			l.Add(l.Place(entry), "", `missing key "hosts"`)
		}
		return
	}
	names := l.names(hosts)
	at := l.Place(hosts)
	if len(names) > 1 && own.address.set {
		l.Add(at, "write one entry for each address", "address set for %d nodes", len(names))
	}
	// Merging costs as much as its result holds, even for an entry without names: count it first.
	if l.hold(at, own.size()+l.defaults.size()) {
		return
	}
	merged := own.over(l.defaults)
	for _, g := range merged.groups {
		l.groups = append(l.groups, groupUse{g, at})
	}
	for _, name := range names {
		if l.full {
			return
		}
		l.addNode(name, at, merged)
	}
}

func (l *nodeList) addNode(name string, at Position, s settings) {
	if first, twice := l.first[name]; twice {
		if first == at {
			l.Add(at, "", "duplicate node %s in this expression", name)
		} else {
			l.Add(at, "", "duplicate node %s: first defined at %s", name, first)
		}
		return
	}
	l.first[name] = at
	if l.hold(at, s.size()) {
		return
	}
	hosts := s.hosts(name, at)
	if l.full = len(l.hosts)+len(hosts) > MaxNames; l.full {
		l.Add(at, "", "more than %d nodes", MaxNames)
		return
	}
	l.hosts = append(l.hosts, hosts...)
}

// hold counts the values that nodes hold. It reports whether they exceed maxHeld, and records
// that problem once.
func (l *nodeList) hold(at Position, size int) (tooMuch bool) {
	if l.held += size; l.held > maxHeld && !l.full {
		l.full = true
		l.Add(at, "", "too many variables and groups")
	}
	return l.full
}

// names reads the range expression of hosts.
func (l *nodeList) names(n yamldoc.Node) []string {
	expr := l.word(n, nil)
	if !expr.set {
		return nil
	}
	at := l.Place(n)
	return l.expand(expr.value, at, func(offset int) Position { return l.inside(n, at, expr.value, offset) })
}

// expand returns the names of the range expression at a place. inside returns the place of one of
// its bytes.
func (l *nodeList) expand(expr string, at Position, inside func(int) Position) []string {
	names, err := Expand(expr)
	var wrong *RangeError
	if errors.As(err, &wrong) {
		l.Add(inside(wrong.Offset), "", "%s", wrong.Message)
		return nil
	}
	if l.hold(at, len(names)) {
		return nil
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			l.Add(at, nameHint(name), "%v", err)
			return nil
		}
	}
	return names
}

// maxExcerpt is the maximum length, in bytes, of a line that is searched for a place.
const maxExcerpt = 10_000

// inside returns the position of a byte of a text, if the file holds that text literally.
func (l *nodeList) inside(n yamldoc.Node, at Position, text string, offset int) Position {
	if !yamldoc.IsPlain(n) || at.Line > len(l.Lines) || len(l.Lines[at.Line-1]) > maxExcerpt {
		return at
	}
	line := []rune(l.Lines[at.Line-1])
	if at.Column > len(line) {
		return at
	}
	before, _, found := strings.Cut(string(line[at.Column-1:]), text)
	if !found || len(before) > 1 { // more than an opening quote
		return at
	}
	at.Column += len([]rune(before)) + len([]rune(text[:offset]))
	return at
}

// environments reads envs: several Python environments on one node.
func (r *reader) environments(n yamldoc.Node) optional[[]environment] {
	var all []environment
	given := make(map[string]bool)
	for _, entry := range r.Entries(n, "envs") {
		s, owned := r.settings(entry, "an env", inEnv, "name")
		node, ok := owned["name"]
		if !ok {
			if yamldoc.IsMapping(entry) {
				r.Add(r.Place(entry), "", `missing key "name"`)
			}
			continue
		}
		name := r.word(node, checkName)
		if !name.set {
			continue
		}
		if given[name.value] {
			r.Add(r.Place(node), "", "duplicate env %s", name.value)
			continue
		}
		given[name.value] = true
		all = append(all, environment{name.value, s})
	}
	return some(all)
}
