package node_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// programOf is a program with these lines.
func programOf(lines string) node.Program {
	return node.NewProgramOf("import sys\n\nfrom dsbuild_node.controller import REQUEST, emit\n\n\ndef main(found=None):\n    " + strings.ReplaceAll(lines, "\n", "\n    ") + "\n\n\nfollow = main\n")
}

// local is a Runner on this machine.
type local struct {
	env    []string // replaces the environment where set
	noise  string   // printed before each command
	within []string // a command that runs the commands
}

func (l local) Run(ctx context.Context, cmd remote.Command) error {
	if l.noise != "" && cmd.Stdout != nil {
		cmd.Stdout.Write([]byte(l.noise)) //nolint:errcheck // a test's writer
	}
	argv := slices.Concat(l.within, cmd.Argv)
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	c.Env = os.Environ()
	if l.env != nil {
		c.Env = slices.Clone(l.env)
	}
	for k, v := range cmd.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}
