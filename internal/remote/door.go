package remote

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// abreast limits the simultaneous logins to one sshd. From ten unfinished logins on, counted
	// over all users, sshd turns some away (MaxStartups).
	abreast = 8
	// apart is the longest random delay of a login that has others beside it.
	apart = 50 * time.Millisecond
)

// doors limits the logins under way to each sshd.
type doors struct {
	mu   sync.Mutex
	open map[string]*door
}

type door struct {
	slots chan struct{}
	users int // logins under way or waiting
}

// enter waits until another login to address may begin. It spreads logins that come together over a
// short time.
func (d *doors) enter(ctx context.Context, address string) (leave func(), err error) {
	d.mu.Lock()
	one := d.open[address]
	if one == nil {
		one = &door{slots: make(chan struct{}, abreast)}
		d.open[address] = one
	}
	one.users++
	alone := one.users == 1
	d.mu.Unlock()
	left := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(d.open, address)
		}
	}
	select {
	case one.slots <- struct{}{}:
	case <-ctx.Done():
		left()
		return nil, ctx.Err()
	}
	leave = sync.OnceFunc(func() {
		<-one.slots
		left()
	})
	if !alone && pause(ctx, rand.N(apart)) != nil {
		leave()
		return nil, ctx.Err()
	}
	return leave, nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// around returns a random time between half of d and one and a half times d, so that many nodes do
// not return at the same moment.
func around(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
