package remote

import "syscall"

// ownSession starts a process in a session of its own, which ends when dsbuild does.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
}
