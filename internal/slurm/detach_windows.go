package slurm

import (
	"os"
	"os/exec"
)

// There is no Slurm on Windows: its programs are not found.
func detach(*exec.Cmd) {}

var (
	passOn = os.Interrupt
	endNow = os.Kill
)
