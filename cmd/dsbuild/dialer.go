package main

import (
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// newDialer reaches nodes as ssh would; a connection that fails for a passing
// reason is tried again, and the environments of a node share one.
func newDialer(a *app) remote.Dialer {
	opt := remote.Options{}
	if a.prompt != nil {
		opt.Prompter = a.prompt
	}
	return remote.WithSharing(remote.WithRetry(remote.NewSSH(opt), 3, time.Second))
}
