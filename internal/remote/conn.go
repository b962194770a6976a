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
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// aliveConn remembers when the node was last heard of, and what it said first.
type aliveConn struct {
	net.Conn
	heard atomic.Int64
	ended func() // if set, called when the other side has ended it

	closed  atomic.Bool // on this side
	greeted atomic.Bool // its version has come, or more than anybody says before
	mu      sync.Mutex
	first   []byte // what came before

	writing sync.Mutex
	held    []byte      // the beginning of a packet
	late    *time.Timer // for its rest
	failed  error       // of what was held
}

// mostFirst is more than a node says before its version.
const mostFirst = 1 << 10

func newAliveConn(c net.Conn) *aliveConn {
	a := &aliveConn{Conn: c}
	a.late = time.AfterFunc(time.Hour, a.release)
	a.late.Stop()
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

// packetBlock is what x/crypto/ssh's buffer takes of a larger packet: it writes that
// much, and then the rest.
const packetBlock = 4 << 10

// restWithin is how long the rest of a packet may take. One of just that size has none.
const restWithin = time.Millisecond

// Write implements io.Writer. It puts the two pieces of a packet together again: to
// write it as one saves a system call here, and one waking up there.
func (a *aliveConn) Write(b []byte) (int, error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.failed != nil {
		return 0, a.failed
	}
	if len(a.held) == 0 {
		if len(b) != packetBlock {
			return a.Conn.Write(b)
		}
		a.held = append(a.held, b...)
		a.late.Reset(restWithin)
		return len(b), nil
	}
	a.late.Stop()
	both := net.Buffers{a.held, b}
	n, err := both.WriteTo(a.Conn)
	n -= int64(len(a.held))
	a.held = a.held[:0]
	return int(max(n, 0)), err
}

// release writes a packet of which nothing more has come.
func (a *aliveConn) release() {
	a.writing.Lock()
	defer a.writing.Unlock()
	if len(a.held) > 0 {
		_, a.failed = a.Conn.Write(a.held)
		a.held = a.held[:0]
	}
}

// Close implements io.Closer.
func (a *aliveConn) Close() error {
	a.closed.Store(true)
	return a.Conn.Close()
}

// remember keeps what a node says before its version.
func (a *aliveConn) remember(b []byte) {
	if a.greeted.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.first = append(a.first, b...)
	if len(a.first) > mostFirst || bytes.HasPrefix(a.first, []byte("SSH-")) || bytes.Contains(a.first, []byte("\nSSH-")) {
		a.first = nil
		a.greeted.Store(true)
	}
}

// said is the last line that a node has said in place of its version, or "".
func (a *aliveConn) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(a.first)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func (a *aliveConn) silence() time.Duration { return time.Since(time.Unix(0, a.heard.Load())) }

// sshConn is an open connection.
type sshConn struct {
	target  Target
	client  *ssh.Client
	alive   *aliveConn
	ask     func() error // has the node answer something
	forward dialFunc     // connects to an address from the node
	hangUp  func() error // ends it in an orderly way
	release func()       // gives the jump host back
	verdict atomic.Pointer[string]
	dead    chan struct{} // closed once the connection has ended
	ended   sync.Once
	once    sync.Once
}

func newConn(t Target, client *ssh.Client, alive *aliveConn, ask func() error, opt Options) *sshConn {
	c := &sshConn{target: t, client: client, alive: alive, ask: ask, forward: client.DialContext, release: func() {}, dead: make(chan struct{})}
	c.hangUp = func() error { return errors.Join(client.Close(), alive.Close()) }
	go func() {
		client.Wait() //nolint:errcheck // why it ended is told by what was running
		c.end()
	}()
	go c.keepAlive(opt.KeepAlive, opt.KeepAliveMax)
	return c
}

// end notes that the connection has ended.
func (c *sshConn) end() { c.ended.Do(func() { close(c.dead) }) }

// Close ends the connection; what runs on it gets ErrLost.
func (c *sshConn) Close() error {
	c.once.Do(func() {
		why := "it was closed here"
		c.verdict.CompareAndSwap(nil, &why)
		c.end()
		c.hangUp() //nolint:errcheck // already closed by the node is fine
		c.release()
	})
	return nil
}

func (c *sshConn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// broke reports whether err is that of a broken connection. Who meets the
// break first may be ahead of the goroutine that notes it: so it is given a moment.
func (c *sshConn) broke(err error) bool {
	if cut(err) {
		return true
	}
	select {
	case <-c.dead:
		return true
	case <-time.After(250 * time.Millisecond):
		return false
	}
}

// cut reports whether err is that of a socket that has broken; it is closed here
// where it could not be written to.
func cut(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errReset) || errors.Is(err, errAborted)
}

// keepAlive asks a silent node for a sign of life and gives it up after limit
// silent intervals. Whatever the node sends counts: while a big file goes over
// a slow line, the answer to a question queues behind it.
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
		silent := c.alive.silence()
		if silent >= time.Duration(limit)*every {
			c.giveUp(fmt.Sprintf("no sign of life for %s", silent.Round(every)))
			return
		}
		if silent < every {
			continue
		}
		select {
		case asked <- struct{}{}:
			go func() {
				c.ask() //nolint:errcheck // any answer will do, and none is judged above
				<-asked
			}()
		default: // one question is open already
		}
	}
}

// giveUp breaks the connection from this side. The socket goes first: a close
// message could block behind data that nobody reads.
func (c *sshConn) giveUp(why string) {
	c.verdict.CompareAndSwap(nil, &why)
	c.alive.Close()  //nolint:errcheck // it is being given up
	c.client.Close() //nolint:errcheck // likewise
}

// lost is the error of whatever was under way when the connection broke.
func (c *sshConn) lost(doing string) error {
	why := "the node closed it"
	if v := c.verdict.Load(); v != nil {
		why = *v
	}
	return hint.With(fmt.Errorf("%w to %s while %s: %s", ErrLost, hostPort(c.target), doing, why),
		"did the node reboot, or is the network overloaded? Running the same command again is safe")
}

// session opens a channel on the connection.
func (c *sshConn) session() (*ssh.Session, error) {
	s, err := c.client.NewSession()
	if refused := sessionRefused(err); refused != nil {
		return nil, refused
	}
	if err != nil {
		return nil, c.lost("opening a session")
	}
	return s, nil
}

// errNoSession is a session that was refused: nothing has begun.
var errNoSession = errors.New("the node allows no further session on this connection")

// sessionRefused is the error of a node that wants no further session, or nil.
func sessionRefused(err error) error {
	var refused *ssh.OpenChannelError
	if !errors.As(err, &refused) {
		return nil
	}
	return hint.With(fmt.Errorf("%w: %s", errNoSession, refused.Message), "MaxSessions in its sshd_config")
}

// Run implements Runner.
func (c *sshConn) Run(ctx context.Context, cmd Command) error {
	line, err := CommandLine(cmd)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// When Run has returned, nothing may touch the caller's streams any more,
	// though a session that was abandoned can still be closing.
	out, errs, in := WriteGate(cmd.Stdout), WriteGate(cmd.Stderr), ReadGate(cmd.Stdin)
	defer out.Close()
	defer errs.Close()
	defer in.Close()
	done := make(chan error, 1)
	go func() { done <- c.exec(ctx, line, in, out, errs) }()
	return c.await(ctx, done, "running a command")
}

// await waits for what runs on the connection. A session opened at the very
// moment the connection ends is never answered; so its end counts as well,
// after what it still brings to an orderly end.
func (c *sshConn) await(ctx context.Context, done <-chan error, doing string) error {
	err := error(nil)
	select {
	case err = <-done:
	case <-ctx.Done():
	case <-c.dead:
		select {
		case err = <-done:
		case <-time.After(time.Second):
			err = c.lost(doing)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// stdinBlock is what a command gets of its input at once: a connection keeps a
// buffer of the largest packet that went over it, and there may be thousands.
const stdinBlock = 16 << 10

// exec runs a line in a session of its own, to its end.
func (c *sshConn) exec(ctx context.Context, line string, in, out, errs *Gate) error {
	s, err := c.session()
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() {
		s.Signal(ssh.SIGTERM) //nolint:errcheck // some servers refuse signals; closing is what counts
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
		if errors.Is(err, io.EOF) || c.broke(err) {
			return c.lost("starting a command")
		}
		return fmt.Errorf("the node starts no commands: %w", err)
	}
	if stdin != nil {
		// Not waited for: a program may end before it has read all its input.
		go func() {
			io.CopyBuffer(stdin, in, make([]byte, stdinBlock)) //nolint:errcheck // the program's exit status is the verdict
			stdin.Close()
		}()
	}
	return c.exitError(s.Wait())
}

func (c *sshConn) exitError(err error) error {
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return c.lost("running a command")
	case exit.Signal() != "":
		return &ExitError{Code: -1, Signal: exit.Signal()}
	}
	return &ExitError{Code: exit.ExitStatus()}
}
