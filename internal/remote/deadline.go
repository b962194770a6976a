package remote

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends after a time limit. The clock is stopped while a prompt is open.
type deadline struct {
	context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer
	until time.Time
	left  time.Duration // remaining time while the clock is stopped
	holds int
	over  bool
}

func newDeadline(ctx context.Context, limit time.Duration) *deadline {
	d := &deadline{until: time.Now().Add(limit)}
	d.Context, d.cancel = context.WithCancel(ctx)
	d.timer = time.AfterFunc(limit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.holds == 0 {
			d.over = true
			d.cancel()
		}
	})
	return d
}

// end releases the timer and the context.
func (d *deadline) end() {
	d.timer.Stop()
	d.cancel()
}

// expired reports whether the time limit has passed.
func (d *deadline) expired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// hold stops the clock until release is called.
func (d *deadline) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holds++; d.holds == 1 {
		d.timer.Stop()
		d.left = time.Until(d.until)
	}
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.holds--; d.holds == 0 && !d.over {
			d.until = time.Now().Add(d.left)
			d.timer.Reset(max(d.left, 0))
		}
	})
}
