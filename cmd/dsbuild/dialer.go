package main

import (
	"runtime"
	"runtime/debug"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// newDialer reaches nodes as ssh would; a connection that fails for a passing
// reason is tried again, and the environments of a node share one.
func newDialer() remote.Dialer {
	return remote.WithSharing(remote.WithRetry(remote.NewSSH(remote.Options{}), 3, time.Second))
}

// lightly makes this process a modest one while nodes are at work: a driver waits,
// and what the runtime does to wait less costs more than it brings. restore ends it.
func lightly() (restore func()) {
	threads := runtime.GOMAXPROCS(min(max(runtime.NumCPU()/2, 1), 4))
	percent := debug.SetGCPercent(400)
	return func() {
		runtime.GOMAXPROCS(threads)
		debug.SetGCPercent(percent)
	}
}
