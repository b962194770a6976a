package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// perConn is the number of users of one connection. Each has up to three sessions open at once (a
// running program, SFTP, Upload.Write), and sshd allows ten.
const perConn = 3

// WithSharing returns a Dialer that shares one connection among callers that reach the same node as
// the same user, while the connection lasts. Several environments of a node then need one
// handshake. If the node refuses a further session on the connection, the caller gets another
// connection.
func WithSharing(d Dialer) Dialer {
	return &sharingDialer{d, newSharedConns[Conn](perConn, nil)}
}

// Close closes the wrapped dialer if it holds resources.
func (d *sharingDialer) Close() error { return closeDialer(d.dialer) }

// Resolve implements resolver.
func (d *sharingDialer) Resolve(ctx context.Context, t Target) (Target, error) {
	return resolveBy(ctx, d.dialer, t)
}

// resolver is a Dialer that completes a target from the client configuration.
type resolver interface {
	Resolve(ctx context.Context, t Target) (Target, error)
}

// resolveBy completes a target if the dialer can, and otherwise returns it unchanged.
func resolveBy(ctx context.Context, d Dialer, t Target) (Target, error) {
	if r, ok := d.(resolver); ok {
		return r.Resolve(ctx, t)
	}
	return t, nil
}

// closeDialer closes a dialer that holds resources beyond its connections.
func closeDialer(d Dialer) error {
	if c, ok := d.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

type sharingDialer struct {
	dialer Dialer
	conns  *sharedConns[Conn]
}

// Dial implements Dialer.
func (d *sharingDialer) Dial(ctx context.Context, t Target) (Conn, error) {
	s, release, err := d.conns.get(ctx, shareKey(t), func(ctx context.Context) (Conn, error) { return d.dialer.Dial(ctx, t) })
	if err != nil {
		return nil, err
	}
	ended, end := context.WithCancel(context.Background())
	lost := func() { d.conns.markLost(s) }
	return &share{conn: s.conn, dialer: d.dialer, target: t, release: release, markLost: lost, ended: ended, end: end}, nil
}

// shareKey returns a key that is equal for targets with the same address, login and jump hosts,
// whatever their names in messages.
func shareKey(t Target) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q ", t.Address)
	if t.Address == "" {
		fmt.Fprintf(&b, "%q ", t.Name)
	}
	b.WriteString(jumpKey([]Target{t}) + jumpKey(t.Jump))
	return b.String()
}

// share is one user's part of a connection. If the node refuses it a session, it opens a connection
// of its own.
type share struct {
	conn     Conn
	dialer   Dialer
	target   Target
	release  func()
	markLost func()          // of the shared connection
	ended    context.Context // ended by Close
	end      context.CancelFunc

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

// again runs an operation on the shared connection. If the node refuses a session there, again
// repeats it on the user's own connection. The refused operation has not begun, so that is safe.
func (s *share) again(ctx context.Context, do func(context.Context, Conn) error) error {
	if s.ended.Err() != nil {
		return s.lost()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	err := do(limited, s.conn)
	if errors.Is(err, ErrLost) {
		s.markLost()
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

// lost returns the error of an operation on a closed share.
func (s *share) lost() error { return fmt.Errorf("%w: dsbuild closed it", ErrLost) }

// ownConn returns a connection for this user alone.
func (s *share) ownConn(ctx context.Context) (Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.own == nil {
		s.own, err = s.dialer.Dial(ctx, s.target)
	}
	return s.own, err
}

// Close releases the shared connection.
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
