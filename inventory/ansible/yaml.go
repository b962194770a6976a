package ansible

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

// IsYAML reports whether a YAML document looks like an Ansible inventory:
// groups with hosts, children or vars.
func IsYAML(body ast.Node) bool {
	for _, v := range mapping(body) {
		name := v.Key.GetToken().Value
		if name == "all" || name == "plugin" {
			return true
		}
		for _, inner := range mapping(v.Value) {
			switch inner.Key.GetToken().Value {
			case "hosts", "children", "vars":
				return true
			}
		}
	}
	return false
}

// mapping are the pairs of a mapping, or none.
func mapping(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// yamlReader is on its way through a YAML file.
type yamlReader struct{ *data }

// ReadYAML reads a YAML document. Mistakes are noted in wrong. Anchors, aliases
// and merge keys are mistakes.
func ReadYAML(file string, body ast.Node, wrong *mistake.List) *Inventory {
	r := yamlReader{newData(file, wrong)}
	for _, p := range r.pairs(body, "an inventory") {
		if p.key == "plugin" {
			r.Add(p.at, "", "this configures a plugin, which only Ansible has")
			return &Inventory{}
		}
		r.group(p)
	}
	return r.inventory()
}

func (r yamlReader) at(t *token.Token) mistake.Position {
	if t == nil || t.Position == nil {
		return mistake.Position{File: r.file}
	}
	return mistake.Position{File: r.file, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}

// pair is a key of a mapping and its value.
type pair struct {
	key   string
	at    mistake.Position
	value ast.Node
}

// pairs returns what a mapping holds; nothing and, where Ansible takes it for a
// key without a value, a text count as one. what is what messages call it.
func (r yamlReader) pairs(n ast.Node, what string) []pair {
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.MappingNode, *ast.MappingValueNode:
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		r.noAlias(n)
		return nil
	default:
		r.Add(r.at(n.GetToken()), "", "%s must be a mapping (key: value)", what)
		return nil
	}
	var all []pair
	for _, v := range mapping(n) {
		at := r.at(v.Key.GetToken())
		name := v.Key.GetToken().Value
		switch key := v.Key.(type) {
		case *ast.StringNode:
			name = key.Value
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		default:
			if v.Key.IsMergeKey() {
				r.Add(at, "write it out, or put it into the vars of a group", "merge keys (<<) are not supported")
			} else {
				r.Add(at, "quote it", "a key in %s must be a text", what)
			}
			continue
		}
		all = append(all, pair{name, at, v.Value})
	}
	return all
}

func (r yamlReader) noAlias(n ast.Node) {
	r.Add(r.at(n.GetToken()), "write it out, or put it into the vars of a group", "anchors, aliases and tags are not supported here")
}

// group reads a group and returns it; nil where it is none.
func (r yamlReader) group(p pair) *group {
	g := r.data.group(p.key, p.at)
	for _, part := range r.pairs(p.value, "group "+mistake.Clip(p.key)) {
		if _, isText := part.value.(*ast.StringNode); isText && part.key != "vars" {
			// Ansible takes a text for a key without a value.
			part.value = &ast.MappingValueNode{Key: part.value.(*ast.StringNode), Value: &ast.NullNode{}}
		}
		switch part.key {
		case "hosts":
			for _, h := range r.pairs(part.value, "hosts") {
				r.hosts(h, g)
			}
		case "children":
			for _, c := range r.pairs(part.value, "children") {
				r.addChild(g, r.group(c), c.at)
			}
		case "vars":
			for _, v := range r.pairs(part.value, "vars") {
				if kept(v.key) {
					r.set(g, v.key, Var{r.value(v.value), v.at})
				}
			}
		default:
			advice := "a group holds hosts, children and vars"
			if near := mistake.Nearest(part.key, []string{"hosts", "children", "vars"}); near != "" {
				advice = "did you mean " + strconv.Quote(near) + "?"
			}
			r.Add(part.at, advice, "unknown key %s in group %s", clip(part.key), clip(p.key))
		}
	}
	return g
}

// hosts reads a host, or a range of hosts, of a group.
func (r yamlReader) hosts(p pair, g *group) {
	names, port, ok := r.expand(p.key, p.at)
	vars := map[string]Var{}
	for _, v := range r.pairs(p.value, "host "+mistake.Clip(p.key)) {
		if kept(v.key) {
			vars[v.key] = Var{r.value(v.value), v.at}
		}
	}
	if !ok {
		return
	}
	for _, name := range names {
		h := r.addHost(name, port, g, p.at)
		if h == nil {
			return
		}
		r.setAll(h, vars)
	}
}

// value is a value of a variable.
func (r yamlReader) value(n ast.Node) any {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.IntegerNode:
		if i, err := strconv.ParseInt(n.GetToken().Value, 0, 64); err == nil {
			return i
		}
		return n.GetToken().Value
	case *ast.FloatNode:
		return n.Value
	case *ast.BoolNode:
		return n.Value
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		all := []any{}
		for _, item := range n.Values {
			all = append(all, r.value(item))
		}
		return all
	case *ast.MappingNode, *ast.MappingValueNode:
		all := map[string]any{}
		for _, p := range r.pairs(n, "a variable") {
			all[p.key] = r.value(p.value)
		}
		return all
	case *ast.TagNode:
		switch n.Start.Value {
		case "!vault", "!vault-encrypted":
			return Secret{}
		case "!unsafe", "!!str":
			return r.value(n.Value)
		}
	}
	r.noAlias(n)
	return nil
}
