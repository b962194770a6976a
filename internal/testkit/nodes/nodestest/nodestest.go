//go:build linux

// Package nodestest gives a test real OpenSSH nodes while it runs.
package nodestest

import (
	"errors"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

// Up runs nodes until the test ends. With -short it skips the test. Without an OpenSSH server it
// skips the test too, as where it cannot make opt.Networks, but fails it if the variable CI is true.
// opt.Dir may be empty.
func Up(tb testing.TB, opt nodes.Options) *nodes.Fleet {
	tb.Helper()
	if testing.Short() {
		tb.Skip("short: runs real nodes")
	}
	if opt.Dir == "" {
		opt.Dir = tb.TempDir()
	}
	if opt.Log == nil {
		opt.Log = func(s string) { tb.Log(s) }
	}
	if missing := nodes.MissingNetworks(); opt.Networks && missing != "" {
		needs.Missing(tb, "networks of nodes need %s", missing)
	}
	f, err := nodes.Up(tb.Context(), opt)
	if errors.Is(err, nodes.ErrNoSSHD) || errors.Is(err, nodes.ErrNoNetworks) {
		needs.Missing(tb, "%v", err)
	}
	if err != nil {
		tb.Fatalf("starting nodes: %v", err)
	}
	tb.Cleanup(func() {
		if err := f.Down(); err != nil {
			tb.Errorf("stopping nodes: %v", err)
		}
	})
	return f
}
