// Package child starts programs that end with the program that started them.
package child

import (
	"context"
	"os/exec"
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
