package remote

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// maxLogins limits the simultaneous logins to one sshd. With ten or more unfinished logins of all
	// users, sshd drops some (MaxStartups).
	maxLogins = 8
	// maxDelay is the longest random delay of concurrent logins.
	maxDelay = 50 * time.Millisecond
)

// loginLimiter limits the simultaneous logins to each sshd.
type loginLimiter struct {
	mu      sync.Mutex
	servers map[string]chan struct{} // by address: holds a value for each login
}

// acquire waits until another login to address may begin. It spreads simultaneous logins over a short
// time.
func (l *loginLimiter) acquire(ctx context.Context, address string) (release func(), err error) {
	l.mu.Lock()
	logins := l.servers[address]
	if logins == nil {
		logins = make(chan struct{}, maxLogins)
		l.servers[address] = logins
	}
	l.mu.Unlock()
	select {
	case logins <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release = func() { <-logins }
	if len(logins) > 1 && pause(ctx, rand.N(maxDelay)) != nil {
		release()
		return nil, ctx.Err()
	}
	return release, nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jitter returns a random time between half of d and one and a half times d, so that many nodes do
// not return at the same moment.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
