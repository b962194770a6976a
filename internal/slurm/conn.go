package slurm

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// conn is a connection to a node. It runs commands in the node's allocation.
type conn struct {
	dialer *Dialer
	node   string
	ended  context.Context // ended by Close
	end    context.CancelFunc
	once   sync.Once
}

// Run implements remote.Runner. If ctx or the connection ends before the program, Run returns
// immediately and ends the program in the background.
func (c *conn) Run(ctx context.Context, cmd remote.Command) error {
	line, err := remote.CommandLine(cmd)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.ended.Err() != nil {
		return errClosed
	}
	a, done, err := c.dialer.lease(ctx, c.node, false)
	if err != nil {
		return err
	}
	// After Run returns, nothing may touch the caller's streams. An abandoned program may still be
	// ending then, so the gates cut it off.
	out, errs := remote.NewDetachableWriter(cmd.Stdout), remote.NewDetachableWriter(cmd.Stderr)
	defer out.Close()
	defer errs.Close()
	var in io.Reader
	if cmd.Stdin != nil {
		gate := remote.NewDetachableReader(cmd.Stdin)
		defer gate.Close()
		in = gate
	}
	p, err := a.start(c.node, line, in, out, errs)
	if err != nil {
		done()
		return err
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
		return p.result(a, c.node)
	case c.ended.Err() != nil:
		err = errClosed
	default:
		err = a.lost("while running a command")
	}
	go p.abort()
	return err
}

// Put implements remote.Conn. The file goes through srun's input.
func (c *conn) Put(ctx context.Context, up remote.Upload) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return remote.PutByProgram(ctx, c, "the user who submits", up)
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
