//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// putWord is the argument with which this program uploads a file as dsbuild deploy does, atomically
// and with its digest verified on the node.
const putWord = "put"

// putter puts a file on nodes.
type putter struct {
	file  fleet.LocalFile
	dir   string // HOST in it stands for the node's name
	relay *relay.Relay
	sends atomic.Int32 // nodes to which this program itself sent
}

// putResult is the document that runPut prints.
type putResult struct {
	Sends int `json:"sends"` // nodes to which this program itself sent
}

// runPut is the main program of the process that puts a file. Its arguments are INVENTORY N FILE
// DIR RELAY; HOST in DIR stands for the node's name, and RELAY is a value of --relay.
func runPut(args []string) error {
	if len(args) != 5 {
		return errors.New("INVENTORY N FILE DIR RELAY")
	}
	inv, err := inventory.Open(context.Background(), args[0], inventory.Options{Stdin: os.Stdin})
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 1 || n > len(inv.Hosts) {
		return fmt.Errorf("%s nodes of %d", args[1], len(inv.Hosts))
	}
	sha256, size, err := environment.Sums{Dir: "sums"}.Sum(args[2])
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(args[3])
	if err != nil {
		return err
	}
	opt, err := relay.ParseMode(args[4])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(1) // as dsbuild does on two cores while nodes are working
	debug.SetGCPercent(400)
	p := &putter{file: fleet.LocalFile{Path: args[2], SHA256: sha256, Size: size}, dir: dir, relay: relay.New(opt)}
	all := fleet.New(fleet.Options{
		Command: putWord, Hosts: inv.Hosts[:n], KnownHosts: inv.KnownHosts, Dialer: remote.NewSSH(remote.Options{}),
		Reporter: ui.New(os.Stderr, ui.Options{}), Forks: n,
	})
	defer all.Close()
	defer p.relay.Close()
	err = p.putAll(all)
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(putResult{int(p.sends.Load())}))
}

// putAll puts the file on all nodes in parallel.
func (p *putter) putAll(all *fleet.Fleet) error {
	p.relay.Register(p.file, all.Nodes)
	var tasks []fleet.Task
	for _, n := range all.Nodes {
		tasks = append(tasks, fleet.Task{Node: n, Steps: []fleet.Step{{Name: "put", Do: func(ctx context.Context) error { return p.put(ctx, n) }}}})
	}
	all.ConnectAndRun(context.Background(), "copying", tasks, nil)
	var errs []error
	for _, n := range all.Nodes {
		if n.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Host.Name, n.Err))
		}
	}
	return errors.Join(errs...)
}

// put puts the file on one node.
func (p *putter) put(ctx context.Context, n *fleet.Node) error {
	path := filepath.Join(strings.ReplaceAll(p.dir, "HOST", n.Host.Name), filepath.Base(p.file.Path))
	return p.relay.Deliver(ctx, n, n.Host.Python, p.file.SHA256, path, func(ctx context.Context) error {
		p.sends.Add(1)
		return n.Conn.Put(ctx, remote.Upload{
			Open: func() (io.ReadSeekCloser, error) { return os.Open(p.file.Path) }, Size: p.file.Size, SHA256: p.file.SHA256,
			Path: path, Mode: 0o600,
		})
	})
}
