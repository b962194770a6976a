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

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// text reads a text and checks it. An empty text is valid: it cancels a default.
func (r *reader) text(n ast.Node, check func(string) error) optional[string] {
	value, ok := r.stringOf(n)
	if !ok {
		return optional[string]{}
	}
	if strings.ContainsRune(value, 0) {
		r.Add(r.Place(n), "", "a text must not hold a zero byte")
		return optional[string]{}
	}
	if check != nil && value != "" {
		if err := check(value); err != nil {
			r.Add(r.Place(n), "", "%v", err)
			return optional[string]{}
		}
	}
	return some(value)
}

// word reads a text that must not be empty.
func (r *reader) word(n ast.Node, check func(string) error) optional[string] {
	value := r.text(n, check)
	if value.set && value.value == "" {
		r.Add(r.Place(n), "", "must not be empty")
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
			return fmt.Errorf("%q is a text: write true, false, or the name of a user", s)
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
		r.Add(r.Place(n), "write the path in full", "%v", err)
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
			return "", fmt.Errorf("dsbuild supports ~/, not %q", diagnostic.Clip(path))
		}
		return path, nil
	case r.home == "":
		return "", errors.New("dsbuild cannot replace ~: the home directory is unknown")
	}
	return filepath.Join(r.home, path[1:]), nil
}

// number reads a whole number between low and high.
func (r *reader) number(n ast.Node, low, high int) optional[int] {
	node, ok := n.(*ast.IntegerNode)
	if !ok {
		r.Wrong(n, "must be a whole number")
		return optional[int]{}
	}
	value, err := strconv.Atoi(node.Token.Value)
	if err != nil || value < low || value > high {
		r.Add(r.Place(n), "", "%s is out of range (%d to %d)", diagnostic.Clip(node.Token.Value), low, high)
		return optional[int]{}
	}
	return some(value)
}

// list reads a list of texts.
func (r *reader) list(n ast.Node, check func(string) error) optional[[]string] {
	values := []string{}
	for _, item := range r.Entries(n, "this") {
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
	for _, p := range r.Pairs(n, "env", nil) {
		if !variableName.MatchString(p.Key) {
			r.Add(p.At, "", "%q is not the name of an environment variable", diagnostic.Clip(p.Key))
			continue
		}
		switch v := p.Node.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			vars[p.Key] = v.GetToken().Value
		default:
			if value := r.text(v, nil); value.set {
				vars[p.Key] = value.value
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
		r.Add(r.Place(n), "quote it", "must be a text, but YAML reads %s as another type", diagnostic.Clip(n.GetToken().Value))
	default:
		r.Wrong(n, "must be a text")
	}
	return "", false
}
