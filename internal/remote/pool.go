package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// pool holds one connection to each jump host while a node behind it is in use. A thousand
// handshakes at once would exceed a jump host's MaxStartups, and a thousand refused keys would get
// this machine banned. So the pool does not retry a login that a jump host refused.
type pool struct {
	mu     sync.Mutex
	shared map[string]*sharedConn
}

type sharedConn struct {
	ready chan struct{} // closed once conn or err is set
	conn  *sshConn
	err   error
	users int
	stop  context.CancelFunc // ends the attempt to connect
}

// jumpKey returns a key that identifies a chain of jump hosts.
func jumpKey(chain []Target) string {
	var b strings.Builder
	for _, t := range chain {
		fmt.Fprintf(&b, "%s %q %q %q %t %q %q %q %t %t %t %q\x00", loginName(t), t.IdentityFiles, t.KnownHosts,
			t.CertificateFiles, t.IdentitiesOnly, t.Agent, t.HostKeyAlias, t.ControlPaths, t.BatchMode, t.NoPassword, t.NoInteractive, t.proxyCommand)
	}
	return b.String()
}

// get returns the connection for key and dials if there is none. The caller calls done when it no
// longer needs the connection.
func (p *pool) get(ctx context.Context, key string, dial func(context.Context) (*sshConn, error)) (c *sshConn, done func(), err error) {
	p.mu.Lock()
	s := p.shared[key]
	if s == nil || s.broken() {
		s = &sharedConn{ready: make(chan struct{})}
		p.shared[key] = s
		// The attempt has a context of its own: if the first node gives up, the others still get
		// the jump host.
		var lasting context.Context
		lasting, s.stop = context.WithCancel(context.WithoutCancel(ctx))
		go p.open(lasting, key, s, dial)
	}
	s.users++
	p.mu.Unlock()
	done = sync.OnceFunc(func() { p.release(key, s) })
	select {
	case <-s.ready:
	case <-ctx.Done():
		done()
		return nil, nil, ctx.Err()
	}
	if s.err != nil {
		done()
		return nil, nil, s.err
	}
	return s.conn, done, nil
}

func (p *pool) open(ctx context.Context, key string, s *sharedConn, dial func(context.Context) (*sshConn, error)) {
	c, err := dial(ctx)
	p.mu.Lock()
	s.conn, s.err = c, err
	close(s.ready)
	unused := s.users == 0
	if (unused || err != nil && !final(err)) && p.shared[key] == s {
		delete(p.shared, key)
	}
	p.mu.Unlock()
	if unused && c != nil {
		c.Close()
	}
}

func (p *pool) release(key string, s *sharedConn) {
	p.mu.Lock()
	s.users--
	last := s.users == 0
	if last && !final(s.err) && p.shared[key] == s {
		delete(p.shared, key)
	}
	conn := s.conn
	p.mu.Unlock()
	if last {
		s.stop()
	}
	if last && conn != nil {
		conn.Close()
	}
}

// broken reports whether the connection has ended; the caller holds p.mu.
func (s *sharedConn) broken() bool {
	return s.conn != nil && s.conn.isDead()
}

// final reports whether a retry could only do harm.
func final(err error) bool {
	return errors.Is(err, ErrAuth) || errors.Is(err, ErrHostKey) || errors.Is(err, ErrBanned)
}
