//go:build unix

package slurm

import (
	"os"
	"os/exec"
	"syscall"
)

// detach detaches a program from the terminal. Ctrl-C then reaches only dsbuild, which ends its
// programs in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// Signals to srun: passOn reaches node.sh, which ends the program, and endNow makes srun end the
// step at once with all its processes.
var (
	passOn = os.Signal(syscall.SIGUSR1)
	endNow = os.Signal(syscall.SIGTERM)
)
