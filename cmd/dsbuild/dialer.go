package main

import (
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// newDialer reaches nodes as ssh would; a connection that fails for a passing
// reason is tried again, and the environments of a node share one.
func newDialer() remote.Dialer {
	return remote.WithSharing(remote.WithRetry(remote.NewSSH(remote.Options{}), 3, time.Second))
}
