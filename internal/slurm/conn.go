package slurm

import (
	"context"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// conn is a connection to a node: something that runs commands in the allocation
// that the node is in.
type conn struct {
	dialer *Dialer
	node   string
	ended  context.Context // by Close
	end    context.CancelFunc
	once   sync.Once
}

// Run implements remote.Runner.
func (c *conn) Run(ctx context.Context, cmd remote.Command) error {
	line, err := remote.CommandLine(cmd)
	if err != nil {
		return err
	}
	_, err = c.run(ctx, line, streams{cmd.Stdin, cmd.Stdout, cmd.Stderr})
	return err
}

// run runs a line to its end, or until ctx or the connection ends. What it started
// is ended then, in its own time: gone is closed when nothing of it is left; nil if
// nothing was started.
func (c *conn) run(ctx context.Context, line string, s streams) (gone <-chan struct{}, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.ended.Err() != nil {
		return nil, errClosed
	}
	a, done, err := c.dialer.lease(ctx, c.node, false)
	if err != nil {
		return nil, err
	}
	// When run has returned, nothing may touch the caller's streams any more,
	// though a program that was abandoned can still be ending.
	out, errs := remote.WriteGate(s.out), remote.WriteGate(s.errs)
	defer out.Close()
	defer errs.Close()
	given := streams{out: out, errs: errs}
	if s.in != nil {
		in := remote.ReadGate(s.in)
		defer in.Close()
		given.in = in
	}
	p, err := a.start(c.node, line, given)
	if err != nil {
		done()
		return nil, err
	}
	go func() {
		<-p.ended
		done()
	}()
	select {
	case <-p.ended:
	case <-ctx.Done():
	case <-c.ended.Done():
	case <-a.ended:
		p.endsIn(2 * time.Second) // what it still brings to an orderly end counts
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case closed(p.ended):
		return p.ended, p.verdict(a, c.node)
	case c.ended.Err() != nil:
		err = errClosed
	default:
		err = a.lost("while running a command")
	}
	go p.abort()
	return p.ended, err
}

// Close ends what runs over the connection, in its own time.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.end()
		c.dialer.mu.Lock()
		defer c.dialer.mu.Unlock()
		c.dialer.places[c.node].open--
	})
	return nil
}
