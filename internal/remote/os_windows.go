package remote

import (
	"io/fs"
	"net"
	"strings"
	"syscall"
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

// ours is asked of the sockets of OpenSSH's masters, which Windows has none of.
func ours(fs.FileInfo) bool { return false }

// ownSession starts a process in a group of its own.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}
