//go:build unix

package pipeline

import (
	"os/exec"
	"syscall"
)

// withHelpers makes the helpers of a program (ssh and git-remote-https of git) end with it when
// its context is cancelled.
func withHelpers(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
