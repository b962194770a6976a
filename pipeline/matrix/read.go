package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

const (
	maxSize  = 1 << 20 // bytes of a file
	maxDepth = 20      // levels of nesting; the parser descends once for each
)

// Read reads the matrix file at path. An error about its contents is an *Error
// with all that is wrong.
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return parse(path, data)
}

func unreadable(path string, err error) error {
	reason := err
	var at *fs.PathError
	if errors.As(err, &at) {
		reason = at.Err
	}
	return &Error{Problems: []mistake.Problem{{Position: Position{File: path}, Message: "cannot read the matrix: " + reason.Error()}}, Cause: err}
}

// reader turns one file into entries and collects what is wrong with it.
type reader struct {
	mistake.List
	file string
}

func parse(path string, data []byte) (*File, error) {
	r := &reader{file: path}
	out := &File{}
	if body := r.body(data); body != nil {
		out.Entries = r.document(body)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	out.lines = r.Lines
	return out, nil
}

// body is what the file holds; nil where something is wrong with the whole.
func (r *reader) body(data []byte) ast.Node {
	whole := Position{File: r.file}
	if len(data) > maxSize {
		r.Add(whole, "", "larger than %d MiB: this is no matrix", maxSize>>20)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		r.Add(whole, "", "no text in UTF-8: this is no matrix")
		return nil
	}
	r.Lines = strings.Split(string(data), "\n")
	tokens := lexer.Tokenize(string(data))
	if !r.shallow(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0)
	var syntax *yaml.SyntaxError
	switch {
	case errors.As(err, &syntax):
		r.Add(r.at(syntax.Token), "", "%s", syntax.Message)
		return nil
	case err != nil:
		r.Add(whole, "", "no YAML: %v", err)
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		r.Add(Position{File: r.file, Line: 1, Column: 1}, `give at least "wheels: [{arch: 8.0}]"`, "the matrix is empty")
		return nil
	case 1:
		return bodies[0]
	}
	r.Add(r.place(bodies[1]), "", "a second YAML document: a matrix is one")
	return nil
}

// shallow refuses nesting that no matrix has and that would exhaust the parser.
func (r *reader) shallow(tokens token.Tokens) bool {
	flow, line, opened := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, opened = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			opened++
		}
		if flow > maxDepth || opened > maxDepth || t.Position.IndentNum > 200 {
			r.Add(r.at(t), "", "nested too deeply")
			return false
		}
	}
	return true
}

// at is the position of a YAML token.
func (r *reader) at(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{File: r.file}
	}
	return Position{File: r.file, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}

// place is the position at which a value starts: for a mapping in block style
// that of its first key.
func (r *reader) place(n ast.Node) Position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return r.at(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return r.at(n.Key.GetToken())
	}
	return r.at(n.GetToken())
}

// pair is a key of a mapping and its value.
type pair struct {
	key  string
	at   Position
	node ast.Node
}

// pairs returns the pairs of a mapping whose keys are known. what is what
// messages call the mapping.
func (r *reader) pairs(n ast.Node, what string, known []string) []pair {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.wrong(n, what+" must be a mapping (key: value)")
		return nil
	}
	var all []pair
	for _, v := range values {
		at := r.at(v.Key.GetToken())
		name := v.Key.GetToken().Value
		if s, ok := v.Key.(*ast.StringNode); ok {
			name = s.Value
		}
		if r.known(at, "key", name, what, known) {
			all = append(all, pair{name, at, v.Value})
		}
	}
	return all
}

// known reports whether a key is one that may stand there, and notes it if not.
func (r *reader) known(at Position, kind, name, what string, known []string) bool {
	for _, k := range known {
		if k == name {
			return true
		}
	}
	advice := "known keys: " + strings.Join(known, ", ")
	if near := mistake.Nearest(name, known); near != "" {
		advice = fmt.Sprintf("did you mean %q?", near)
	}
	r.Add(at, advice, "unknown %s %q in %s", kind, mistake.Clip(name), what)
	return false
}

// items returns the entries of a list that must not be empty.
func (r *reader) items(n ast.Node, what string) []ast.Node {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		r.wrong(n, what+" must be a list")
		return nil
	case len(list.Values) == 0:
		r.Add(r.place(n), "leave the key out instead", "%s is empty", what)
	}
	return list.Values
}

// wrong notes that a value is of another kind than wanted.
func (r *reader) wrong(n ast.Node, want string) {
	advice, kind := "", "something else"
	switch n.(type) {
	case *ast.NullNode:
		advice, kind = "leave the key out instead", "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		kind = "a mapping"
	case *ast.SequenceNode:
		kind = "a list"
	case *ast.StringNode, *ast.LiteralNode:
		kind = "a text"
	case *ast.IntegerNode, *ast.FloatNode:
		kind = "a number"
	case *ast.BoolNode:
		kind = "true or false"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		advice, kind = "put what entries share into defaults", "an anchor, alias or tag, which is not supported"
	}
	r.Add(r.place(n), advice, "%s, but this is %s", want, kind)
}
