package ansible

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// IsList reports whether text looks like the output of ansible-inventory --list: a JSON object
// with "_meta".
func IsList(text string) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	var top map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &top) == nil && top["_meta"] != nil
}

// listedGroup is a group in the list.
type listedGroup struct {
	Hosts    []string       `json:"hosts"`
	Children []string       `json:"children"`
	Vars     map[string]any `json:"vars"`
}

// ReadList reads the output of ansible-inventory --list or of a dynamic inventory. It knows no
// line numbers: each problem is reported for the whole file.
func ReadList(file string, text []byte, wrong *diagnostic.List) *Inventory {
	at := diagnostic.Position{File: file}
	d := newData(file, wrong)
	var top map[string]json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		d.Add(at, "", "not a JSON object: %v", err)
		return &Inventory{}
	}
	var meta struct {
		Vars map[string]map[string]any `json:"hostvars"`
	}
	if err := decode(top["_meta"], &meta); err != nil {
		d.Add(at, "", "_meta: %v", err)
		return &Inventory{}
	}
	delete(top, "_meta")
	for _, name := range slices.Sorted(maps.Keys(top)) {
		var g listedGroup
		if err := decode(top[name], &g); err != nil && decode(top[name], &g.Hosts) != nil {
			d.Add(at, "", "group %s: %v", clip(name), err)
			continue
		}
		d.listed(name, g, at)
	}
	for _, name := range slices.Sorted(maps.Keys(meta.Vars)) {
		h := d.hosts[name]
		if h == nil { // of a dynamic inventory that has no group for it
			if h = d.addHost(name, 0, d.groups["ungrouped"], at); h == nil {
				break
			}
		}
		for k, v := range meta.Vars[name] {
			if kept(k) {
				h.vars[k] = Var{plain(v), at}
			}
		}
	}
	return d.inventory()
}

// decode reads JSON and keeps whole numbers whole. A nil raw leaves to unchanged.
func decode(raw json.RawMessage, to any) error {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(to); err != nil {
		return fmt.Errorf("not as expected: %w", err)
	}
	return nil
}

// listed adds a group of the list.
func (d *data) listed(name string, g listedGroup, at diagnostic.Position) {
	group := d.group(name, at)
	for _, h := range g.Hosts {
		if d.addHost(h, 0, group, at) == nil {
			return
		}
	}
	for _, c := range g.Children {
		d.addChild(group, d.group(c, at), at)
	}
	for k, v := range g.Vars {
		d.set(group, k, Var{plain(v), at})
	}
}

// plain converts a JSON value to the types that the other readers return.
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
