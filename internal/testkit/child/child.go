// Package child starts programs that end with the program that started them.
package child

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Command is a program that runs until ctx ends. It has a process group of its own: this process
// passes a Ctrl-C on to the whole group once, and gives the group a minute to clean up.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// Run runs a program to its end. Its standard error goes to this program's.
func Run(ctx context.Context, stdout io.Writer, name string, args ...string) error {
	cmd := Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}
