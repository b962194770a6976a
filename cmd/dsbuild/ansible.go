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
	// ansibleTimeLimit bounds ansible-inventory, which may ask a cloud.
	ansibleTimeLimit = 5 * time.Minute
	// ansibleOutputLimit bounds its answer, in bytes.
	ansibleOutputLimit = 256 << 20
	// ansibleErrorLimit bounds the part of its error messages that is shown, in bytes.
	ansibleErrorLimit = 2000
)

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
		return runAnsibleInventory(ctx, program, path)
	}
}

func runAnsibleInventory(ctx context.Context, program, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ansibleTimeLimit, fmt.Errorf("no answer within %s", ui.Duration(ansibleTimeLimit)))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-i", path, "--list")
	// A source that cannot be read is an error, not a warning and no hosts.
	cmd.Env = append(os.Environ(), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=True", "ANSIBLE_NOCOLOR=1",
		"ANSIBLE_DEPRECATION_WARNINGS=False", "ANSIBLE_LOCALHOST_WARNING=False", "ANSIBLE_VERBOSITY=0")
	answer, messages := &boundedBuffer{limit: ansibleOutputLimit}, &boundedBuffer{limit: ansibleOutputLimit}
	cmd.Stdout, cmd.Stderr = answer, messages
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, programError(messages.String(), err)
	case answer.over:
		return nil, fmt.Errorf("more than %d MiB", ansibleOutputLimit>>20)
	}
	return answer.Bytes(), nil
}

// programError returns the end of the messages of a program that failed with err.
func programError(messages string, err error) error {
	messages = strings.TrimSpace(ui.Clean(messages))
	if messages == "" {
		return err
	}
	if len(messages) > ansibleErrorLimit {
		messages = "..." + strings.ToValidUTF8(messages[len(messages)-ansibleErrorLimit:], "")
	}
	return errors.New(messages)
}

// boundedBuffer keeps the first bytes that are written to it.
type boundedBuffer struct {
	bytes.Buffer
	limit int
	over  bool
}

// Write implements io.Writer; it never fails, so that the writer may end.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	room := b.limit - b.Len()
	if len(p) > room {
		b.over = true
		b.Buffer.Write(p[:room])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
