package slurm

import (
	"os"
	"os/exec"
)

// detach does nothing, because Slurm does not run on Windows.
func detach(*exec.Cmd) {}

var (
	passOn = os.Interrupt
	endNow = os.Kill
)
