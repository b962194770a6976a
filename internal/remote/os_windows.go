package remote

import (
	"net"
	"strings"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

const (
	// systemSSH is where the settings of OpenSSH for all users lie.
	systemSSH = "${ProgramData}/ssh"
	// defaultAgent is where the agent of Windows' own OpenSSH listens.
	defaultAgent = `\\.\pipe\openssh-ssh-agent`

	errRefused = windows.WSAECONNREFUSED
	errReset   = windows.WSAECONNRESET
	errAborted = windows.WSAECONNABORTED
)

// dialAgent connects to an agent: a named pipe, or a socket as other agents
// have on Windows.
func dialAgent(socket string, limit time.Duration) (net.Conn, error) {
	if name := strings.ReplaceAll(socket, "/", `\`); strings.HasPrefix(name, `\\.\pipe\`) {
		return winio.DialPipe(name, &limit)
	}
	return net.DialTimeout("unix", socket, limit)
}
