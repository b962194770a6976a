// Package relay distributes large files peer to peer: nodes forward a file along a chain while it is
// still arriving. The controller sends the file to one node over SSH.
//
// The controller starts a program on each node over its SSH session (relay.py). It chooses each
// node's upstream peer, and sends both a certificate of this run (TLS 1.3, an authority that exists
// only during the run, no keys on disk) and the token of the file. Each node compares every piece
// with the controller's digests, so a lying node does no harm. If the upstream peer dies, lies,
// stalls or is unreachable, the controller chooses another peer, or sends the rest itself. The
// program exits with its session and leaves no files.
package relay

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// program is built once for all nodes.
var program = node.NewProgram("relay")

// Options are the settings of a relay.
type Options struct {
	// Off makes the controller send every file to every node.
	Off bool
	// Fanout is how many nodes one node sends a file to in parallel. Zero means a chain, if
	// ShouldRelay reports that it is faster.
	Fanout int
	// Limit is how many bytes per second a node sends to its peers. Zero means no limit.
	Limit int64
}

// maxFanout bounds Options.Fanout: relay.py serves 16 connections.
const maxFanout = 8

// ParseMode returns the options for a value of --relay.
func ParseMode(text string) (Options, error) {
	switch text {
	case "auto":
		return Options{}, nil
	case "off":
		return Options{Off: true}, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxFanout {
		return Options{}, fmt.Errorf("want auto, off, or a number from 1 to %d", maxFanout)
	}
	return Options{Fanout: n}, nil
}

// ShouldRelay reports whether a relay is faster than the controller alone. Starting the program and
// connecting takes about half a second, in which a link of 1 Gbit/s sends 60 MB.
func ShouldRelay(size int64, nodes int) bool {
	const (
		leastNodes = 3
		leastFile  = 8 << 20
		leastTotal = 60 << 20 // bytes that the controller need not send
	)
	return nodes >= leastNodes && size >= leastFile && size*int64(nodes-1) >= leastTotal
}

// leastChosen is the size in bytes of a file from which an explicit fanout counts.
const leastChosen = 1 << 20

// Relay distributes the files of one run. A nil *Relay leaves every file to the controller.
type Relay struct {
	opt Options

	mu        sync.Mutex
	authority *authority
	settled   time.Time         // nodes wait for others until then; set when the first node comes
	peers     map[string]*peer  // by the node's name
	swarms    map[string]*swarm // by sha256
	from      map[string]map[string]int64
	files     int // announced so far
}

// New prepares a relay; it contacts no node.
func New(opt Options) *Relay {
	if opt.Off {
		return nil
	}
	return &Relay{
		opt: opt, peers: map[string]*peer{}, swarms: map[string]*swarm{},
		from: map[string]map[string]int64{},
	}
}

// Register registers a transfer of f to nodes, which Deliver carries out. Nodes with the same groups
// in the inventory, such as the nodes of a rack, are neighbours in the chain. It returns false if a
// relay would not be faster.
func (r *Relay) Register(f fleet.LocalFile, nodes []*fleet.Node) bool {
	if r == nil || len(nodes) < 2 || r.opt.Fanout == 0 && !ShouldRelay(f.Size, len(nodes)) ||
		r.opt.Fanout > 0 && f.Size < leastChosen {
		return false
	}
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b *fleet.Node) int { return slices.Compare(a.Host.Groups, b.Host.Groups) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.swarms[f.SHA256]; old != nil {
		old.stop()
	}
	r.files++
	r.settled = time.Time{}
	r.swarms[f.SHA256] = newSwarm(r, r.files, f, nodes)
	return true
}

// Withdraw removes a registered node that does not need a file.
func (r *Relay) Withdraw(sha256 string, n *fleet.Node) {
	if s, at := r.swarmOf(sha256, n); s != nil {
		s.skip(at)
	}
}

// Deliver transfers a file to path on a node, whose interpreter is python. If the controller has to
// send the file, Deliver calls send, which resumes after the bytes in path+".part".
func (r *Relay) Deliver(
	ctx context.Context, n *fleet.Node, python, sha256, path string, send func(context.Context) error,
) error {
	s, at := r.swarmOf(sha256, n)
	if s == nil {
		return send(ctx)
	}
	// Transfer the file to the node.
	t, err := s.join(ctx, at, n, python, path)
	if err != nil {
		s.skip(at)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n.Note("cannot relay files (%v); sending the file directly", err)
		return send(ctx)
	}
	for {
		parent, err := s.assign(ctx, t)
		switch {
		case err != nil:
			return err
		case parent == nil:
			return s.sendTo(ctx, t, send)
		}
		got, err := t.fetch(ctx, parent)
		switch {
		case err == nil && got.Why == "":
			s.complete(t)
			return nil
		case ctx.Err() != nil:
			s.lose(t)
			return context.Cause(ctx)
		case err != nil || got.Local: // the node's own failure: send says which
			s.lose(t)
			return send(ctx)
		}
		// Note that a parent failed a node.
		s.relay.mu.Lock()
		t.refused[parent], t.parent, t.waiting, t.stuck = true, nil, true, false
		parent.failures++
		if got.Wrong {
			parent.failures = maxFailures
		}
		s.plan()
		name := parent.peer.node.Host.Name
		s.relay.mu.Unlock()
		t.peer.node.Note("transfer from %s failed (%s); trying another source", name, got.Why)
	}
}

// swarmOf returns the relay of a file and a node's place in it. The relay is nil if the node is not announced for the
// file.
func (r *Relay) swarmOf(sha256 string, n *fleet.Node) (*swarm, int) {
	if r == nil {
		return nil, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.swarms[sha256]
	if s == nil {
		return nil, 0
	}
	at := slices.IndexFunc(s.nodes, func(o *fleet.Node) bool { return o == n })
	if at < 0 {
		return nil, 0
	}
	return s, at
}

// Sources lists the nodes from which a node received bytes, for the report. total is the number of
// bytes that the node received altogether; the controller sent the rest.
func (r *Relay) Sources(n *fleet.Node, total int64) []report.Source {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []report.Source
	for name, bytes := range r.from[n.Host.Name] {
		all = append(all, report.Source{Node: name, Bytes: bytes})
		total -= bytes
	}
	slices.SortFunc(all, func(a, b report.Source) int { return strings.Compare(a.Node, b.Node) })
	if len(r.swarms) > 0 && total > 0 {
		all = append([]report.Source{{Bytes: total}}, all...)
	}
	return all
}

// Close ends the program on every node.
func (r *Relay) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	for _, s := range r.swarms {
		s.stop()
	}
	stations := r.peers
	r.peers = map[string]*peer{}
	r.mu.Unlock()
	var wait sync.WaitGroup
	for _, st := range stations {
		wait.Go(st.session.End)
	}
	wait.Wait()
}
