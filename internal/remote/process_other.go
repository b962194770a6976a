//go:build unix && !linux

package remote

import "syscall"

// ownSession starts a process in its own session.
func ownSession() *syscall.SysProcAttr { return detached() }
