package inventory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// Options are the sources of inventories other than files. The zero value supports only files.
type Options struct {
	// Stdin is read for the name "-".
	Stdin io.Reader
	// Ansible returns the output of ansible-inventory --list for the inventory at path. It is nil if
	// that program is not installed.
	Ansible func(ctx context.Context, path string) ([]byte, error)
	// Slurm returns the nodes of one or more partitions, separated by commas. An empty name is the
	// default partition.
	Slurm func(ctx context.Context, partition string) ([]SlurmNode, error)
	// User and Python are used where the inventory sets none. They are optional.
	User, Python string
}

// Open reads an inventory: a file in any supported format, "-" for standard input, a node expression
// such as gpu[01-16], or a Slurm partition as slurm:NAME.
//
// The inventory of another tool may list unsupported nodes. Select returns an error if the selection
// contains one.
func Open(ctx context.Context, name string, opt Options) (*Inventory, error) {
	inv, err := opt.open(ctx, name)
	if err == nil {
		opt.setDefaults(inv)
	}
	return inv, err
}

// setDefaults sets what the inventory does not set.
func (o Options) setDefaults(inv *Inventory) {
	for i := range inv.Hosts {
		h := &inv.Hosts[i]
		h.User, h.Python = cmp.Or(h.User, o.User), cmp.Or(h.Python, o.Python, defaultPython)
	}
}

func (o Options) open(ctx context.Context, name string) (*Inventory, error) {
	if name == "-" {
		return o.read(ctx, o.Stdin, name)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, slurmPrefix):
		return o.fromSlurm(ctx, name)
	case errors.Is(err, fs.ErrNotExist):
		return named(name, err)
	case err != nil:
		return nil, unreadable(name, err)
	case info.IsDir():
		return o.askAnsible(ctx, name)
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
			return o.askAnsible(ctx, name) // which runs it
		}
	}
	return o.read(ctx, file, name)
}

// expressionFile stands for a node expression in messages, in place of a file name.
const expressionFile = "node expression"

// named reads a name that is not a file. It must clearly be a node expression: a single word is
// more likely a misspelt file name.
func named(name string, missing error) (*Inventory, error) {
	if !strings.ContainsAny(name, "[],") || strings.ContainsAny(name, "/ \t\n") {
		return nil, noSuchFile(name, missing)
	}
	rd, err := newReader("-")
	if err != nil {
		return nil, unreadable(name, err)
	}
	rd.File, rd.format, rd.Lines = expressionFile, hostList, []string{name}
	inv := rd.hostList()
	for _, h := range inv.Hosts {
		// No node name ends with an extension of a file name.
		switch filepath.Ext(h.Name) {
		case ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt", ".toml":
			return nil, noSuchFile(name, missing)
		}
	}
	if err := rd.Err(); err != nil {
		return nil, fmt.Errorf("%s is neither a file nor a valid node expression:\n%w", lineerr.Clip(name), err)
	}
	inv.Path = name
	return inv, nil
}

// noSuchFile returns the error for a missing file, with the nearest existing name as a hint.
func noSuchFile(name string, err error) error {
	failed := unreadable(name, err)
	advice := "pass a file, - for standard input, slurm:PARTITION, or a node expression: gpu[01-16], gpu1,gpu2, or gpu[01] for one node"
	if entries, err := os.ReadDir(filepath.Dir(name)); err == nil {
		var names []string
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		near := lineerr.Nearest(filepath.Base(name), names)
		if near != "" && lineerr.Distance(filepath.Base(name), near) <= 2*lineerr.Letter {
			advice = "did you mean " + filepath.Join(filepath.Dir(name), near) + "?"
		}
	}
	failed.Problems[0].Hint = advice
	return failed
}

// isProgram reports whether a file begins as scripts do.
func isProgram(file io.ReadSeeker) (bool, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	_, err = file.Seek(0, io.SeekStart)
	return bytes.Equal(head[:n], []byte("#!")), err
}
