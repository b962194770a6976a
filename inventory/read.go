package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// MaxSize bounds the size of an inventory file.
const MaxSize = 16 << 20

// Options are the sources of inventories besides files. The zero value reads only files.
type Options struct {
	// Stdin is the input that "-" names.
	Stdin io.Reader
	// Ansible returns the output of ansible-inventory --list for the inventory at
	// path. It is nil if that program is not installed: then dsbuild reads plain
	// INI inventories of Ansible, and no others.
	Ansible func(ctx context.Context, path string) ([]byte, error)
	// Slurm returns the nodes of a partition, or of several, separated by commas; "" is the
	// default one.
	Slurm func(ctx context.Context, partition string) ([]SlurmNode, error)
}

// Open reads the inventory that a user names: a file, "-" for standard input, a node expression
// such as gpu[01-16], in any known format, or a Slurm partition as slurm:NAME.
//
// The inventory of another tool may hold nodes that dsbuild cannot reach. Select returns an error
// if the selection contains one.
func Open(ctx context.Context, name string, opt Options) (*Inventory, error) {
	if name == "-" {
		return opt.read(ctx, opt.Stdin, name)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, slurmPrefix):
		return opt.fromSlurm(ctx, name)
	case errors.Is(err, fs.ErrNotExist):
		return named(name, err)
	case err != nil:
		return nil, unreadable(name, err)
	case info.IsDir() && opt.Ansible != nil:
		return opt.askAnsible(ctx, name, name, nil)
	case info.IsDir():
		failed := unreadable(name, syscall.EISDIR)
		failed.Problems[0].Message = "a folder: only ansible-inventory can read it, and it is not installed"
		failed.Problems[0].Hint = installAnsible
		return nil, failed
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, unreadable(name, err)
	}
	defer file.Close()
	if info.Mode()&0o111 != 0 && info.Mode().IsRegular() {
		if program, err := isProgram(file); err != nil {
			return nil, unreadable(name, err)
		} else if program {
			return opt.openDynamic(ctx, name)
		}
	}
	return opt.read(ctx, file, name)
}

// Load reads the inventory file at path; "-" is standard input. It runs no other program.
func Load(path string) (*Inventory, error) {
	return Open(context.Background(), path, Options{Stdin: os.Stdin})
}

// Read reads an inventory from r, in any format. Messages call it path, and relative paths in it
// start from path's folder; for "-" these are "stdin" and the working directory. An error about
// the contents is an *Error with all problems.
func Read(r io.Reader, path string) (*Inventory, error) {
	return Options{}.read(context.Background(), r, path)
}

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
	case r.format == ansibleINI:
		r.Lines = withoutSecrets(doc.lines)
	case r.format == yamlFamily && ansible.IsList(string(data)):
		r.format, r.Lines = ansibleList, nil // no excerpts: the list is one line with all secrets
	case r.format == yamlFamily:
		if doc.body = r.parse(data); doc.body == nil {
			break
		}
		if r.format = yamlFormat(doc.body); r.format == ansibleYAML {
			r.Lines = withoutSecrets(doc.lines)
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
