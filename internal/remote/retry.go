package remote

import (
	"context"
	"errors"
	"time"
)

// WithRetry returns a Dialer that retries when the connection could not be opened or was lost while
// it was opened. Refused keys, unknown hosts and full disks are final. Silence is final too: if one
// node does not answer, all other nodes would wait for two more timeouts. The pause doubles each
// time and varies by half, so that a thousand nodes do not return at the same moment.
func WithRetry(d Dialer, attempts int, pause time.Duration) Dialer {
	return &retryDialer{d, attempts, pause}
}

// silentError means that a node did not answer within its time limit.
type silentError struct{ error }

// Unwrap returns the error without the mark.
func (e silentError) Unwrap() error { return e.error }

type retryDialer struct {
	Dialer
	attempts int
	pause    time.Duration
}

// Close closes the wrapped dialer if it holds resources.
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
