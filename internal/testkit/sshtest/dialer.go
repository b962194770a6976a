package sshtest

import (
	"context"
	"sync/atomic"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// CountingDialer counts the files that are put by its connections, and can get in the way.
type CountingDialer struct {
	remote.Dialer
	Puts   atomic.Int64
	Before func(up remote.Upload) error // asked before each file; may be nil
}

// Dial connects as the Dialer does.
func (d *CountingDialer) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, t)
	if err != nil {
		return nil, err
	}
	return countingConn{conn, d}, nil
}

type countingConn struct {
	remote.Conn
	dialer *CountingDialer
}

// Put counts the file, asks Before and puts it.
func (c countingConn) Put(ctx context.Context, up remote.Upload) error {
	c.dialer.Puts.Add(1)
	if c.dialer.Before != nil {
		if err := c.dialer.Before(up); err != nil {
			return err
		}
	}
	return c.Conn.Put(ctx, up)
}
