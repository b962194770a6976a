package change

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// putRetries bounds how often PutStep resumes a transfer after the connection breaks.
const putRetries = 4

// PutStep returns a step that sends files with put, which may take the lock first. If the connection is lost, the step
// reconnects and calls put again with again set: nothing has been changed yet, and files that have arrived are kept.
func (r *Run) PutStep(n *fleet.Node, name string, put func(ctx context.Context, again bool) error) fleet.Step {
	return fleet.Step{Name: name, Limit: r.Fleet.Limit(PutLimit), Do: func(ctx context.Context) error {
		for retry := 0; ; retry++ {
			err := put(ctx, retry > 0)
			if err == nil || retry == putRetries || !errors.Is(err, remote.ErrLost) || ctx.Err() != nil {
				return err
			}
			n.Note("%v; reconnecting to resume the transfer", err)
			n.Release()
			if err := n.Reconnect(ctx); err != nil {
				return err
			}
		}
	}}
}

// CleanupStep returns a cleanup step for up-to-date nodes: the agent removes the files of an interrupted run once lock
// has taken the lock.
func (r *Run) CleanupStep(n *fleet.Node, needed bool, lock func(context.Context) error) fleet.Step {
	return fleet.Step{
		Name: "put", Limit: r.Fleet.Limit(PutLimit), Needed: func() bool { return needed },
		Do: func(ctx context.Context) error {
			err := lock(ctx)
			n.Release()
			if errors.As(err, new(*agent.Failure)) && !n.StateUnknown {
				n.Warn("cannot remove the files of an interrupted run: %v", err)
				return nil
			}
			return err // if another deploy is running, the files are its own
		},
	}
}

// Put sends a file to the inbox of the agent that replied b, unless the node has it.
func (r *Run) Put(ctx context.Context, n *fleet.Node, f fleet.LocalFile, has bool, b BeginReply) error {
	if has || slices.Contains(b.Arrived, filepath.Base(f.Path)) {
		n.AddSent(f.Size)
		r.Relay.Withdraw(f.SHA256, n)
		return nil
	}
	return r.Send(ctx, n, f, b.python, n.InboxPath(f.Path))
}

// Send sends a file to a path on the node, from another node or from here. python is the path of a Python on the
// node.
func (r *Run) Send(ctx context.Context, n *fleet.Node, f fleet.LocalFile, python, to string) error {
	err := r.Relay.Deliver(ctx, n, python, f.SHA256, to, func(ctx context.Context) error {
		var told atomic.Int64
		up := remote.Upload{
			Open:   func() (io.ReadSeekCloser, error) { return os.Open(f.Path) },
			Size:   f.Size,
			SHA256: f.SHA256,
			Path:   to,
			Mode:   0o600,
			Limit:  r.Rules.Bandwidth,
			Progress: func(bytes int64) {
				told.Add(bytes)
				n.AddSent(bytes)
			},
		}
		if n.HoldsLock() {
			up.Sum = func(ctx context.Context, file string, size int64) (string, error) {
				var got struct {
					SHA256 string `json:"sha256"` // of the first size bytes of a file in the inbox
				}
				err := Call(ctx, n, agent.Request{"do": "digest", "file": file, "size": size}, &got)
				return got.SHA256, err
			}
		}
		err := n.Conn.Put(ctx, up)
		if err != nil {
			n.AddSent(-told.Load()) // the file is sent again, or not at all
		}
		return err
	})
	if err == nil {
		n.Sent += f.Size
	}
	return err
}
