//go:build unix

package hostbuilder

import "syscall"

// ownSession starts a program in a new session.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// kill sends a signal to a process, which may have ended by itself.
func kill(pid int, signal syscall.Signal) { _ = syscall.Kill(pid, signal) }
