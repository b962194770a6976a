//go:build unix

package main

import (
	"os"
	"syscall"
)

// ownGroup starts a program in its own process group: a Ctrl-C reaches only dsbuild, which ends the program.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals a program of ownGroup with all that it started.
func signalGroup(p *os.Process, s syscall.Signal) error { return syscall.Kill(-p.Pid, s) }
