package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// ownGroup starts a program in its own process group: a Ctrl-C reaches only dsbuild, which ends the program.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// signalGroup ends a program: Windows has no signals.
func signalGroup(p *os.Process, _ syscall.Signal) error { return p.Kill() }
