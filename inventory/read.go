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

	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// MaxSize is the maximum size of an inventory file, in bytes.
const MaxSize = 16 << 20

// read reads an inventory from r, in any format. Messages call it path, and relative paths in it are
// relative to path's directory. For "-" these are "stdin" and the working directory. An error in
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
		rd.Add(Position{File: rd.File}, "", "file is larger than %d MiB", MaxSize>>20)
		return nil, rd.Err()
	}
	body := rd.recognise(data)
	if rd.format == ofAnsible {
		return o.askAnsible(ctx, path)
	}
	return rd.finish(rd.read(data, body), path)
}

// finish returns an inventory, or all problems of the file. If the format was guessed, the error contains
// the guess.
func (r *reader) finish(inv *Inventory, path string) (*Inventory, error) {
	if inv != nil && len(inv.Hosts) == 0 && len(r.Problems) == 0 {
		r.Add(Position{File: r.File}, "", "no nodes in the inventory")
	}
	err := r.Err()
	switch {
	case err == nil:
		inv.Path, inv.format = path, r.format
		return inv, nil
	case r.format == ownYAML || r.format == yamlFamily:
		return nil, err
	}
	return nil, fmt.Errorf("%s: parsed as %s:\n%w", r.File, r.format, err)
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

// reader parses an inventory file and collects its problems.
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
		Least: `add at least "nodes: [{hosts: NAME}]"`, Share: "put shared settings into defaults",
	}, dir: dir, home: home}, nil
}

// recognise detects the format of the file, and returns the parsed document if it is YAML without a
// syntax error.
func (r *reader) recognise(data []byte) yamldoc.Node {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		r.Add(Position{File: r.File}, "", "file is not UTF-8 text")
		return nil
	}
	r.Lines = strings.Split(string(data), "\n")
	ext := filepath.Ext(r.File)
	r.format = guess(r.Lines, slices.Contains([]string{".yaml", ".yml", ".json"}, ext))
	if r.format != yamlFamily {
		return nil
	}
	if ansible.IsList(string(data)) {
		r.format, r.Lines = ansibleList, nil // no excerpts: the list is one line with all secrets
		return nil
	}
	signs := 0
	for _, c := range data {
		if strings.IndexByte("\n,:[]{}\"'&*", c) >= 0 {
			signs++
		}
	}
	if signs > maxSigns {
		r.Add(Position{File: r.File}, "write nodes as ranges: gpu[01-16]", "too many entries")
		return nil
	}
	body := r.Parse(data)
	if body != nil {
		r.format = ownYAML
		if !slices.ContainsFunc(r.Keys(body), ownKey) && r.hasAnsibleGroups(body) {
			r.format = ofAnsible
		}
	}
	return body
}

// read interprets the file in the detected format.
func (r *reader) read(data []byte, body yamldoc.Node) *Inventory {
	switch r.format {
	case ownYAML:
		return r.inventory(body)
	case hostfile:
		// Read the nodes of a DeepSpeed hostfile.
		list := nodeList{reader: r, first: make(map[string]Position)}
		for at, text := range r.textLines() {
			m := slotsWord.FindStringSubmatch(text)
			if m == nil {
				r.Add(at, "", "invalid line: want NAME slots=N, as DeepSpeed requires")
				continue
			}
			list.hostLine(at, m)
		}
		return &Inventory{Hosts: list.hosts, Notes: list.notes}
	case hostList:
		return r.hostList()
	case ansibleList:
		return r.fromAnsible(ansible.ReadList(r.File, data, &r.List))
	}
	return nil // a problem is recorded
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

// maxSigns limits the YAML punctuation in a file, because each character costs the parser hundreds of
// bytes. 100,000 nodes with four keys each have half as many.
const maxSigns = 2_000_000
