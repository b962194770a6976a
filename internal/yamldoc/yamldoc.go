// Package yamldoc reads the user's YAML files: inventories, matrices, jobs, environments, nights and
// policies. It reports every error with its position. It checks syntax, not meaning: unknown keys,
// anchors and tags are errors, and numbers keep their spelling (3.10 is not 3.1). A decoder into structs
// would stop at the first error and lose the spelling.
package yamldoc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

const (
	maxSize  = 1 << 20 // bytes of a file
	maxDepth = 40      // levels of nesting; the parser descends once for each
	// maxIndent bounds nesting by spaces. It is generous, because a list in brackets may be
	// indented far.
	maxIndent = 2000
)

// Node is a value of a file.
type Node = ast.Node

// Reader reads one file and collects its problems.
type Reader struct {
	lineerr.List
	File string // its name in messages
	Kind string // the kind of file, as in "inventory"
	// Least is the hint for an empty file.
	Least string
	// Share is the optional hint for anchors and aliases.
	Share string
	// Foreign are keys of another program, with the hint for each.
	Foreign map[string]string
}

// Load reads the file at path. If path is "-" and in is not nil, it reads in instead. The body is nil if the file
// as a whole is invalid.
func (r *Reader) Load(path string, in io.Reader) (Node, error) {
	if path != "-" || in == nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, r.unreadable(err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSize+1))
	if err != nil {
		return nil, r.unreadable(err)
	}
	return r.Body(data), nil
}

func (r *Reader) unreadable(err error) error {
	reason := err
	var at *fs.PathError
	if errors.As(err, &at) {
		reason = at.Err
	}
	return &lineerr.Error{
		Problems: []lineerr.Problem{{
			Position: lineerr.Position{File: r.File},
			Message:  "cannot read the " + r.Kind + ": " + reason.Error(),
		}},
		Cause: err,
	}
}

// Body returns the contents of the file, or nil if the file as a whole is invalid.
func (r *Reader) Body(data []byte) Node {
	whole := lineerr.Position{File: r.File}
	if len(data) > maxSize {
		r.Add(whole, "", "file is larger than %d MiB", maxSize>>20)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		r.Add(whole, "", "file is not UTF-8 text")
		return nil
	}
	r.Lines = strings.Split(string(data), "\n")
	return r.Parse(data)
}

// openRange matches a range of names after a brace or a bracket, in which YAML reads its brackets as a list.
var openRange = regexp.MustCompile(`[{\[][^"']*[A-Za-z0-9_.-]\[[0-9]`)

// Parse returns the contents of a text, or nil if it is not one valid document.
func (r *Reader) Parse(data []byte) Node {
	whole := lineerr.Position{File: r.File}
	tokens := lexer.Tokenize(string(data))
	if !r.shallow(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0)
	var syntax *yaml.SyntaxError
	switch {
	case errors.As(err, &syntax):
		message, advice := syntax.Message, ""
		if strings.HasPrefix(message, "found character '\t'") || strings.Contains(message, "tab character") {
			message, advice = "tab in indentation: YAML allows only spaces", "replace the tabs with spaces"
		}
		at := r.At(syntax.Token)
		if at.Line > 0 && at.Line <= len(r.Lines) && openRange.MatchString(r.Lines[at.Line-1]) {
			advice = `quote names with brackets: "gpu[01-16]"`
		}
		r.Add(at, advice, "%s", message)
		return nil
	case err != nil:
		r.Add(whole, "", "invalid YAML: %v", err)
		return nil
	}
	var bodies []Node
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); doc.Body != nil && !directive { // %YAML 1.2
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		r.Add(lineerr.Position{File: r.File, Line: 1, Column: 1}, r.Least, "empty %s", r.Kind)
		return nil
	case 1:
		return bodies[0]
	}
	r.Add(r.Place(bodies[1]), "", "unexpected second YAML document: want one %s per file", r.Kind)
	return nil
}

// shallow rejects deep nesting, which would exhaust the parser's stack.
func (r *Reader) shallow(tokens token.Tokens) bool {
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
		if flow > maxDepth || opened > maxDepth || t.Position.IndentNum > maxIndent {
			r.Add(r.At(t), "", "nested too deeply")
			return false
		}
	}
	return true
}

// At returns the position of a YAML token.
func (r *Reader) At(t *token.Token) lineerr.Position {
	if t == nil || t.Position == nil {
		return lineerr.Position{File: r.File}
	}
	return lineerr.Position{File: r.File, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}

// Place returns the position at which a value starts: for a mapping in block style, the position
// of its first key.
func (r *Reader) Place(n Node) lineerr.Position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return r.At(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return r.At(n.Key.GetToken())
	}
	return r.At(n.GetToken())
}

// IsMapping reports whether a value is a mapping.
func IsMapping(n Node) bool {
	_, ok := n.(ast.MapNode)
	return ok
}

// IsList reports whether a value is a list.
func IsList(n Node) bool {
	_, ok := n.(*ast.SequenceNode)
	return ok
}

// IsPlain reports whether a value is a plain or quoted string, not a block scalar.
func IsPlain(n Node) bool {
	_, ok := n.(*ast.StringNode)
	return ok
}

// Bool returns the value of a boolean. ok is false for any other value.
func Bool(n Node) (value, ok bool) {
	b, ok := n.(*ast.BoolNode)
	return ok && b.Value, ok
}

// Spelling returns a number or boolean as spelled in the file.
func Spelling(n Node) (string, bool) {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// Keys returns a mapping's keys and values as written, without checks. It returns nil if n is not a
// mapping.
func (r *Reader) Keys(n Node) []Pair {
	var all []Pair
	for _, v := range mappingValues(n) {
		all = append(all, Pair{v.Key.GetToken().Value, r.At(v.Key.GetToken()), v.Value})
	}
	return all
}

func mappingValues(n Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// Pair is a key of a mapping and its value.
type Pair struct {
	Key  string
	At   lineerr.Position
	Node Node
}

// Pairs returns the pairs of a mapping and reports unknown keys. If known is nil, any key is
// accepted. Messages call the mapping what.
func (r *Reader) Pairs(n Node, what string, known []string) []Pair {
	if !IsMapping(n) {
		r.Wrong(n, what+" must be a mapping (key: value)")
		return nil
	}
	var all []Pair
	for _, v := range mappingValues(n) {
		at := r.At(v.Key.GetToken())
		key, isText := v.Key.(*ast.StringNode)
		name := v.Key.GetToken().Value
		if isText {
			name = key.Value
		}
		switch {
		case v.Key.IsMergeKey():
			r.Add(at, r.Share, "merge keys (<<) are not supported")
		case !isText && known == nil:
			r.Add(at, "quote it", "key in %s must be a string", what)
		case known == nil || r.Known(at, "key", name, what, known):
			all = append(all, Pair{name, at, v.Value})
		}
	}
	return all
}

// Known reports whether a key is one of known, and records an error if not.
func (r *Reader) Known(at lineerr.Position, kind, name, what string, known []string) bool {
	if slices.Contains(known, name) {
		return true
	}
	if scheme, _, isURL := strings.Cut(name, "://"); isURL {
		name = scheme + "://…" // the rest may be secret
	}
	advice := "known keys: " + strings.Join(known, ", ")
	if near := lineerr.Nearest(name, known); near != "" {
		advice = fmt.Sprintf("did you mean %q?", near)
	}
	r.Add(at, cmp.Or(r.Foreign[name], advice), "unknown %s %q in %s", kind, lineerr.Clip(name), what)
	return false
}

// Entries returns the entries of a list, which may be empty.
func (r *Reader) Entries(n Node, what string) []Node {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		r.Wrong(n, what+" must be a list")
		return nil
	}
	return list.Values
}

// Items returns the entries of an optional, non-empty list.
func (r *Reader) Items(n Node, what string) []Node {
	return r.items(n, what, "remove the key, or add an entry")
}

// RequiredItems returns the entries of a required, non-empty list.
func (r *Reader) RequiredItems(n Node, what string) []Node {
	return r.items(n, what, "add at least one entry")
}

func (r *Reader) items(n Node, what, advice string) []Node {
	entries := r.Entries(n, what)
	if _, ok := n.(*ast.SequenceNode); ok && len(entries) == 0 {
		r.Add(r.Place(n), advice, "%s is empty", what)
	}
	return entries
}

// Wrong records that a value has the wrong type.
func (r *Reader) Wrong(n Node, want string) {
	advice, kind := "", "another type"
	switch n.(type) {
	case *ast.NullNode:
		advice, kind = "set a value, or remove the key", "null"
	case *ast.MappingNode, *ast.MappingValueNode:
		kind = "a mapping"
	case *ast.SequenceNode:
		kind = "a list"
	case *ast.StringNode, *ast.LiteralNode:
		kind = "a string"
	case *ast.IntegerNode:
		kind = "a number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		kind = "a decimal number"
	case *ast.BoolNode:
		kind = "a boolean"
	case *ast.AnchorNode, *ast.AliasNode:
		advice, kind = r.Share, "an anchor or alias (not supported)"
	case *ast.TagNode:
		kind = "a tag (not supported)"
	}
	r.Add(r.Place(n), advice, "%s, not %s", want, kind)
}

// Scalar returns a string, or a number as spelled in the file.
func Scalar(n Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// Text is like Scalar and reports a value of another type. Messages call the value what.
func (r *Reader) Text(n Node, what string) (string, bool) {
	text, ok := Scalar(n)
	if !ok {
		r.Wrong(n, what+" must be a string")
	}
	return text, ok
}

// maxText limits a text that Form reads, in bytes.
const maxText = 500

// Form reads a single-line text that matches form. want describes form.
func (r *Reader) Form(n Node, what string, form *regexp.Regexp, want string) string {
	text, ok := r.Text(n, what)
	if !ok {
		return ""
	}
	if !form.MatchString(text) || len(text) > maxText {
		r.Add(r.Place(n), "", "%s must be %s", what, want)
		return ""
	}
	return text
}

// String reads a string. Unquoted numbers, booleans and the like are errors, because YAML may not read
// them as the user meant.
func (r *Reader) String(n Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		r.Add(r.Place(n), "quote it", "must be a string, but YAML reads %s as another type",
			lineerr.Clip(n.GetToken().Value))
	default:
		r.Wrong(n, "must be a string")
	}
	return "", false
}

// Number reads a whole number between low and high.
func (r *Reader) Number(n Node, low, high int) (int, bool) {
	node, ok := n.(*ast.IntegerNode)
	if !ok {
		r.Wrong(n, "must be an integer")
		return 0, false
	}
	value, err := strconv.Atoi(node.Token.Value)
	if err != nil || value < low || value > high {
		r.Add(r.Place(n), "", "%s is out of range (%d to %d)", lineerr.Clip(node.Token.Value), low, high)
		return 0, false
	}
	return value, true
}
