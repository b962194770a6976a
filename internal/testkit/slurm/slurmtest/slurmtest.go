//go:build linux

// Package slurmtest gives a test a real Slurm while it runs.
package slurmtest

import (
	"errors"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
)

// Up runs a cluster until the test ends. With -short it skips the test. If no cluster can run,
// because root or Debian's packages are missing, it skips the test too, but fails it if the
// variable CI is true.
func Up(tb testing.TB, opt slurm.Options) *slurm.Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("short: runs a real Slurm")
	}
	if opt.Log == nil {
		opt.Log = func(line string) { tb.Log(line) }
	}
	c, err := slurm.Up(tb.Context(), opt)
	if errors.Is(err, slurm.ErrUnavailable) {
		needs.Missing(tb, "%v", err)
	}
	if err != nil {
		tb.Fatalf("starting a Slurm cluster: %v\nhint: %s", err, fault.Hint(err))
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the end of the cluster's logs:%s", c.Logs())
		}
		if err := c.Down(); err != nil {
			tb.Errorf("stopping the Slurm cluster: %v", err)
		}
	})
	return c
}

// Eventually repeats a question until the answer is yes, and ends the test if that takes longer
// than the limit. what names the awaited event.
func Eventually(tb testing.TB, limit time.Duration, what string, ask func() bool) {
	tb.Helper()
	for end := time.Now().Add(limit); !ask(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not after %s: %s", limit, what)
		}
	}
}
