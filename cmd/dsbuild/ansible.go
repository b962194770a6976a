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

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

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
		ctx, cancel := context.WithTimeoutCause(ctx, ansibleTimeLimit, fmt.Errorf("no answer within %s", ui.Duration(ansibleTimeLimit)))
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
			return nil, fmt.Errorf("it prints more than %s", ui.Size(ansibleSizeLimit))
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
