//go:build unix

package slurm

import (
	"os"
	"os/exec"
	"syscall"
)

// detach keeps what is typed at the terminal from a program: a Ctrl-C is for
// dsbuild, which ends its programs in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// What srun is told: to pass a signal on to the program on the node, and to end
// at once, with all that is there.
var (
	passOn = os.Signal(syscall.SIGUSR1)
	endNow = os.Signal(syscall.SIGTERM)
)
