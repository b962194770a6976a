package inventory

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

// MaxSize bounds the size of an inventory file.
const MaxSize = 16 << 20

// maxDepth bounds the nesting of an inventory file, far above what one needs.
const maxDepth = 50

// Load reads the inventory file at path; "-" is standard input.
func Load(path string) (*Inventory, error) {
	if path == "-" {
		return Read(os.Stdin, path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer file.Close()
	return Read(file, path)
}

// Read reads an inventory from r. path is what messages call it, and its
// folder is what relative paths in it start from; for "-" these are "stdin"
// and the working directory. An error about the contents is an *Error with all that is wrong.
func Read(r io.Reader, path string) (*Inventory, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	rd, err := newReader(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	if len(data) > MaxSize {
		rd.problem(Position{File: rd.file}, "", "larger than %d MiB: this is no inventory", MaxSize>>20)
		return nil, rd.Err()
	}
	inv := rd.read(data)
	if err := rd.Err(); err != nil {
		return nil, err
	}
	inv.Path = path
	return inv, nil
}

func unreadable(path string, err error) *Error {
	reason := err
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		reason = pathErr.Err
	}
	return &Error{
		Problems: []Problem{{Position: Position{File: shown(path)}, Message: "cannot read the inventory: " + reason.Error()}},
		Cause:    err,
	}
}

// shown is what messages call the file at path.
func shown(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// reader turns one file into an Inventory and collects what is wrong with it.
type reader struct {
	mistake.List
	file string // what messages call it
	dir  string // where relative paths start
	home string // "": unknown
}

func newReader(path string) (*reader, error) {
	dir := "."
	if path != "-" {
		dir = filepath.Dir(path)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // an error only where a path needs it
	}
	return &reader{file: shown(path), dir: dir, home: home}, nil
}

// problem notes something wrong at a place.
func (r *reader) problem(at Position, hint, format string, args ...any) {
	r.Add(at, hint, format, args...)
}

// at is the position of a YAML token.
func (r *reader) at(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{File: r.file}
	}
	return Position{File: r.file, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1)}
}

func (r *reader) read(data []byte) *Inventory {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	r.Lines = strings.Split(string(data), "\n")
	if !r.plausible(data) {
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if !r.shallow(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		var syntax *yaml.SyntaxError
		if !errors.As(err, &syntax) {
			r.problem(Position{File: r.file}, "", "no YAML: %v", err)
			return nil
		}
		r.problem(r.at(syntax.Token), "", "%s", syntax.Message)
		return nil
	}
	var docs []*ast.DocumentNode
	for _, doc := range file.Docs {
		if doc.Body != nil {
			docs = append(docs, doc)
		}
	}
	switch {
	case len(docs) == 0:
		r.problem(Position{File: r.file, Line: 1, Column: 1}, `give at least "nodes: [{hosts: NAME}]"`, "the inventory is empty")
		return nil
	case len(docs) > 1:
		r.problem(r.place(docs[1].Body), "", "a second YAML document: an inventory is one")
		return nil
	}
	return r.inventory(docs[0].Body)
}

// hostfileLine is a line of a DeepSpeed or MPI hostfile.
var hostfileLine = regexp.MustCompile(`^[^\s:#]+\s+slots\s*=\s*\d+\s*(#.*)?$`)

// plausible refuses what is plainly something other than an inventory.
func (r *reader) plausible(data []byte) bool {
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		r.problem(Position{File: r.file}, "", "no text in UTF-8: this is no inventory")
		return false
	}
	for i, line := range r.Lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if hostfileLine.MatchString(line) {
			r.problem(Position{File: r.file, Line: i + 1, Column: 1},
				`write it as YAML: "nodes: [{hosts: NAME, slots: N}]"`,
				"this is a hostfile (host slots=N), not an inventory in YAML")
			return false
		}
		break
	}
	return true
}

// shallow refuses nesting that no inventory has and that would exhaust the
// parser, which descends once per level.
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
		if flow > maxDepth || opened > maxDepth || t.Position.IndentNum > 2000 {
			r.problem(r.at(t), "", "nested too deeply")
			return false
		}
	}
	return true
}
