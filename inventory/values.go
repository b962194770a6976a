package inventory

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// pair is a key of a mapping and its value.
type pair struct {
	key   string
	at    Position
	value ast.Node
}

// pairs returns the pairs of a mapping whose keys are known (any key, if known is nil). Messages
// call the mapping by the name in what.
func (r *reader) pairs(n ast.Node, what string, known []string) []pair {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.wrongType(n, what+" must be a mapping (key: value)")
		return nil
	}
	var all []pair
	for _, v := range values {
		at := r.at(v.Key.GetToken())
		name, ok := v.Key.(*ast.StringNode)
		switch {
		case v.Key.IsMergeKey():
			r.problem(at, "put what nodes share into defaults", "merge keys (<<) are not supported")
		case !ok && known != nil:
			r.problem(at, "", "unknown key in %s (known: %s)", what, strings.Join(known, ", "))
		case !ok:
			r.problem(at, "quote it", "a key in %s must be a text", what)
		case known != nil && !slices.Contains(known, name.Value):
			hint := "known keys: " + strings.Join(known, ", ")
			if near := diagnostic.Nearest(name.Value, known); near != "" {
				hint = "did you mean " + strconv.Quote(near) + "?"
			}
			r.problem(at, hint, "unknown key %q in %s", diagnostic.Clip(name.Value), what)
		default:
			all = append(all, pair{name.Value, at, v.Value})
		}
	}
	return all
}

// firstToken returns the token at which a value starts: for a mapping in block style, the token
// of its first key.
func firstToken(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return n.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		return n.Key.GetToken()
	}
	return n.GetToken()
}

// place returns the position at which a value starts.
func (r *reader) place(n ast.Node) Position { return r.at(firstToken(n)) }

// items returns the entries of a list.
func (r *reader) items(n ast.Node, what string) []ast.Node {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		r.wrongType(n, what+" must be a list")
		return nil
	}
	return list.Values
}

// text reads a text and checks it. An empty text is valid: it cancels a default.
func (r *reader) text(n ast.Node, check func(string) error) optional[string] {
	value, ok := r.stringOf(n)
	if !ok {
		return optional[string]{}
	}
	if strings.ContainsRune(value, 0) {
		r.problem(r.place(n), "", "a text must not hold a zero byte")
		return optional[string]{}
	}
	if check != nil && value != "" {
		if err := check(value); err != nil {
			r.problem(r.place(n), "", "%v", err)
			return optional[string]{}
		}
	}
	return some(value)
}

// word reads a text that must not be empty.
func (r *reader) word(n ast.Node, check func(string) error) optional[string] {
	value := r.text(n, check)
	if value.set && value.value == "" {
		r.problem(r.place(n), "", "an empty text")
		return optional[string]{}
	}
	return value
}

// sudo reads the user as whom commands run: true is root, false is the login user, without sudo.
func (r *reader) sudo(n ast.Node) optional[string] {
	if yes, ok := n.(*ast.BoolNode); ok {
		if yes.Value {
			return some("root")
		}
		return some("")
	}
	return r.word(n, func(s string) error {
		if slices.Contains([]string{"true", "false", "yes", "no", "on", "off"}, strings.ToLower(s)) {
			return fmt.Errorf("%q is a text here: true, false, or the name of a user", s)
		}
		return checkUser(s)
	})
}

// path reads a file name on this machine and makes it absolute.
func (r *reader) path(n ast.Node) optional[string] {
	value := r.word(n, nil)
	if !value.set {
		return value
	}
	path, err := r.expandHome(value.value)
	if err != nil {
		r.problem(r.place(n), "write the path in full", "%v", err)
		return optional[string]{}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	return some(filepath.Clean(path))
}

// expandHome replaces a ~ at the front by the home directory.
func (r *reader) expandHome(path string) (string, error) {
	switch {
	case path != "~" && !strings.HasPrefix(path, "~/"):
		if strings.HasPrefix(path, "~") {
			return "", fmt.Errorf("only ~/ is understood, not %q", diagnostic.Clip(path))
		}
		return path, nil
	case r.home == "":
		return "", errors.New("~ has no meaning: the home directory is unknown")
	}
	return filepath.Join(r.home, path[1:]), nil
}

// number reads a whole number between low and high.
func (r *reader) number(n ast.Node, low, high int) optional[int] {
	node, ok := n.(*ast.IntegerNode)
	if !ok {
		r.wrongType(n, "must be a whole number")
		return optional[int]{}
	}
	value, err := strconv.Atoi(node.Token.Value)
	if err != nil || value < low || value > high {
		r.problem(r.place(n), "", "%s is out of range (%d to %d)", diagnostic.Clip(node.Token.Value), low, high)
		return optional[int]{}
	}
	return some(value)
}

// list reads a list of texts.
func (r *reader) list(n ast.Node, check func(string) error) optional[[]string] {
	values := []string{}
	for _, item := range r.items(n, "this") {
		if value := r.word(item, check); value.set {
			values = append(values, value.value)
		}
	}
	return some(values)
}

// variableName matches the names that a shell accepts for variables.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variables reads a mapping of environment variables. It takes numbers and booleans as the file
// writes them.
func (r *reader) variables(n ast.Node) map[string]string {
	vars := make(map[string]string)
	for _, p := range r.pairs(n, "env", nil) {
		if !variableName.MatchString(p.key) {
			r.problem(p.at, "", "%q is no name for an environment variable", diagnostic.Clip(p.key))
			continue
		}
		switch v := p.value.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			vars[p.key] = v.GetToken().Value
		default:
			if value := r.text(v, nil); value.set {
				vars[p.key] = value.value
			}
		}
	}
	return vars
}

// stringOf returns the text of a YAML node, or records that the node is not a text.
func (r *reader) stringOf(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		r.problem(r.place(n), "quote it", "must be a text, but YAML reads %s as something else", diagnostic.Clip(n.GetToken().Value))
	default:
		r.wrongType(n, "must be a text")
	}
	return "", false
}

// wrongType records that a value has the wrong type.
func (r *reader) wrongType(n ast.Node, want string) {
	hint, kind := "", "something else"
	switch n.(type) {
	case *ast.NullNode:
		hint, kind = "leave the key out instead", "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		kind = "a mapping"
	case *ast.SequenceNode:
		kind = "a list"
	case *ast.StringNode, *ast.LiteralNode:
		kind = "a text"
	case *ast.IntegerNode:
		kind = "a number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		kind = "a fraction"
	case *ast.BoolNode:
		kind = "true or false"
	case *ast.AnchorNode, *ast.AliasNode:
		hint, kind = "put what nodes share into defaults", "an anchor or alias, which is not supported"
	case *ast.TagNode:
		kind = "a tag, which is not supported"
	}
	r.problem(r.place(n), hint, "%s, but this is %s", want, kind)
}
