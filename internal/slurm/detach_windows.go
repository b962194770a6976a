package slurm

import (
	"os"
	"os/exec"
)

// detach does nothing. Slurm does not run on Windows, so dsbuild finds no programs of it there.
func detach(*exec.Cmd) {}

var (
	passOn = os.Interrupt
	endNow = os.Kill
)
