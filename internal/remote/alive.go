package remote

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// aliveConn records the time of the node's last byte and the text before its SSH version.
type aliveConn struct {
	net.Conn
	heard atomic.Int64
	ended func() // if set, called when the peer closes the connection

	closed  atomic.Bool // closed on this side
	greeted atomic.Bool // the version was received, or more text than a node sends before it
	mu      sync.Mutex
	first   []byte // the text before the version
}

// maxFirst limits the text before a node's version.
const maxFirst = 1 << 10

func newAliveConn(c net.Conn) *aliveConn {
	a := &aliveConn{Conn: c}
	a.heard.Store(time.Now().UnixNano())
	return a
}

// Read implements io.Reader.
func (a *aliveConn) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if n > 0 {
		a.heard.Store(time.Now().UnixNano())
		a.remember(b[:n])
	}
	if err != nil && a.ended != nil && !a.closed.Load() {
		a.ended()
	}
	return n, err
}

// Close implements io.Closer.
func (a *aliveConn) Close() error {
	a.closed.Store(true)
	return a.Conn.Close()
}

// remember keeps the text that a node sends before its version.
func (a *aliveConn) remember(b []byte) {
	if a.greeted.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.first = append(a.first, b...)
	if len(a.first) > maxFirst || bytes.HasPrefix(a.first, []byte("SSH-")) || bytes.Contains(a.first, []byte("\nSSH-")) {
		a.first = nil
		a.greeted.Store(true)
	}
}

// said returns the last line that a node sent in place of its version, or "".
func (a *aliveConn) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(a.first)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// keepAlive sends keepalives to an unresponsive node, and aborts the connection after limit intervals
// without data. Any byte from the node resets the count, because the reply to a keepalive may be
// queued after a large file on a slow link.
func (c *sshConn) keepAlive(every time.Duration, limit int) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	asked := make(chan struct{}, 1)
	for {
		select {
		case <-c.dead:
			return
		case <-tick.C:
		}
		ask := c.keepAliveRequest()
		if ask == nil {
			c.socket.heard.Store(time.Now().UnixNano())
			continue
		}
		silent := time.Since(time.Unix(0, c.socket.heard.Load()))
		if silent >= time.Duration(limit)*every {
			c.abort(fmt.Sprintf("no response for %s", silent.Round(every)))
			return
		}
		if silent < every {
			continue
		}
		select {
		case asked <- struct{}{}:
			go func() {
				ask()
				<-asked
			}()
		default: // a request is already pending
		}
	}
}

// keepAliveRequest returns a function that sends a keepalive request, or nil if the node could not reply. A
// master closes a connection that sends a global request, so there the request is sent in an open session.
func (c *sshConn) keepAliveRequest() func() {
	const name = "keepalive@openssh.com"
	if c.master == nil {
		return func() { c.client.SendRequest(name, true, nil) } //nolint:errcheck // any answer counts; none shows in heard
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		return func() { s.SendRequest(name, true, nil) } //nolint:errcheck // any answer counts
	}
	if c.opening > 0 {
		return func() {} // the node has a session to open
	}
	return nil
}
