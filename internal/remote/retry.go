package remote

import (
	"context"
	"errors"
	"time"
)

// WithRetry returns a Dialer that tries again where that can help: no
// connection, or one lost on the way. Refused keys, unknown hosts and
// full disks are final, and so is silence: a node that was waited for once would
// have all others wait two times more. The pause doubles each time and varies by half, so
// that a thousand nodes do not come back at the same moment.
func WithRetry(d Dialer, attempts int, pause time.Duration) Dialer {
	return &retryDialer{d, attempts, pause}
}

// silentError is a node that said nothing for as long as it was given.
type silentError struct{ error }

// Unwrap gives what was waited for.
func (e silentError) Unwrap() error { return e.error }

type retryDialer struct {
	Dialer
	attempts int
	pause    time.Duration
}

// Close closes the dialer below, if that holds something.
func (r *retryDialer) Close() error { return closeDialer(r.Dialer) }

// Resolve implements resolver.
func (r *retryDialer) Resolve(ctx context.Context, t Target) (Target, error) {
	return resolveBy(ctx, r.Dialer, t)
}

// Dial implements Dialer.
func (r *retryDialer) Dial(ctx context.Context, t Target) (Conn, error) {
	next := r.pause
	for n := 1; ; n++ {
		c, err := r.Dialer.Dial(ctx, t)
		if err == nil || n >= r.attempts || errors.Is(err, errTurnedAway) || errors.As(err, new(silentError)) || !errors.Is(err, ErrDial) && !errors.Is(err, ErrLost) {
			return c, err
		}
		if err := pause(ctx, around(next)); err != nil {
			return nil, err
		}
		next *= 2
	}
}
