package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// ansibleTimeLimit bounds ansible-inventory, which may ask a cloud.
const ansibleTimeLimit = 5 * time.Minute

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
		answer, err := cmd.Output()
		var failed *exec.ExitError // it has the beginning and the end of the messages
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &failed) && len(bytes.TrimSpace(failed.Stderr)) > 0:
			return nil, errors.New(strings.TrimSpace(ui.Clean(string(failed.Stderr))))
		}
		return answer, err
	}
}
