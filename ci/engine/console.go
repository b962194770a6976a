package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// beatEvery is how often a long step says how far it is.
const beatEvery = 10 * time.Second

// console prints lines that carry the time since the program began. It is safe
// for steps that run side by side.
type console struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newConsole(w io.Writer) *console { return &console{w: w, began: time.Now()} }

// say prints one line about a piece.
func (c *console) say(piece, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.w, "%7.1fs  %-13s %s\n", time.Since(c.began).Seconds(), piece, fmt.Sprintf(format, args...))
}

// beat says every few seconds what status returns, until stop is called.
func (c *console) beat(piece string, status func() string) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(gone)
		t := time.NewTicker(beatEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				c.say(piece, "%s (%.0f s so far)", status(), time.Since(began).Seconds())
			}
		}
	}()
	return func() { close(done); <-gone }
}

// remaining says how long the rest takes if it goes on as it did, "" where
// nothing can be said yet.
func remaining(done, total int, since time.Duration) string {
	if done < total/20+1 || done >= total {
		return ""
	}
	left := since * time.Duration(total-done) / time.Duration(done)
	return fmt.Sprintf(", about %.0f s more", left.Round(10*time.Second).Seconds())
}
