package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// master is an OpenSSH master on this machine, which is connected to a node. dsbuild's own SSH opens its
// sessions through the master's socket.
type master struct {
	ssh     string        // path of the program
	host    string        // the node's name for ssh
	socket  string        // where the master listens
	silence time.Duration // time after which a silent node counts as lost
	process *process      // nil if the master is the user's
	folder  string        // private folder of dsbuild's own master
	open    *atomic.Int64 // sessions of all dsbuild's connections through the user's master
}

// masterLog returns the path of the log of dsbuild's master in its private folder.
func masterLog(folder string) string { return filepath.Join(folder, "log") }

// usersOwn reports whether the master is the user's. A nil master is not.
func (m *master) usersOwn() bool { return m != nil && m.process == nil }

// count adds n to the open sessions of the user's master.
func (m *master) count(n int64) {
	if m.usersOwn() {
		m.open.Add(n)
	}
}

// args returns the options of an ssh that uses only the master. If the master is gone, that ssh must
// not open its own connection.
func (m *master) args(more ...string) []string {
	return append([]string{
		"-F", "none", "-S", m.socket, "-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-o", "BatchMode=yes",
	}, more...)
}

// connect opens a connection through the master.
func (m *master) connect(ctx context.Context, t Target) (*sshConn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", m.socket)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	socket := newAliveConn(nc)
	socket.greeted.Store(true) // a master sends no version
	conn, chans, reqs, err := ssh.NewControlClientConn(socket)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return newConn(t, ssh.NewClient(conn, chans, reqs), socket, m), nil
}

// ride opens a connection through the user's master, if the node behind it answers. A jump host need not answer,
// because it may forward connections and run nothing.
func (m *master) ride(ctx context.Context, t Target) (*sshConn, error) {
	limited, cancel := context.WithTimeout(ctx, masterAnswerLimit)
	defer cancel()
	c, err := m.connect(limited, t)
	if err != nil || t.jump {
		return c, err
	}
	asked := make(chan error, 1)
	go func() {
		s, err := c.openSession()
		if err == nil {
			c.endSession(s)
		}
		asked <- err
	}()
	select {
	case err = <-asked:
	case <-limited.Done():
		err = limited.Err()
	}
	if err != nil && !errors.Is(err, errNoSession) { // a rejected session shows that the node answers
		c.Close() //nolint:errcheck // the connection is useless
		return nil, err
	}
	return c, nil
}

// noSession returns errNoSession with the node's message.
func (m *master) noSession(said string) error {
	if !m.usersOwn() {
		return fault.WithHint(fmt.Errorf("%w: %s", errNoSession, said), "raise MaxSessions in the node's sshd_config; 0 allows no command")
	}
	return fault.WithHint(fmt.Errorf("%w: your OpenSSH connection %s: %s", errNoSession, m.socket, said),
		"close it, so that dsbuild logs in itself (ssh -O exit -S %s %s), "+
			"or raise MaxSessions in the node's sshd_config", Quote(m.socket), Quote(m.host))
}

// gaveUp returns the reason if dsbuild's own master has given up an unresponsive node, or "".
func (m *master) gaveUp() string {
	if m == nil || m.process == nil {
		return ""
	}
	if text, err := os.ReadFile(masterLog(m.folder)); err != nil || !strings.Contains(string(text), "not responding") {
		return ""
	}
	return fmt.Sprintf("no response for %s", m.silence)
}

// leaveLimit limits the end of a connection: until the master has ended, or the user's master has
// opened its pending sessions.
const leaveLimit = 3 * time.Second

// awaitOpening waits until the node has answered all sessions that open through the user's master.
func (c *sshConn) awaitOpening() {
	for end := time.Now().Add(leaveLimit); c.master.usersOwn() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		opening := c.opening
		c.mu.Unlock()
		if opening == 0 {
			return
		}
	}
}

// hangUp closes the connection to the node or the master. The user's master exits if a client of its socket
// leaves while a session is being opened, after a session was rejected, or while the master has data for the
// client. So hangUp reads until the master has finished. Otherwise it leaves the socket to a process that reads
// it until the master ends.
func (c *sshConn) hangUp() {
	if socket, ok := c.socket.Conn.(*net.UnixConn); ok && c.master.usersOwn() && !c.leave(socket) {
		defer keepOpen(socket)()
	}
	c.socket.Close() //nolint:errcheck // already closed by the node is fine
	c.client.Close() //nolint:errcheck // already closed by the node is fine
}

// leave ends the connection to the user's master and reports whether the master has finished with it.
func (c *sshConn) leave(socket *net.UnixConn) bool {
	socket.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // for a master that reads nothing
	if c.mustStay() {
		return false
	}
	socket.CloseWrite() //nolint:errcheck // the master may have gone
	select {
	case <-c.gone:
		return true
	case <-time.After(leaveLimit):
		return false
	}
}

// mustStay reports whether the master would exit if dsbuild left now, because it rejected a session or is
// opening one. If so, mustStay ends the open sessions, because the socket stays.
func (c *sshConn) mustStay() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refused && c.opening == 0 {
		return false
	}
	for s := range c.sessions {
		s.Close() //nolint:errcheck // the node may have closed it
	}
	return true
}

// keepOpen returns a function that starts a process that keeps the socket open and reads it.
func keepOpen(socket *net.UnixConn) (start func()) {
	f, err := socket.File()
	if err != nil {
		return func() {} // it is closed already
	}
	return func() {
		defer f.Close()
		cmd := exec.Command("cat") //nolint:noctx // it outlives dsbuild
		cmd.Stdin, cmd.SysProcAttr = f, detached()
		if cmd.Start() == nil {
			go cmd.Wait() //nolint:errcheck // it ends with the master
		}
	}
}

// kill ends dsbuild's own master immediately.
func (m *master) kill() {
	if m != nil && m.process != nil {
		m.process.kill()
	}
}

// end ends dsbuild's own master in an orderly way, and kills it after leaveLimit.
func (m *master) end() {
	if m == nil || m.process == nil {
		return
	}
	m.process.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-m.process.done:
	case <-time.After(leaveLimit):
		m.kill()
		<-m.process.done
	}
	os.RemoveAll(m.folder) //nolint:errcheck // nothing in it is a secret
}
