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

const (
	// ansibleLimit bounds ansible-inventory, which may ask a cloud.
	ansibleLimit = 5 * time.Minute
	// ansibleMost bounds what is read of its answer.
	ansibleMost = 256 << 20
	// ansibleComplaint bounds what is told of what it says when it fails.
	ansibleComplaint = 2000
)

// ansibleInventory returns how to ask ansible-inventory for an inventory, or nil
// where that program is not installed.
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
		return listAnsible(ctx, program, path)
	}
}

func listAnsible(ctx context.Context, program, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ansibleLimit, fmt.Errorf("no answer within %s", ui.Duration(ansibleLimit)))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-i", path, "--list")
	// A source that cannot be read is an error, not a warning and no hosts.
	cmd.Env = append(os.Environ(), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=True", "ANSIBLE_NOCOLOR=1",
		"ANSIBLE_DEPRECATION_WARNINGS=False", "ANSIBLE_LOCALHOST_WARNING=False", "ANSIBLE_VERBOSITY=0")
	answer, complaint := &bounded{most: ansibleMost}, &bounded{most: ansibleMost}
	cmd.Stdout, cmd.Stderr = answer, complaint
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, complained(complaint.String(), err)
	case answer.over:
		return nil, fmt.Errorf("more than %d MiB", ansibleMost>>20)
	}
	return answer.Bytes(), nil
}

// complained is the error of a program that failed: the end of what it said.
func complained(said string, err error) error {
	said = strings.TrimSpace(ui.Clean(said))
	if said == "" {
		return err
	}
	if len(said) > ansibleComplaint {
		said = "..." + strings.ToValidUTF8(said[len(said)-ansibleComplaint:], "")
	}
	return errors.New(said)
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	bytes.Buffer
	most int
	over bool
}

// Write implements io.Writer; it never fails, so that the writer may end.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.Len()
	if len(p) > room {
		b.over = true
		b.Buffer.Write(p[:room])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
