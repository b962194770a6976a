// Package progress says how far a long step is.
package progress

import (
	"fmt"
	"time"
)

// Every is how often a step says how far it is.
const Every = 10 * time.Second

// Report calls say with the time since it was called, every few seconds until
// stop is called.
func Report(say func(elapsed time.Duration)) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		t := time.NewTicker(Every)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				say(time.Since(began))
			}
		}
	}()
	return func() { close(done); <-ended }
}

// Remaining says how long the rest takes if it goes on as it did, or "" where
// nothing can be said yet. Done and total have the same unit.
func Remaining(done, total float64, elapsed time.Duration) string {
	if done <= total/20 || done >= total {
		return ""
	}
	left := time.Duration(float64(elapsed) * (total - done) / done)
	return fmt.Sprintf(", about %.0f s more", left.Round(10*time.Second).Seconds())
}
