package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// perConn is how many users share a connection: each has up to three sessions open at
// once (a program at work, SFTP, Upload.Write), and sshd allows ten.
const perConn = 3

// WithSharing returns a Dialer that gives those who reach the same node as the
// same user the same connection, as long as it holds: several environments of a
// node need one handshake. A node that allows no further session on it gets
// another connection.
func WithSharing(d Dialer) Dialer {
	return &sharingDialer{dialer: d, open: map[string][]*sharedDial{}}
}

// Close closes the dialer below, if that holds something.
func (d *sharingDialer) Close() error { return closeDialer(d.dialer) }

// Resolve implements resolver.
func (d *sharingDialer) Resolve(ctx context.Context, t Target) (Target, error) {
	return resolveBy(ctx, d.dialer, t)
}

// resolver is what a Dialer can be that knows more of a target than the target says: the
// client configuration.
type resolver interface {
	Resolve(ctx context.Context, t Target) (Target, error)
}

// resolveBy asks a dialer what it makes of a target.
func resolveBy(ctx context.Context, d Dialer, t Target) (Target, error) {
	if r, ok := d.(resolver); ok {
		return r.Resolve(ctx, t)
	}
	return t, nil
}

// closeDialer closes a dialer that holds something beyond its connections.
func closeDialer(d Dialer) error {
	if c, ok := d.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

type sharingDialer struct {
	dialer Dialer
	mu     sync.Mutex
	open   map[string][]*sharedDial
}

// sharedDial is one connection, or the attempt at one.
type sharedDial struct {
	ready  chan struct{} // closed once conn or err is set
	conn   Conn
	err    error
	users  int
	broken bool               // a user has met its end
	cancel context.CancelFunc // ends the attempt
}

// usable reports whether another user may join; the dialer's mu is held.
func (s *sharedDial) usable() bool {
	if s.users >= perConn {
		return false
	}
	select {
	case <-s.ready:
	default:
		return true // not there yet
	}
	dead, known := s.conn.(interface{ isDead() bool })
	return s.err == nil && !s.broken && (!known || !dead.isDead())
}

// Dial implements Dialer.
func (d *sharingDialer) Dial(ctx context.Context, t Target) (Conn, error) {
	key := sameWay(t)
	d.mu.Lock()
	var s *sharedDial
	for _, one := range d.open[key] {
		if one.usable() {
			s = one
			break
		}
	}
	if s == nil {
		s = &sharedDial{ready: make(chan struct{})}
		// The first to give up must not take the connection from the others.
		var lasting context.Context
		lasting, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
		d.open[key] = append(d.open[key], s)
		go d.dial(lasting, key, s, t)
	}
	s.users++
	d.mu.Unlock()
	release := sync.OnceFunc(func() { d.release(key, s) })
	select {
	case <-s.ready:
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
	if s.err != nil {
		release()
		return nil, s.err
	}
	ended, end := context.WithCancel(context.Background())
	lost := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		s.broken = true
	}
	return &share{conn: s.conn, dialer: d.dialer, target: t, release: release, broke: lost, ended: ended, end: end}, nil
}

func (d *sharingDialer) dial(ctx context.Context, key string, s *sharedDial, t Target) {
	conn, err := d.dialer.Dial(ctx, t)
	d.mu.Lock()
	s.conn, s.err = conn, err
	unused := s.users == 0
	if err != nil || unused {
		d.forget(key, s)
	}
	close(s.ready)
	d.mu.Unlock()
	if unused && conn != nil {
		conn.Close() //nolint:errcheck // nobody has used it
	}
}

func (d *sharingDialer) release(key string, s *sharedDial) {
	d.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		d.forget(key, s)
	}
	conn := s.conn
	d.mu.Unlock()
	if last {
		s.cancel()
		if conn != nil {
			conn.Close() //nolint:errcheck // nothing is under way
		}
	}
}

// forget takes s from those that may be joined; mu is held.
func (d *sharingDialer) forget(key string, s *sharedDial) {
	for i, one := range d.open[key] {
		if one == s {
			d.open[key] = append(d.open[key][:i:i], d.open[key][i+1:]...)
		}
	}
	if len(d.open[key]) == 0 {
		delete(d.open, key)
	}
}

// sameWay is the same for targets that are reached in the same way, whatever
// messages call them.
func sameWay(t Target) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q ", t.Address)
	if t.Address == "" {
		fmt.Fprintf(&b, "%q ", t.Name)
	}
	b.WriteString(jumpKey([]Target{t}) + jumpKey(t.Jump))
	return b.String()
}

// share is one user's part in a connection. Should the node refuse it a session
// there, it gets a connection of its own.
type share struct {
	conn    Conn
	dialer  Dialer
	target  Target
	release func()
	broke   func()          // tells that the connection is lost
	ended   context.Context // by Close
	end     context.CancelFunc

	mu  sync.Mutex
	own Conn
}

// Run implements Runner.
func (s *share) Run(ctx context.Context, cmd Command) error {
	return s.again(ctx, func(ctx context.Context, c Conn) error { return c.Run(ctx, cmd) })
}

// Put implements Conn.
func (s *share) Put(ctx context.Context, up Upload) error {
	return s.again(ctx, func(ctx context.Context, c Conn) error { return c.Put(ctx, up) })
}

// again does something on the connection or, where that has no room for it, on
// one of its own. Refused was the session, so nothing has begun.
func (s *share) again(ctx context.Context, do func(context.Context, Conn) error) error {
	if s.ended.Err() != nil {
		return s.lost()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	err := do(limited, s.conn)
	if errors.Is(err, ErrLost) {
		s.broke()
	}
	if errors.Is(err, errNoSession) {
		var own Conn
		if own, err = s.ownConn(limited); err == nil {
			err = do(limited, own)
		}
	}
	if err != nil && ctx.Err() == nil && s.ended.Err() != nil {
		return s.lost()
	}
	return err
}

// lost is the error of what is asked of, or under way on, a share that was closed.
func (s *share) lost() error { return fmt.Errorf("%w: it was closed here", ErrLost) }

// ownConn is a connection for this user alone.
func (s *share) ownConn(ctx context.Context) (Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.own == nil {
		s.own, err = s.dialer.Dial(ctx, s.target)
	}
	return s.own, err
}

// Close gives the connection back.
func (s *share) Close() error {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		s.own.Close() //nolint:errcheck // nothing is under way
	}
	s.release()
	return nil
}
