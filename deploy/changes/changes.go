// Package changes is the common part of the agents that change something on a node: its Python source
// (whole files, the lock of a folder, uploads), and the transfer of files into the inbox of such an
// agent, also over a connection that breaks.
package changes

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
)

var (
	//go:embed changes.py
	changesSource string
	//go:embed accepted.py
	acceptedSource string
)

// Source is the Python source that precedes an agent that changes something.
func Source() string { return changesSource + "\n\n" + acceptedSource }

// ignoreOutput takes the output of a program on the node, which the agent sends before its
// answer; the log already has it.
func ignoreOutput(m json.RawMessage) error {
	var got struct {
		Pip []string `json:"pip"`
	}
	return node.Decode(m, &got)
}

// Transfer is how the files of a run come to the nodes.
type Transfer struct {
	Relay     *relay.Relay  // sends the files that it announced; nil: the driver sends all
	Bandwidth *rate.Limiter // bytes per second of all uploads; nil: no limit
}

// NewTransfer prepares the transfer of files through the connections of a dialer. Nodes do not pass on
// files if the dialer brings a file to all of them at once.
func NewTransfer(dialer remote.Dialer, opt relay.Options, bandwidth *rate.Limiter) Transfer {
	t := Transfer{Bandwidth: bandwidth}
	if _, broadcasts := dialer.(remote.Broadcaster); !broadcasts {
		t.Relay = relay.New(opt)
	}
	return t
}

// Inbox is the private folder for uploads of an agent on a node. The zero value stands for no
// inbox yet.
type Inbox struct {
	Transfer
	Node     *fleet.Node
	Session  *Session // with the agent; nil: the files come before any agent
	Python   string   // path of the node's Python
	Folder   string
	Received *int64 // counts the bytes of the files that have arrived
}

// Path returns the path of a file in the inbox.
func (i Inbox) Path(f wheels.File) string { return path.Join(i.Folder, filepath.Base(f.Path)) }

// Put brings a file to the inbox, from another node or from here.
func (i Inbox) Put(ctx context.Context, f wheels.File) error { return i.PutAs(ctx, f, i.Path(f)) }

// PutAs is Put for a path of the caller's choice.
func (i Inbox) PutAs(ctx context.Context, f wheels.File, to string) error {
	err := i.Relay.Bring(ctx, i.Node, i.Python, f.SHA256, to, func(ctx context.Context) error { return i.send(ctx, f, to) })
	if err == nil {
		*i.Received += f.Size
	}
	return err
}

// send sends a file from here.
func (i Inbox) send(ctx context.Context, f wheels.File, to string) error {
	var told atomic.Int64
	up := remote.Upload{
		Open:   func() (io.ReadSeekCloser, error) { return os.Open(f.Path) },
		Size:   f.Size,
		SHA256: f.SHA256,
		Path:   to,
		Mode:   0o600,
		Limit:  i.Bandwidth,
		Progress: func(n int64) {
			told.Add(n)
			i.Node.AddSent(n)
		},
	}
	if i.Session != nil {
		up.Sum = i.digest
	}
	err := i.Node.Conn.Put(ctx, up)
	if err != nil {
		i.Node.AddSent(-told.Load()) // the file is sent again, or not at all
	}
	return err
}

// putRetries is how often PutAll tries again to send the files if the connection breaks.
const putRetries = 4

// PutAll sends files to a node by put. If the connection breaks, it calls restart, which connects
// again, and then put again: nothing has been changed by then, and the files that have arrived stay.
// again tells put that it is not the first try.
func PutAll(ctx context.Context, n *fleet.Node, put func(ctx context.Context, again bool) error, restart func(context.Context) error) error {
	for retry := 0; ; retry++ {
		err := put(ctx, retry > 0)
		if err == nil || retry == putRetries || !errors.Is(err, remote.ErrLost) || ctx.Err() != nil {
			return err
		}
		n.Note("%v; dsbuild reconnects and continues the transfer", err)
		if err := restart(ctx); err != nil {
			return err
		}
	}
}

// digest returns the sha256 of the first n bytes of a file in the inbox.
func (i Inbox) digest(ctx context.Context, file string, n int64) (string, error) {
	var got struct {
		SHA256 string `json:"sha256"`
	}
	err := i.Session.Ask(ctx, agent.Order{"do": "digest", "file": file, "size": n}, &got)
	return got.SHA256, err
}
