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
	servers map[string]*loginSlots // by address
}

// loginSlots holds the slots of one sshd.
type loginSlots struct {
	slots chan struct{}
	users int // logins that run or wait
}

// acquire waits until another login to address may begin. It spreads simultaneous logins over a short
// time.
func (l *loginLimiter) acquire(ctx context.Context, address string) (release func(), err error) {
	l.mu.Lock()
	server := l.servers[address]
	if server == nil {
		server = &loginSlots{slots: make(chan struct{}, maxLogins)}
		l.servers[address] = server
	}
	server.users++
	alone := server.users == 1
	l.mu.Unlock()
	left := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if server.users--; server.users == 0 {
			delete(l.servers, address)
		}
	}
	select {
	case server.slots <- struct{}{}:
	case <-ctx.Done():
		left()
		return nil, ctx.Err()
	}
	release = sync.OnceFunc(func() {
		<-server.slots
		left()
	})
	if !alone && pause(ctx, rand.N(maxDelay)) != nil {
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
