package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// MaxSize bounds the size of an inventory file.
const MaxSize = 16 << 20

// read reads an inventory from r, in any format. Messages call it path, and relative paths in it
// start from path's folder; for "-" these are "stdin" and the working directory. An error about
// the contents is an *Error with all problems.
func (o Options) read(ctx context.Context, r io.Reader, path string) (*Inventory, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	rd, err := newReader(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	if len(data) > MaxSize {
		rd.Add(Position{File: rd.File}, "", "larger than %d MiB: this is not an inventory", MaxSize>>20)
		return nil, rd.Err()
	}
	doc := rd.recognise(data)
	if rd.format.ofAnsible() {
		return o.readAnsible(ctx, rd, doc, path)
	}
	inv := rd.read(doc)
	if err := rd.err(); err != nil {
		return nil, err
	}
	inv.Path = path
	return inv, nil
}

// err returns all problems of the file. If dsbuild guessed the format, the error names the guess.
func (r *reader) err() error {
	err := r.Err()
	if err == nil || r.format == ownYAML || r.format == yamlFamily {
		return err
	}
	return fmt.Errorf("%s: read as %s:\n%w", r.File, r.format, err)
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

// shown returns the name of the file at path for messages.
func shown(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// reader turns one file into an Inventory and collects its problems.
type reader struct {
	yamldoc.Reader
	format format
	dir    string // where relative paths start
	home   string // "": unknown
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
		home = "" // an error only if a path needs it
	}
	return &reader{Reader: yamldoc.Reader{
		File: shown(path), Kind: "inventory",
		Least: `give at least "nodes: [{hosts: NAME}]"`, Share: "put what nodes share into defaults",
	}, dir: dir, home: home}, nil
}

// document is an inventory before dsbuild interprets it.
type document struct {
	text  []byte
	lines []string
	body  ast.Node // the parsed YAML; nil if it has a syntax error
}

// recognise detects the format of the file, and parses it if it is YAML.
func (r *reader) recognise(data []byte) document {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		r.Add(Position{File: r.File}, "", "not UTF-8 text: this is not an inventory")
		return document{}
	}
	doc := document{text: data, lines: strings.Split(string(data), "\n")}
	r.Lines = doc.lines
	ext := filepath.Ext(r.File)
	r.format = guess(doc.lines, slices.Contains([]string{".yaml", ".yml", ".json"}, ext))
	switch {
	case r.format == yamlFamily && ansible.IsList(string(data)):
		r.format, r.Lines = ansibleList, nil // no excerpts: the list is one line with all secrets
	case r.format == yamlFamily:
		if doc.body = r.parse(data); doc.body != nil {
			r.format = yamlFormat(doc.body)
		}
	}
	return doc
}

// read interprets a document in the detected format.
func (r *reader) read(doc document) *Inventory {
	var inv *Inventory
	switch r.format {
	case ownYAML:
		return r.inventory(doc.body)
	case hostfile:
		inv = r.hostfile()
	case expressions:
		inv = r.nodeExpressions()
	case ansibleList:
		inv = r.fromAnsible(ansible.ReadList(r.File, doc.text, &r.List))
	default:
		return nil // a problem is recorded
	}
	return r.withNodes(inv)
}

// textLines yields the lines that are neither empty nor comments, without the space around them, each
// with its place.
func (r *reader) textLines() iter.Seq2[Position, string] {
	return func(yield func(Position, string) bool) {
		for i, line := range r.Lines {
			text := strings.TrimSpace(line)
			if text == "" || strings.HasPrefix(text, "#") {
				continue
			}
			column := 1 + utf8.RuneCountInString(line[:strings.Index(line, text)])
			if !yield(Position{File: r.File, Line: i + 1, Column: column}, text) {
				return
			}
		}
	}
}

// withNodes returns an inventory, and records a problem if it is empty.
func (r *reader) withNodes(inv *Inventory) *Inventory {
	if len(inv.Hosts) == 0 && len(r.Problems) == 0 {
		r.Add(Position{File: r.File}, "", "the inventory has no nodes")
	}
	return inv
}

// maxSigns bounds the punctuation characters of YAML in a file: each costs the parser hundreds of
// bytes. 100,000 nodes with four keys each have half as many.
const maxSigns = 2_000_000

// countAny counts the bytes of data that are in signs.
func countAny(data []byte, signs string) int {
	n := 0
	for _, c := range data {
		if strings.IndexByte(signs, c) >= 0 {
			n++
		}
	}
	return n
}

// parse parses YAML. It returns nil if the YAML has a mistake.
func (r *reader) parse(data []byte) ast.Node {
	if bytes.Count(data, []byte("\n"))+countAny(data, ",:[]{}\"'&*") > maxSigns {
		r.Add(Position{File: r.File}, "give nodes as ranges: gpu[01-16]", "too many entries")
		return nil
	}
	return r.Parse(data)
}
