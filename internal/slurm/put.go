package slurm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Put implements remote.Conn. If a file was announced for several nodes, sbcast brings it to all of
// them at once. Otherwise the file goes through srun's input. Put ignores Upload.Sum and
// Upload.Write, because the program that puts the file in place computes the digest. It
// ignores Upload.Resume too: after a broadcast the whole file is on the node at once.
func (c *conn) Put(ctx context.Context, up remote.Upload) error {
	if err := up.Check(); err != nil {
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
	defer done()
	source, err := c.dialer.brought(ctx, a, c.node, up)
	if err != nil {
		return err
	}
	if source != "" {
		err := c.receive(ctx, up, source, nil)
		if !errors.Is(err, remote.ErrNoSource) {
			if err == nil && up.Progress != nil {
				up.Progress(up.Size)
			}
			return err
		}
	}
	return c.send(ctx, up)
}

// send sends a file to the node through srun's input.
func (c *conn) send(ctx context.Context, up remote.Upload) error {
	local, err := up.Open()
	if err != nil {
		return err
	}
	defer local.Close()
	m := &meter{r: local, told: up.Progress}
	err = c.receive(ctx, up, "-", m)
	if failed := m.failed(); failed != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the local file: %w", failed)
	}
	return err
}

// putRest limits the time for the program of a cancelled upload to end.
const putRest = 5 * time.Second

// receive puts a file in place on the node. It reads the file from a path on the node, or from
// stdin.
func (c *conn) receive(ctx context.Context, up remote.Upload, source string, stdin io.Reader) error {
	r := remote.NewReceipt(up, "the user who submits")
	line, err := remote.CommandLine(r.Command(source))
	if err != nil {
		return err
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := func() { cancel(remote.ErrFlood) }
	said, errs := remote.NewAnswer(over), remote.NewAnswer(over)
	gone, err := c.run(limited, line, streams{stdin, said, errs})
	if errors.Is(context.Cause(limited), remote.ErrFlood) {
		err = remote.ErrFlood
	}
	if gone != nil && !closed(gone) {
		select {
		case <-gone:
		case <-time.After(putRest):
			err = fmt.Errorf("%w (%s may be left there)", err, r.Part)
		}
	}
	var exit *remote.ExitError
	if err == nil || !errors.As(err, &exit) {
		return err
	}
	return r.Explain(ctx, exit, ui.Clean(said.String()), ui.Clean(errs.String()))
}

// meter counts the bytes of a local file as they are read.
type meter struct {
	r    io.Reader
	told func(int64)
	mu   sync.Mutex
	err  error
}

// Read implements io.Reader.
func (m *meter) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if n > 0 && m.told != nil {
		m.told(int64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	}
	return n, err
}

// failed returns the error that ended the reading of the file early, or nil.
func (m *meter) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
