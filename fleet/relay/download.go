package relay

import (
	"context"

	"github.com/dsbuild/dsbuild/fleet/node/agent"
)

// download is the place of a node in the relay of one file. The relay's mu guards it.
type download struct {
	swarm *swarm
	peer  *peer
	index int // its place among the announced nodes

	have         int       // number of pieces
	parent       *download // the node that sends to it
	byController bool      // the controller sends to it
	whole        bool
	gone         bool               // its program has ended
	slow         bool               // it receives much more slowly than others
	waiting      bool               // for a parent
	stuck        bool               // it has waited for long
	refused      map[*download]bool // parents that failed it
	failures     int                // nodes that it failed, as a parent
	fetches      int                // number of the last fetch

	decided chan *download // receives its parent, or nil for the controller
	fetched chan event
}

// maxFailures is the number of nodes that a parent may fail before no other is sent to it. One
// may be the child's own fault.
const maxFailures = 2

// sends reports whether the node may be a parent.
func (t *download) sends() bool { return t != nil && !t.gone && !t.slow && t.failures < maxFailures }

// count adds the pieces up to n to the bytes from the present parent.
func (t *download) count(n int) {
	if t.parent == nil {
		return
	}
	r, bytes := t.swarm.relay, t.swarm.pieces.bytes(t.have, n, t.swarm.file.Size)
	name := t.peer.node.Host.Name
	if r.from[name] == nil {
		r.from[name] = map[string]int64{}
	}
	r.from[name][t.parent.peer.node.Host.Name] += bytes
	t.peer.node.AddSent(bytes)
}

// fetch makes the node receive the file from its parent, until it is whole or the parent fails. The parent's address
// comes from the inventory: a node must not make others connect elsewhere.
func (t *download) fetch(ctx context.Context, parent *download) (event, error) {
	r := t.swarm.relay
	r.mu.Lock()
	t.fetches++
	order := agent.Request{
		"do": "fetch", "id": t.swarm.id, "fetch": t.fetches,
		"name": parent.peer.node.Host.Name, "address": parent.peer.node.Host.Address, "port": parent.peer.port,
	}
	r.mu.Unlock()
	if err := t.peer.session.Call(ctx, order, nil); err != nil {
		return event{}, err
	}
	select {
	case got := <-t.fetched:
		return got, nil
	case <-t.peer.session.Ended():
		return event{}, t.peer.session.Err()
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}
