package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// installAnsible is the hint for an inventory that only ansible-inventory reads.
const installAnsible = "install ansible-core; or run ansible-inventory -i INVENTORY --list > nodes.json on a machine that has it, and name that file"

// readAnsible reads an Ansible inventory in INI or YAML. If ansible-inventory is installed, dsbuild
// asks it, because only that program knows the variables in other files. Otherwise, and for
// standard input, dsbuild reads plain INI itself.
func (o Options) readAnsible(ctx context.Context, rd *reader, doc document, path string) (*Inventory, error) {
	if o.Ansible != nil && path != "-" {
		return o.askAnsible(ctx, path, path, func() error {
			rd.plainINI(doc)
			return rd.err()
		})
	}
	inv, only := rd.plainINI(doc)
	switch {
	case only != nil && o.Ansible != nil:
		return o.askAboutStdin(ctx, rd.format, doc.text)
	case only != nil:
		rd.Add(only.At, installAnsible, "only ansible-inventory can read %s, and it is not installed", only.What)
	}
	if err := rd.err(); err != nil {
		return nil, err
	}
	inv.Path = path
	return inv, nil
}

// plainINI reads an inventory in INI. only is not nil if Ansible has to read it.
func (r *reader) plainINI(doc document) (inv *Inventory, only *ansible.OnlyAnsible) {
	if r.format == ansibleYAML {
		return nil, &ansible.OnlyAnsible{At: Position{File: r.File}, What: "this file"}
	}
	found, only := ansible.ReadINI(r.File, doc.lines, &r.List)
	if only != nil {
		return nil, only
	}
	inv = r.withNodes(r.fromAnsible(found))
	r.noteVarsFolders(inv)
	return inv, nil
}

// askAboutStdin gives the text of standard input to ansible-inventory, as a file.
func (o Options) askAboutStdin(ctx context.Context, f format, text []byte) (inv *Inventory, err error) {
	dir, err := scratch.New("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	file := filepath.Join(dir.Path, "inventory")
	if f == ansibleYAML {
		file += ".yml" // configurations of plugins need the ending
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return o.askAnsible(ctx, "-", file, nil)
}

// openDynamic reads an inventory that is a program, which dsbuild does not run.
func (o Options) openDynamic(ctx context.Context, path string) (*Inventory, error) {
	if o.Ansible != nil {
		return o.askAnsible(ctx, path, path, nil)
	}
	failed := unreadable(path, errors.New("it is a program (a dynamic inventory), and only ansible-inventory can run it"))
	program := path
	if !strings.Contains(program, "/") {
		program = "./" + program
	}
	failed.Problems[0].Hint = "install ansible-core, or: " + ansible.Quote(program) + " --list | dsbuild ... -"
	return nil, failed
}

// askAnsible reads the inventory in file with ansible-inventory; name stands for it in messages. If
// ansible-inventory fails, own may return the mistakes with line and column.
func (o Options) askAnsible(ctx context.Context, name, file string, own func() error) (*Inventory, error) {
	text, err := o.Ansible(ctx, file)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		failed := unreadable(name, fmt.Errorf("ansible-inventory: %w", err))
		var more *Error
		if own != nil && errors.As(own(), &more) {
			failed.Problems = append(failed.Problems, more.Problems...)
		}
		return nil, failed
	}
	rd, err := newReader(name)
	if err != nil {
		return nil, unreadable(name, err)
	}
	rd.format = ansibleList
	inv := rd.read(document{text: text})
	if err := rd.err(); err != nil {
		return nil, err
	}
	inv.Path = name
	return inv, nil
}
