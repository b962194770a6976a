package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// aliveConn records the time of the node's last byte and the text before its SSH version.
type aliveConn struct {
	net.Conn
	heard atomic.Int64
	ended func() // if set, called when the other side ends the connection

	closed  atomic.Bool // closed on this side
	greeted atomic.Bool // the version has come, or more text than any node sends before it
	mu      sync.Mutex
	first   []byte // the text before the version
}

// maxFirst is more bytes than a node sends before its version.
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

// nativeLink is a connection of dsbuild's own SSH.
type nativeLink struct {
	client *ssh.Client
	alive  *aliveConn
}

// newNative returns the connection of client to t.
func newNative(t Target, client *ssh.Client, alive *aliveConn, opt Options) *sshConn {
	n := &nativeLink{client: client, alive: alive}
	c := newConn(t, n)
	c.forward = client.DialContext
	go func() {
		client.Wait() //nolint:errcheck // the operation that was running reports the reason
		c.end()
	}()
	go n.keepAlive(c, opt.KeepAlive, opt.KeepAliveMax)
	return c
}

// keepAlive asks a silent node for a sign of life, and gives it up after limit silent intervals.
// Every byte from the node counts: while a big file goes over a slow line, the answer to a
// keepalive waits behind it.
func (n *nativeLink) keepAlive(c *sshConn, every time.Duration, limit int) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	asked := make(chan struct{}, 1)
	for {
		select {
		case <-c.dead:
			return
		case <-tick.C:
		}
		silent := time.Since(time.Unix(0, n.alive.heard.Load()))
		if silent >= time.Duration(limit)*every {
			c.giveUp(fmt.Sprintf("no answer for %s", silent.Round(every)))
			return
		}
		if silent < every {
			continue
		}
		select {
		case asked <- struct{}{}:
			go func() {
				n.client.SendRequest("keepalive@openssh.com", true, nil) //nolint:errcheck // any answer counts; none shows above
				<-asked
			}()
		default: // one request is open already
		}
	}
}

// hangUp implements link.
func (n *nativeLink) hangUp() {
	n.client.Close() //nolint:errcheck // already closed by the node is fine
	n.alive.Close()  //nolint:errcheck // likewise
}

// sever implements link. It closes the socket first, because a close message could block behind
// data that nobody reads.
func (n *nativeLink) sever() {
	n.alive.Close()  //nolint:errcheck // it is being given up
	n.client.Close() //nolint:errcheck // likewise
}

// line implements link.
func (n *nativeLink) line(cmd Command) (string, error) { return CommandLine(cmd) }

// session opens a session.
func (n *nativeLink) session() (*ssh.Session, error) {
	s, err := n.client.NewSession()
	if refused := sessionRefused(err); refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, &endedError{"opening a session"}
	}
	return s, nil
}

// sessionRefused returns the error of a node that refuses a further session, or nil.
func sessionRefused(err error) error {
	var refused *ssh.OpenChannelError
	if !errors.As(err, &refused) {
		return nil
	}
	return noSession(refused.Message)
}

// stdinBlock is the number of input bytes that dsbuild sends at once. A connection keeps a buffer
// of its largest packet, and there may be thousands of connections.
const stdinBlock = 4 << 10

// run implements link.
func (n *nativeLink) run(ctx context.Context, line string, in, out, errs *Gate) error {
	s, err := n.session()
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() {
		s.Signal(ssh.SIGTERM) //nolint:errcheck // some servers refuse signals; the close decides
		s.Close()
	})
	defer stop()
	s.Stdout, s.Stderr = out, errs
	var stdin io.WriteCloser
	if in.r != nil {
		if stdin, err = s.StdinPipe(); err != nil {
			return err
		}
	}
	if err := s.Start(line); err != nil {
		if errors.Is(err, io.EOF) {
			return &endedError{startingCommand}
		}
		return fmt.Errorf("the node starts no commands: %w", err)
	}
	if stdin != nil {
		// Nobody waits for this copy: the program may end before it has read all its input.
		go func() {
			io.CopyBuffer(stdin, in, make([]byte, stdinBlock)) //nolint:errcheck // the program's exit status decides
			stdin.Close()
		}()
	}
	err = s.Wait()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return &endedError{runningCommand}
	case exit.Signal() != "":
		return &ExitError{Code: -1, Signal: exit.Signal()}
	}
	return &ExitError{Code: exit.ExitStatus()}
}

// sftp implements link.
func (n *nativeLink) sftp(_ context.Context, options ...sftp.ClientOption) (*sftp.Client, error) {
	cl, err := sftp.NewClient(n.client, options...)
	if refused := sessionRefused(err); refused != nil {
		return nil, refused
	}
	return cl, err
}
