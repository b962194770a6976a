// Package change is the engine of all changes of nodes: it plans groups, waits until an environment is free, holds
// the lock through an agent on the node, sends files also over connections that break, and undoes a change that
// failed. Package deploy brings wheels with it, package envs whole environments: each is a Kind.
package change

import (
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// InboxPath returns the path of a file in the inbox of the agent.
func (n *NodeRun) InboxPath(file string) string { return path.Join(n.inbox, filepath.Base(file)) }

// Send brings a file to a path on the node, from another node or from here. python is the path of a Python on the
// node.
func (n *NodeRun) Send(ctx context.Context, f fleet.LocalFile, python, to string) error {
	err := n.run.Relay.Bring(ctx, n.Node, python, f.SHA256, to, func(ctx context.Context) error {
		var told atomic.Int64
		up := remote.Upload{
			Open:   func() (io.ReadSeekCloser, error) { return os.Open(f.Path) },
			Size:   f.Size,
			SHA256: f.SHA256,
			Path:   to,
			Mode:   0o600,
			Limit:  n.run.Rules.Bandwidth,
			Progress: func(bytes int64) {
				told.Add(bytes)
				n.AddSent(bytes)
			},
		}
		if n.Session != nil {
			up.Sum = n.digest
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

// digest returns the sha256 of the first size bytes of a file in the inbox.
func (n *NodeRun) digest(ctx context.Context, file string, size int64) (string, error) {
	var got struct {
		SHA256 string `json:"sha256"`
	}
	err := n.Ask(ctx, agent.Order{"do": "digest", "file": file, "size": size}, &got)
	return got.SHA256, err
}
