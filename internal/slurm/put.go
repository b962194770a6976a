package slurm

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// Put implements remote.Conn. If a file was announced for several nodes, sbcast brings it to all of
// them at once. Otherwise the file goes through srun's input.
func (c *conn) Put(ctx context.Context, up remote.Upload) error {
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
	defer done()
	const user = "the user who submits"
	source, err := c.dialer.brought(ctx, a, c.node, up)
	if err != nil {
		return err
	}
	if source != "" {
		err = remote.PutByProgram(ctx, c, user, up, source)
		if err == nil && up.Progress != nil {
			up.Progress(up.Size)
		}
		if !errors.Is(err, remote.ErrNoSource) {
			return err
		}
	}
	return remote.PutByProgram(ctx, c, user, up, "")
}
