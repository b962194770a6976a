package remote

import (
	"context"
	"slices"
	"sync"
)

// sharedConns are connections that several callers use, by key. A connection is open as long as it
// has users.
type sharedConns[C Conn] struct {
	perConn int              // the number of users of one connection; 0: no limit
	final   func(error) bool // an error that later callers get, too, in place of another attempt; nil: none

	mu   sync.Mutex
	open map[string][]*sharedConn[C]
}

// sharedConn is a connection with its users, or the attempt to open one.
type sharedConn[C Conn] struct {
	ready chan struct{} // closed once conn or err is set
	conn  C
	err   error
	users int
	lost  bool               // a user has seen the connection end
	stop  context.CancelFunc // ends the attempt
}

func newSharedConns[C Conn](perConn int, final func(error) bool) *sharedConns[C] {
	return &sharedConns[C]{perConn: perConn, final: final, open: map[string][]*sharedConn[C]{}}
}

// get returns a connection for key that has room for another user, and dials if there is none. The
// caller calls release when it no longer needs the connection.
func (p *sharedConns[C]) get(ctx context.Context, key string, dial func(context.Context) (C, error)) (s *sharedConn[C], release func(), err error) {
	p.mu.Lock()
	if at := slices.IndexFunc(p.open[key], p.isUsable); at >= 0 {
		s = p.open[key][at]
	} else {
		s = &sharedConn[C]{ready: make(chan struct{})}
		// The attempt has a context of its own: if the first caller gives up, the others still get
		// the connection.
		var lasting context.Context
		lasting, s.stop = context.WithCancel(context.WithoutCancel(ctx))
		p.open[key] = append(p.open[key], s)
		go p.dial(lasting, key, s, dial)
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
	return s, release, nil
}

// isUsable reports whether another user may join; the caller holds mu.
func (p *sharedConns[C]) isUsable(s *sharedConn[C]) bool {
	if p.perConn > 0 && s.users >= p.perConn {
		return false
	}
	if !s.isReady() {
		return true
	}
	if s.err != nil {
		return p.isFinal(s.err)
	}
	dead, known := any(s.conn).(interface{ isDead() bool })
	return !s.lost && (!known || !dead.isDead())
}

func (p *sharedConns[C]) isFinal(err error) bool { return p.final != nil && p.final(err) }

func (s *sharedConn[C]) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

func (p *sharedConns[C]) dial(ctx context.Context, key string, s *sharedConn[C], dial func(context.Context) (C, error)) {
	conn, err := dial(ctx)
	p.mu.Lock()
	s.conn, s.err = conn, err
	close(s.ready)
	unused := s.users == 0
	if unused || err != nil && !p.isFinal(err) {
		p.forget(key, s)
	}
	p.mu.Unlock()
	if unused && err == nil {
		conn.Close() //nolint:errcheck // nobody has used it
	}
}

func (p *sharedConns[C]) release(key string, s *sharedConn[C]) {
	p.mu.Lock()
	s.users--
	last, opened := s.users == 0, s.isReady() && s.err == nil
	if last && !p.isFinal(s.err) {
		p.forget(key, s)
	}
	p.mu.Unlock()
	if last {
		s.stop()
	}
	if last && opened {
		s.conn.Close() //nolint:errcheck // nothing is under way
	}
}

// markLost notes that a connection has ended: nobody else joins it.
func (p *sharedConns[C]) markLost(s *sharedConn[C]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.lost = true
}

// forget removes s from the connections that others may join; the caller holds mu.
func (p *sharedConns[C]) forget(key string, s *sharedConn[C]) {
	p.open[key] = slices.DeleteFunc(p.open[key], func(one *sharedConn[C]) bool { return one == s })
	if len(p.open[key]) == 0 {
		delete(p.open, key)
	}
}
