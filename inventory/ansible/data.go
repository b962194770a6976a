package ansible

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// data collects groups and hosts while a reader reads a file.
type data struct {
	*diagnostic.List
	file   string
	groups map[string]*group
	order  []*group // in the order of their first mention
	hosts  map[string]*host
	edges  map[[2]*group]diagnostic.Position // where the file puts a group into another
	work   int
	full   bool
}

// group is a group with its own values, without inherited ones.
type group struct {
	name     string
	at       diagnostic.Position
	hosts    []*host
	has      map[*host]bool
	children []*group
	parents  []*group
	vars     map[string]Var
	priority int
	depth    int // longest way from "all"
	place    int // in the order of the walk from "all"
}

// host is a host with its own values, without inherited ones.
type host struct {
	name   string
	at     diagnostic.Position
	vars   map[string]Var
	groups []*group
}

func newData(file string, wrong *diagnostic.List) *data {
	d := &data{List: wrong, file: file, groups: map[string]*group{}, hosts: map[string]*host{}, edges: map[[2]*group]diagnostic.Position{}}
	d.addChild(d.group("all", diagnostic.Position{}), d.group("ungrouped", diagnostic.Position{}), diagnostic.Position{})
	return d
}

// group returns the group of that name, and creates it if it does not exist.
func (d *data) group(name string, at diagnostic.Position) *group {
	g := d.groups[name]
	if g == nil {
		g = &group{name: name, at: at, priority: 1, has: map[*host]bool{}}
		d.groups[name] = g
		d.order = append(d.order, g)
	}
	return g
}

// addChild makes child a part of parent.
func (d *data) addChild(parent, child *group, at diagnostic.Position) {
	edge := [2]*group{parent, child}
	if _, known := d.edges[edge]; known {
		return
	}
	d.edges[edge] = at
	parent.children = append(parent.children, child)
	child.parents = append(child.parents, parent)
}

// addHost puts a host into a group. As in Ansible, the port counts only if the host is new.
func (d *data) addHost(name string, port int64, in *group, at diagnostic.Position) *host {
	if d.full {
		return nil
	}
	h := d.hosts[name]
	if h == nil {
		if len(d.hosts) == MaxHosts {
			d.full = true
			d.Add(at, "", "more than %d hosts", MaxHosts)
			return nil
		}
		h = &host{name: name, at: at, vars: map[string]Var{}}
		d.hosts[name] = h
		if port != 0 {
			h.vars["ansible_port"] = Var{port, at}
		}
	}
	if d.work++; d.work > maxWork {
		d.tooLarge()
		return nil
	}
	if !in.has[h] {
		in.has[h] = true
		in.hosts = append(in.hosts, h)
		h.groups = append(h.groups, in)
	}
	return h
}

// setAll gives a host variables of its own.
func (d *data) setAll(h *host, vars map[string]Var) {
	d.work += len(vars)
	maps.Copy(h.vars, vars)
}

// set records a variable of a group.
func (d *data) set(g *group, name string, v Var) {
	if name != "ansible_group_priority" {
		if kept(name) {
			if g.vars == nil {
				g.vars = map[string]Var{}
			}
			g.vars[name] = v
		}
		return
	}
	switch n := v.Value.(type) {
	case int64:
		g.priority = int(n)
		return
	case string:
		if p, err := strconv.Atoi(n); err == nil {
			g.priority = p
			return
		}
	}
	d.Add(v.At, "", "ansible_group_priority must be a whole number")
}

// inventory builds the Inventory from the collected groups and hosts.
func (d *data) inventory() *Inventory {
	all, ungrouped := d.groups["all"], d.groups["ungrouped"]
	for _, g := range d.order {
		if g != all && len(g.parents) == 0 {
			d.addChild(all, g, g.at)
		}
	}
	inv := &Inventory{}
	if !d.depths() {
		return inv
	}
	d.sortOut(all, ungrouped)
	order := walk(all)
	known := map[string]inherited{}
	for _, h := range order {
		from := d.inherit(h, known)
		vars := from.vars
		if len(h.vars) > 0 {
			d.work += len(vars)
			own := make(map[string]Var, len(vars)+len(h.vars))
			maps.Copy(own, vars)
			maps.Copy(own, h.vars)
			vars = own
		}
		if d.work += len(from.groups); d.work > maxWork {
			d.tooLarge()
			return &Inventory{}
		}
		inv.Hosts = append(inv.Hosts, Host{Name: h.name, Groups: slices.Clone(from.groups), Vars: vars, At: h.at})
	}
	return inv
}

func (d *data) tooLarge() {
	if d.full {
		return
	}
	d.full = true
	d.Add(diagnostic.Position{File: d.file}, "", "there are too many hosts, groups and variables")
}

// sortOut removes from "ungrouped" the hosts that are in another group, and adds the hosts that
// are in none.
func (d *data) sortOut(all, ungrouped *group) {
	elsewhere := func(h *host) bool {
		return slices.ContainsFunc(h.groups, func(g *group) bool { return g != all && g != ungrouped })
	}
	leave := func(h *host) bool { return elsewhere(h) }
	for _, h := range ungrouped.hosts {
		if leave(h) {
			h.groups = slices.DeleteFunc(h.groups, func(g *group) bool { return g == ungrouped })
			delete(ungrouped.has, h)
		}
	}
	ungrouped.hosts = slices.DeleteFunc(ungrouped.hosts, leave)
	for _, h := range all.hosts {
		if !elsewhere(h) && !ungrouped.has[h] {
			d.addHost(h.name, 0, ungrouped, h.at)
		}
	}
}

// walk numbers the groups and returns the hosts in Ansible's order: group by group, breadth first
// from "all".
func walk(all *group) []*host {
	queue := []*group{all}
	seen := map[*group]bool{all: true}
	var hosts []*host
	listed := map[*host]bool{}
	for i := 0; i < len(queue); i++ {
		g := queue[i]
		g.place = i
		if g != all { // its own are in "ungrouped" or in a group of their own
			for _, h := range g.hosts {
				if !listed[h] {
					listed[h] = true
					hosts = append(hosts, h)
				}
			}
		}
		for _, c := range g.children {
			if !seen[c] {
				seen[c] = true
				queue = append(queue, c)
			}
		}
	}
	return hosts
}

// depths finds for each group the longest way from "all". If a group contains itself, there is
// none: depths records a problem and returns false.
func (d *data) depths() bool {
	missing := map[*group]int{}
	var ready []*group
	for _, g := range d.order {
		if missing[g] = len(g.parents); missing[g] == 0 {
			ready = append(ready, g)
		}
	}
	done := 0
	for ; done < len(ready); done++ {
		for _, c := range ready[done].children {
			c.depth = max(c.depth, ready[done].depth+1)
			if missing[c]--; missing[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	if done == len(d.order) {
		return true
	}
	at := d.order[slices.IndexFunc(d.order, func(g *group) bool { return missing[g] > 0 })]
	for seen := map[*group]bool{}; ; {
		above := at.parents[slices.IndexFunc(at.parents, func(g *group) bool { return missing[g] > 0 })]
		if seen[above] {
			d.Add(d.edges[[2]*group{above, at}], "", "group %s contains itself by way of %s", clip(above.name), clip(at.name))
			return false
		}
		seen[above], at = true, above
	}
}

// inherited holds the values that hosts with the same groups share.
type inherited struct {
	groups []string // without "all" and "ungrouped"
	vars   map[string]Var
}

// inherit returns the groups and variables that a host has from its groups. known caches the
// results for hosts with the same groups.
func (d *data) inherit(h *host, known map[string]inherited) inherited {
	slices.SortFunc(h.groups, inOrder)
	var key strings.Builder
	for _, g := range h.groups {
		key.WriteString(strconv.Itoa(g.place) + " ")
	}
	if from, ok := known[key.String()]; ok {
		return from
	}
	groups := above(h.groups)
	d.work += len(groups)
	from := inherited{vars: d.merged(groups)}
	for _, g := range groups {
		if g.name != "all" && g.name != "ungrouped" {
			from.groups = append(from.groups, g.name)
		}
	}
	known[key.String()] = from
	return from
}

func inOrder(a, b *group) int { return a.place - b.place }

// above returns groups and all groups that contain them, in the order of the walk.
func above(groups []*group) []*group {
	found := slices.Clone(groups)
	seen := map[*group]bool{}
	for _, g := range found {
		seen[g] = true
	}
	for i := 0; i < len(found); i++ {
		for _, p := range found[i].parents {
			if !seen[p] {
				seen[p] = true
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, inOrder)
	return found
}

// merged returns the variables of groups, merged in Ansible's order: by depth, then priority,
// then name.
func (d *data) merged(groups []*group) map[string]Var {
	with := slices.DeleteFunc(slices.Clone(groups), func(g *group) bool { return len(g.vars) == 0 })
	slices.SortFunc(with, func(a, b *group) int {
		return cmp.Or(a.depth-b.depth, cmp.Compare(a.priority, b.priority), strings.Compare(a.name, b.name))
	})
	vars := map[string]Var{}
	for _, g := range with {
		if d.work += len(g.vars); d.work > maxWork {
			break // the caller records it
		}
		maps.Copy(vars, g.vars)
	}
	return vars
}

func clip(s string) string { return strconv.Quote(diagnostic.Clip(s)) }
