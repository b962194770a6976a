// Package ansible reads the output of ansible-inventory --list. It returns the hosts with their groups
// and variables; package inventory gives the variables a meaning.
//
// Of the variables it keeps those that begin with ansible_ or dsbuild_, and slots. Templates are not
// evaluated, and nothing is decrypted.
package ansible

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

const (
	// MaxHosts is the maximum number of hosts in an inventory.
	MaxHosts = 100_000
	// maxWork bounds the memberships of hosts and groups in groups and in the groups above those.
	maxWork = 2_000_000
)

// Host is one host with its variables, which include those of its groups.
type Host struct {
	Name string
	// Groups are its groups and the groups that contain those, without "all" and "ungrouped".
	Groups []string
	// Vars are its variables. A value is a string, an int64, a float64, a bool, nil, a []any, a
	// map[string]any or Secret.
	Vars map[string]any
}

// Secret stands for an encrypted value.
type Secret struct{}

// IsTemplate reports whether Ansible would evaluate s where it is used.
func IsTemplate(s string) bool { return strings.Contains(s, "{{") || strings.Contains(s, "{%") }

// kept reports whether a variable is needed. slots is from hostfiles.
func kept(name string) bool {
	return strings.HasPrefix(name, "ansible_") || strings.HasPrefix(name, "dsbuild_") || name == "slots"
}

// IsList reports whether text looks like the output of ansible-inventory --list: a JSON object
// with "_meta".
func IsList(text string) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	var top map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &top) == nil && top["_meta"] != nil
}

// group is a group of the list.
type group struct {
	Hosts    []string       `json:"hosts"`
	Children []string       `json:"children"`
	Vars     map[string]any `json:"vars"`

	parents []string // the groups that contain it
}

// ReadList reads the output of ansible-inventory --list. It returns the hosts in the order in which
// Ansible lists them: group by group, breadth first from "all". The output has no line numbers: each
// problem is reported for the whole file.
func ReadList(file string, text []byte, wrong *lineerr.List) []Host {
	l := list{List: wrong, at: lineerr.Position{File: file}, groups: map[string]*group{}}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		l.Add(l.at, "", "not a JSON object: %v", err)
		return nil
	}
	var meta struct {
		Vars map[string]map[string]any `json:"hostvars"`
	}
	if err := decode(top["_meta"], &meta); err != nil {
		l.Add(l.at, "", "_meta: %v", err)
		return nil
	}
	delete(top, "_meta")
	for _, name := range slices.Sorted(maps.Keys(top)) {
		g, quoted := &group{}, strconv.Quote(lineerr.Clip(name))
		if err := decode(top[name], g); err != nil {
			l.Add(l.at, "", "group %s: %v", quoted, err)
			continue
		}
		// Programs of dynamic inventories print variables of groups; the output of ansible-inventory has none.
		for variable := range g.Vars {
			if kept(variable) {
				l.Add(l.at, "use the inventory itself, or the output of ansible-inventory -i INVENTORY --list",
					"unexpected variables in group %s: not the output of ansible-inventory --list", quoted)
				break
			}
		}
		l.groups[name] = g
	}
	hosts := l.hosts(meta.Vars)
	if len(hosts) > MaxHosts {
		l.Add(l.at, "", "more than %d hosts", MaxHosts)
		return nil
	}
	return hosts
}

// list holds the groups of one list.
type list struct {
	*lineerr.List
	at     lineerr.Position
	groups map[string]*group
	work   int // of maxWork
}

// hosts returns all hosts: first those of the groups, in Ansible's order, then those that only have
// variables.
func (l *list) hosts(vars map[string]map[string]any) []Host {
	place := map[string]int{}
	groups := map[string]map[string]bool{} // of each host
	var names []string
	for i, name := range l.walk() {
		place[name] = i
		for _, h := range l.groups[name].Hosts {
			if groups[h] == nil {
				groups[h] = map[string]bool{}
				names = append(names, h)
			}
			l.addAbove(name, groups[h])
		}
		if l.work > maxWork {
			l.Add(l.at, "", "too many hosts and groups")
			return nil
		}
	}
	for _, h := range slices.Sorted(maps.Keys(vars)) {
		if groups[h] == nil {
			names = append(names, h)
		}
	}
	all := make([]Host, len(names))
	for i, h := range names {
		delete(groups[h], "all")
		delete(groups[h], "ungrouped")
		in := slices.SortedFunc(maps.Keys(groups[h]), func(a, b string) int { return place[a] - place[b] })
		all[i] = Host{Name: h, Groups: in, Vars: map[string]any{}}
		for name, value := range vars[h] {
			if kept(name) {
				all[i].Vars[name] = plain(value)
			}
		}
	}
	return all
}

// walk returns the names of all groups in Ansible's order and records their parents. A top-level group
// is part of "all".
func (l *list) walk() []string {
	var order []string
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] && l.groups[name] != nil {
			seen[name] = true
			order = append(order, name)
		}
	}
	next := 0
	for _, root := range append([]string{"all"}, slices.Sorted(maps.Keys(l.groups))...) {
		add(root)
		for ; next < len(order); next++ {
			for _, child := range l.groups[order[next]].Children {
				add(child)
				if c := l.groups[child]; c != nil {
					c.parents = append(c.parents, order[next])
				}
			}
		}
	}
	return order
}

// addAbove adds a group and all groups above it.
func (l *list) addAbove(name string, to map[string]bool) {
	if l.work++; to[name] || l.work > maxWork {
		return
	}
	to[name] = true
	for _, parent := range l.groups[name].parents {
		l.addAbove(parent, to)
	}
}

// decode reads JSON and keeps whole numbers whole. A nil raw leaves to unchanged.
func decode(raw json.RawMessage, to any) error {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(to); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return fmt.Errorf("unexpected format: JSON %s%s", wrong.Value, strings.TrimSuffix(" in "+wrong.Field, " in "))
		}
		return fmt.Errorf("unexpected format: %w", err)
	}
	return nil
}

// plain turns JSON numbers and Ansible's marks into the values of Host.Vars.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		if text, ok := v["__ansible_unsafe"].(string); ok && len(v) == 1 {
			return text
		}
		if _, ok := v["__ansible_vault"]; ok && len(v) == 1 {
			return Secret{}
		}
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}
