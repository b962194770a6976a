package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/slurm"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// addLimitFlag declares --limit, for app.loadInventory.
func addLimitFlag(cmd *cobra.Command, limit *string) {
	cmd.Flags().StringVar(limit, "limit", "",
		"`NODES` Only these nodes, ranges, groups or globs, separated by commas; !NODES excludes; "+
			"@FILE: the nodes that are not ok in a JSON report")
}

// nodeDefaults are settings for nodes without such settings in the inventory.
type nodeDefaults struct{ user, python string }

// addUserFlag declares --user.
func (d *nodeDefaults) addUserFlag(cmd *cobra.Command) {
	addNodeDefault(cmd, &d.user, "user", inventory.CheckUser, "want a user name",
		"`USER` Login user where the inventory sets none")
}

// addPythonFlag declares --python.
func (d *nodeDefaults) addPythonFlag(cmd *cobra.Command) {
	addNodeDefault(cmd, &d.python, "python", inventory.CheckPython, "want an absolute path on the nodes, or a command name",
		"`PATH` Python where the inventory sets none (default: python3)")
}

// addNodeDefault declares a flag. check validates its values, and want describes them.
func addNodeDefault(cmd *cobra.Command, p *string, name string, check func(string) error, want, usage string) {
	parsedVar(cmd.Flags(), p, name, "", "string", func(text string) (string, error) {
		if check(text) != nil {
			return "", errors.New(want)
		}
		return text, nil
	}, usage)
	inGroup(cmd, groupConnection, name)
	siteFlags(cmd, name)
}

// loadInventory reads INVENTORY and keeps the nodes of --limit. It notes settings of another tool's
// inventory that have no effect.
func (a *app) loadInventory(ctx context.Context, name, limit string, unset nodeDefaults) (*inventory.Inventory, error) {
	if name == "" {
		return nil, &usageError{err: errors.New("INVENTORY: empty value"), hint: "set the shell variable, or pass an inventory"}
	}
	within, _ := filepath.Glob(filepath.Join(name, "*.whl")) // an invalid pattern is not a directory of wheels
	if len(within) > 0 || strings.HasSuffix(name, ".whl") {
		what := "a wheel"
		if len(within) > 0 {
			what = "a directory of wheels"
		}
		return nil, &usageError{
			err:  fmt.Errorf("%s is %s; want an inventory", name, what),
			hint: "pass the inventory here, and the wheels with --wheel",
		}
	}
	opt := inventory.Options{Stdin: a.stdin, Ansible: ansibleInventory(), Slurm: slurm.Inventory, User: unset.user, Python: unset.python}
	inv, err := inventory.Open(ctx, name, opt)
	if err != nil {
		return nil, err
	}
	a.hints.nodes = inv
	if inv, err = inv.Select(limit); err != nil {
		return nil, err
	}
	notes := lists.Map(inv.Notes, func(r inventory.Note) ui.Named { return ui.Named{Name: r.Node, Text: r.Text} })
	for _, r := range ui.Fold(notes) {
		if r.Names != "" {
			r.Text = r.Names + ": " + r.Text
		}
		a.reporter.Note("%s", r.Text)
	}
	return inv, nil
}

// ansibleTimeLimit bounds ansible-inventory, which may ask a cloud.
const ansibleTimeLimit = 5 * time.Minute

// ansibleSizeLimit bounds its output, in bytes.
const ansibleSizeLimit = 256 << 20

// ansibleInventory returns a function that asks ansible-inventory for an
// inventory, or nil if that program is not installed.
func ansibleInventory() func(context.Context, string) ([]byte, error) {
	program, err := exec.LookPath("ansible-inventory")
	if err != nil {
		return nil
	}
	return func(ctx context.Context, path string) ([]byte, error) {
		// A relative name could look like an option, or like a list of hosts.
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		late := fmt.Errorf("timed out after %s", ui.Duration(ansibleTimeLimit))
		ctx, cancel := context.WithTimeoutCause(ctx, ansibleTimeLimit, late)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "-i", path, "--list")
		// A source that cannot be read is an error, not a warning and no hosts.
		cmd.Env = append(os.Environ(), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=True", "ANSIBLE_NOCOLOR=1",
			"ANSIBLE_DEPRECATION_WARNINGS=False", "ANSIBLE_LOCALHOST_WARNING=False", "ANSIBLE_VERBOSITY=0")
		cmd.WaitDelay = time.Second
		said := remote.NewAnswer(func() {})
		cmd.Stderr = said
		answer := &ansibleAnswer{}
		cmd.Stdout = answer
		err = cmd.Run()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case answer.over:
			return nil, fmt.Errorf("output larger than %s", ui.Size(ansibleSizeLimit))
		case err != nil && strings.TrimSpace(said.String()) != "":
			return nil, errors.New(strings.TrimSpace(ui.Clean(said.String())))
		}
		return answer.text, err
	}
}

// ansibleAnswer keeps the output of ansible-inventory, and ends it when that is too large.
type ansibleAnswer struct {
	text []byte
	over bool
}

// Write implements io.Writer.
func (a *ansibleAnswer) Write(b []byte) (int, error) {
	if a.over = a.over || len(a.text)+len(b) > ansibleSizeLimit; a.over {
		return 0, errors.New("too much output")
	}
	a.text = append(a.text, b...)
	return len(b), nil
}
