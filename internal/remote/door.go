package remote

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// abreast is how many logins to one sshd may be under way at once: from ten
	// on it turns some away (MaxStartups), of all who knock.
	abreast = 8
	// apart is how far they are spread where there are several.
	apart = 50 * time.Millisecond
)

// doors bound the logins under way to each sshd.
type doors struct {
	mu   sync.Mutex
	open map[string]*door
}

type door struct {
	slots chan struct{}
	users int // inside, or waiting
}

// enter waits until another login to address may begin. Those that come
// together go in one after the other, a little apart.
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

// pause waits, or until ctx ends.
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

// around is a time that varies by half, so that many do not come back at the
// same moment.
func around(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
