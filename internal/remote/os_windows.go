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
	// systemSSH is the folder of OpenSSH's settings for all users.
	systemSSH = "${ProgramData}/ssh"
	// defaultAgent is the named pipe of the agent of Windows' own OpenSSH.
	defaultAgent = `\\.\pipe\openssh-ssh-agent`

	errRefused = windows.WSAECONNREFUSED
	errReset   = windows.WSAECONNRESET
	errAborted = windows.WSAECONNABORTED
)

// dialAgent connects to an agent at a named pipe, or at a socket, which other agents use on
// Windows.
func dialAgent(socket string, limit time.Duration) (net.Conn, error) {
	if name := strings.ReplaceAll(socket, "/", `\`); strings.HasPrefix(name, `\\.\pipe\`) {
		return winio.DialPipe(name, &limit)
	}
	return net.DialTimeout("unix", socket, limit)
}

// ours is for the sockets of OpenSSH masters, and Windows has none.
func ours(fs.FileInfo) bool { return false }

// detached is for OpenSSH masters, and Windows has none.
func detached() *syscall.SysProcAttr { return nil }

// ownSession starts a process in its own process group.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}
