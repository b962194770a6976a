package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// jumpConns holds one connection to each jump host while a node behind it is in use. A thousand
// simultaneous handshakes would exceed a jump host's MaxStartups, and a thousand rejected keys would
// get this machine banned. For that reason, a login rejected by a jump host is not retried.
type jumpConns struct {
	mu   sync.Mutex
	open map[string]*jumpConn
}

// jumpConn is a connection with its users, or the attempt to open one.
type jumpConn struct {
	ready chan struct{} // closed once conn or err is set
	conn  *sshConn
	err   error
	users int
	stop  context.CancelFunc // ends the attempt
}

// get returns the connection for key, and dials if there is none. The caller calls release when it no
// longer needs the connection.
func (p *jumpConns) get(
	ctx context.Context, key string, dial func(context.Context) (*sshConn, error),
) (c *sshConn, release func(), err error) {
	p.mu.Lock()
	s := p.open[key]
	if s == nil || s.over() {
		s = &jumpConn{ready: make(chan struct{})}
		// The attempt has its own context: if the first caller gives up, the others still get the
		// connection.
		var lasting context.Context
		lasting, s.stop = context.WithCancel(context.WithoutCancel(ctx))
		p.open[key] = s
		go p.dial(lasting, s, dial)
	}
	s.users++
	p.mu.Unlock()
	release = sync.OnceFunc(func() { p.release(key, s) })
	select {
	case <-s.ready:
		err = s.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return s.conn, release, nil
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// over reports whether the next caller needs another attempt.
func (s *jumpConn) over() bool {
	switch {
	case !isClosed(s.ready):
		return false
	case s.err != nil:
		return !isFinalRefusal(s.err)
	}
	return isClosed(s.conn.dead)
}

func (p *jumpConns) dial(ctx context.Context, s *jumpConn, dial func(context.Context) (*sshConn, error)) {
	conn, err := dial(ctx)
	p.mu.Lock()
	s.conn, s.err = conn, err
	close(s.ready)
	unused := s.users == 0
	p.mu.Unlock()
	if unused && err == nil {
		conn.Close() //nolint:errcheck // unused
	}
}

func (p *jumpConns) release(key string, s *jumpConn) {
	p.mu.Lock()
	s.users--
	last, opened := s.users == 0, isClosed(s.ready) && s.err == nil
	if last && p.open[key] == s && !isFinalRefusal(s.err) {
		delete(p.open, key)
	}
	p.mu.Unlock()
	if last {
		s.stop()
	}
	if last && opened {
		s.conn.Close() //nolint:errcheck // nothing is under way
	}
}

// lastJump returns the jump host that connects to t, with the other ones as its own.
func (t Target) lastJump() Target {
	n := len(t.Jump) - 1
	last := t.Jump[n]
	last.Jump, last.jump = t.Jump[:n], true
	return last
}

// jumpKey returns a key that identifies a chain of jump hosts.
func jumpKey(chain []Target) string {
	var b strings.Builder
	for _, t := range chain {
		fmt.Fprintf(&b, "%s %q %q %q %t %q %q %q %t %t %t %q %q %q %q %v %q\x00",
			loginName(t), t.IdentityFiles, t.KnownHosts, t.CertificateFiles, t.IdentitiesOnly, t.Agent, t.HostKeyAlias,
			t.ControlPaths, t.BatchMode, t.NoPassword, t.NoInteractive, t.proxyCommand, t.SSHArgs,
			t.methods, t.family, t.allowed, t.switchOff)
	}
	return b.String()
}

// isFinalRefusal reports whether err must not be retried.
func isFinalRefusal(err error) bool {
	return errors.Is(err, ErrAuth) || errors.Is(err, ErrHostKey) || errors.Is(err, ErrBanned)
}
