package remote

import "syscall"

// ownSession starts a process in its own session. The process ends with dsbuild.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
}
