//go:build unix

package remote

import (
	"net"
	"syscall"
	"time"
)

const (
	// systemSSH is where the settings of OpenSSH for all users lie.
	systemSSH = "/etc/ssh"
	// defaultAgent is the agent's socket where nothing names one: there is none.
	defaultAgent = ""

	errRefused = syscall.ECONNREFUSED
	errReset   = syscall.ECONNRESET
	errAborted = syscall.ECONNABORTED
)

// dialAgent connects to an agent.
func dialAgent(socket string, limit time.Duration) (net.Conn, error) {
	return net.DialTimeout("unix", socket, limit)
}
