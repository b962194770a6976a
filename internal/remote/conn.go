package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// link carries sessions between this machine and a node: a connection of dsbuild's
// own (nativeLink), or processes of OpenSSH (opensshLink).
type link interface {
	// line is what the node's shell is given for a command.
	line(cmd Command) (string, error)
	// run runs a line in a session of its own, to its end or that of ctx. Its error is
	// an *ExitError, errNoSession, an *endedError, or that of a node that starts nothing.
	run(ctx context.Context, line string, in, out, errs *Gate) error
	// sftp opens a session of SFTP.
	sftp(options ...sftp.ClientOption) (*sftp.Client, error)
	// hangUp ends it in an orderly way, and sever at once. Either may be called twice.
	hangUp()
	sever()
}

// endedError is the end of a link while something was done.
type endedError struct{ doing string }

// What is done when a link ends.
const (
	startingCommand = "starting a command"
	runningCommand  = "running a command"
)

// Error implements error.
func (e *endedError) Error() string { return "the connection ended while " + e.doing }

// sshConn is an open connection.
type sshConn struct {
	target  Target
	link    link
	forward dialFunc // connects to an address from the node; nil where OpenSSH does that
	release func()   // gives the jump host back
	verdict atomic.Pointer[string]
	dead    chan struct{} // closed once the connection has ended
	ended   sync.Once
	once    sync.Once
}

func newConn(t Target, l link) *sshConn {
	return &sshConn{target: t, link: l, release: func() {}, dead: make(chan struct{})}
}

// end notes that the connection has ended.
func (c *sshConn) end() { c.ended.Do(func() { close(c.dead) }) }

// Close ends the connection; what runs on it gets ErrLost.
func (c *sshConn) Close() error {
	c.once.Do(func() {
		why := "it was closed here"
		c.verdict.CompareAndSwap(nil, &why)
		c.end()
		c.link.hangUp()
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

// giveUp breaks the connection from this side.
func (c *sshConn) giveUp(why string) {
	c.verdict.CompareAndSwap(nil, &why)
	c.link.sever()
}

// lost is the error of whatever was under way when the connection broke. Who meets the
// break first waits a moment for why.
func (c *sshConn) lost(doing string) error {
	select {
	case <-c.dead:
	case <-time.After(250 * time.Millisecond):
	}
	why := "the node closed it"
	if v := c.verdict.Load(); v != nil {
		why = *v
	}
	return hint.With(fmt.Errorf("%w to %s while %s: %s", ErrLost, hostPort(c.target), doing, why),
		"did the node reboot, or is the network overloaded? Running the same command again is safe")
}

// errNoSession is a session that was refused: nothing has begun.
var errNoSession = errors.New("the node allows no further session on this connection")

// noSession is that error, with what the node said.
func noSession(said string) error {
	return hint.With(fmt.Errorf("%w: %s", errNoSession, said), "MaxSessions in its sshd_config")
}

// Run implements Runner.
func (c *sshConn) Run(ctx context.Context, cmd Command) error {
	line, err := c.link.line(cmd)
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
	go func() { done <- c.explain(c.link.run(ctx, line, in, out, errs)) }()
	return c.await(ctx, done, runningCommand)
}

// explain turns the end of the link into what it means for who used it.
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
