//go:build unix

package remote

import (
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// systemSSH is the folder of OpenSSH's settings for all users.
	systemSSH = "/etc/ssh"
	// defaultAgent is the agent's socket if no setting names one: there is none.
	defaultAgent = ""

	errRefused = syscall.ECONNREFUSED
	errReset   = syscall.ECONNRESET
	errAborted = syscall.ECONNABORTED
)

// dialAgent connects to an agent.
func dialAgent(socket string, limit time.Duration) (net.Conn, error) {
	return net.DialTimeout("unix", socket, limit)
}

// detached starts a process in its own session. The process may outlive dsbuild.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// ours reports whether a file belongs to this user.
func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
