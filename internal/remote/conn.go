package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// endedError means that the connection ended during an operation.
type endedError struct{ doing string }

// Operations during which a connection may end, for error messages.
const (
	openingSession  = "opening a session"
	startingCommand = "starting a command"
	runningCommand  = "running a command"
)

// Error implements error.
func (e *endedError) Error() string { return "connection closed while " + e.doing }

// sshConn is an open connection to a node, by dsbuild's own SSH or through an OpenSSH master.
type sshConn struct {
	target  Target
	client  *ssh.Client
	socket  *aliveConn // to the node or to the master
	master  *master    // nil for dsbuild's own SSH
	release func()     // releases the connection to the jump host
	verdict atomic.Pointer[string]
	noSFTP  atomic.Bool   // an earlier upload found no SFTP there
	dead    chan struct{} // closed once the connection has ended
	gone    chan struct{} // closed once the peer has also closed it
	ended   sync.Once
	once    sync.Once

	mu       sync.Mutex
	opening  int                   // number of unanswered session requests
	refused  bool                  // the node has rejected a session
	served   bool                  // the node has opened a session
	sessions map[*ssh.Session]bool // the open ones

	redial    func(context.Context) (*sshConn, error) // opens another connection to the node; may be nil
	extending chan struct{}                           // guards next
	next      *sshConn                                // for sessions beyond this connection's MaxSessions
}

func newConn(t Target, client *ssh.Client, socket *aliveConn, m *master) *sshConn {
	c := &sshConn{
		target: t, client: client, socket: socket, master: m,
		release: func() {}, dead: make(chan struct{}), gone: make(chan struct{}), sessions: map[*ssh.Session]bool{},
		extending: make(chan struct{}, 1),
	}
	go func() {
		client.Wait() //nolint:errcheck // the operation that was running reports the reason
		close(c.gone)
		if why := m.gaveUp(); why != "" {
			c.verdict.CompareAndSwap(nil, &why)
		}
		c.end()
	}()
	return c
}

// end marks the connection as ended.
func (c *sshConn) end() { c.ended.Do(func() { close(c.dead) }) }

// Close ends the connection. Commands that still run get ErrLost.
func (c *sshConn) Close() error {
	c.once.Do(func() {
		why := "closed by dsbuild"
		c.verdict.CompareAndSwap(nil, &why)
		c.end()
		c.extending <- struct{}{} // further ends now
		if c.next != nil {
			c.next.Close() //nolint:errcheck // never fails
		}
		<-c.extending
		c.awaitOpening()
		c.hangUp()
		c.master.end()
		c.release()
	})
	return nil
}

// broke reports whether err came from a broken connection. The caller may see the break before the
// goroutine that records it, so broke waits up to 250 ms.
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

// cut reports whether err means a broken socket. A failed write closes the socket here, so
// net.ErrClosed counts too.
func cut(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errReset) ||
		errors.Is(err, errAborted)
}

// abort breaks the connection from this side and records the reason.
func (c *sshConn) abort(why string) {
	c.verdict.CompareAndSwap(nil, &why)
	c.end()
	c.master.kill()
	c.hangUp()
}

// lost returns the error of an operation during which the connection broke. It waits up to 250 ms
// for the recorded reason, because the caller may see the break first.
func (c *sshConn) lost(doing string) error {
	select {
	case <-c.dead:
	case <-time.After(250 * time.Millisecond):
	}
	why := "closed by the node"
	if v := c.verdict.Load(); v != nil {
		why = *v
	}
	return fault.WithHint(nodeerr.Errorf("%w to %s while %s: %s", ErrLost, nodeerr.Own(hostPort(c.target)), doing, why),
		"check for a reboot or an overloaded network, then rerun the command, which is safe")
}

// errNoSession means that the node rejected a session. The command did not start.
var errNoSession = errors.New("session rejected by the node")

// further returns another connection to the node, for sessions beyond this connection's MaxSessions. It dials only
// once. If that fails, it returns rejected, the error of such a session.
func (c *sshConn) further(ctx context.Context, rejected error) (*sshConn, error) {
	c.mu.Lock()
	none := !c.served && c.opening == 0 && !c.master.usersOwn() // the node opens no session at all
	c.mu.Unlock()
	if none || c.redial == nil {
		return nil, rejected
	}
	select {
	case c.extending <- struct{}{}:
		defer func() { <-c.extending }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.next != nil && !isClosed(c.next.dead) {
		return c.next, nil
	}
	dialing, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-c.dead:
			stop()
		case <-dialing.Done():
		}
	}()
	next, err := c.redial(dialing)
	switch {
	case ctx.Err() == nil && err == nil && !isClosed(c.dead):
		c.next = next
		return next, nil
	case err == nil:
		next.Close() //nolint:errcheck // it was not used
	case ctx.Err() == nil && !isClosed(c.dead):
		return nil, fault.WithHint(fmt.Errorf("%w; no second connection either: %w", rejected, err),
			"raise MaxSessions in the node's sshd_config; or, for a second connection: %s", fault.Hint(err))
	}
	return nil, cmp.Or(ctx.Err(), c.lost(openingSession))
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
	// After Run returns, nothing may touch the caller's streams. An abandoned session may still be
	// closing then, so the gates cut it off.
	out, errs, in := NewDetachableWriter(cmd.Stdout), NewDetachableWriter(cmd.Stderr), NewDetachableReader(cmd.Stdin)
	defer out.Close()
	defer errs.Close()
	defer in.Close()
	done := make(chan error, 1)
	go func() { done <- c.explain(c.run(ctx, line, in, out, errs)) }()
	if err = c.await(ctx, done, runningCommand); !errors.Is(err, errNoSession) {
		return err
	}
	next, err := c.further(ctx, err)
	if err != nil {
		return err
	}
	return next.Run(ctx, cmd)
}

// explain converts a session's error for the caller of Run.
func (c *sshConn) explain(err error) error {
	var ended *endedError
	switch {
	case errors.As(err, &ended):
		return c.lost(ended.doing)
	case err == nil, errors.Is(err, errNoSession), errors.As(err, new(*ExitError)):
		return err
	case c.broke(err):
		return c.lost(startingCommand)
	}
	return err
}

// await waits for an operation on the connection. A session that is opened while the connection ends
// never gets an answer, so await also watches for the end of the connection, and then gives the
// operation one second to finish.
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
	return cmp.Or(ctx.Err(), err)
}
