package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// console prints lines with the time since the program began. Its methods may be called
// concurrently.
type console struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newConsole(w io.Writer) *console { return &console{w: w, began: time.Now()} }

// printLine prints one line about a piece.
func (c *console) printLine(piece, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.w, "%7.1fs  %-13s %s\n", time.Since(c.began).Seconds(), piece, fmt.Sprintf(format, args...))
}

// reportEvery is the interval at which a long step reports its progress.
const reportEvery = 10 * time.Second

// reportProgress prints status every few seconds, until the caller calls stop.
func (c *console) reportProgress(piece string, status func() string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		for ticks := time.NewTicker(reportEvery); ; {
			select {
			case <-done:
				ticks.Stop()
				return
			case <-ticks.C:
				c.printLine(piece, "%s (%.0f s so far)", status(), time.Since(began).Seconds())
			}
		}
	}()
	return func() { close(done); <-ended }
}
