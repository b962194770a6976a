package slurm

import (
	"context"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// conn is a connection to a node. It runs commands in the allocation of that node.
type conn struct {
	dialer *Dialer
	node   string
	ended  context.Context // ended by Close
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

// run runs a line until the line, ctx or the connection ends. In the latter two cases run returns
// at once and ends the program in the background. gone is closed when the program has ended; it is
// nil if nothing was started.
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
	// After run returns, nothing may touch the caller's streams. An abandoned program may still be
	// ending then, so the gates cut it off.
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
		p.endsIn(2 * time.Second) // the program may still end in order
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case closed(p.ended):
		return p.ended, p.result(a, c.node)
	case c.ended.Err() != nil:
		err = errClosed
	default:
		err = a.lost("while running a command")
	}
	go p.abort()
	return p.ended, err
}

// Close ends the programs that run over the connection, in the background.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.end()
		c.dialer.mu.Lock()
		defer c.dialer.mu.Unlock()
		c.dialer.places[c.node].open--
	})
	return nil
}
