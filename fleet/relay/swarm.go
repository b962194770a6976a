package relay

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
)

// Times of a relay.
const (
	joinTimeout  = 3 * time.Second // how long the first nodes wait for the other announced nodes
	stallTimeout = 5 * time.Second // how long a node waits for a parent within the fanout
	maxTries     = 4               // parents that a node tries before the controller sends to it
)

// swarm is the nodes that pass on one file. The relay's mu guards it.
type swarm struct {
	relay *Relay
	id    int // number of the file
	file  fleet.LocalFile
	nodes []*fleet.Node // announced, in their order
	token string

	cut    func() error // cuts the file, once
	pieces pieces

	downloads []*download // by place, nil until the node joins
	joined    []bool      // by place: it has a download, or takes no part
	pending   int         // places that have not come
	timer     *time.Timer
	done      chan struct{} // closed by stop
}

func newSwarm(r *Relay, id int, f fleet.LocalFile, nodes []*fleet.Node) *swarm {
	s := &swarm{
		relay: r, id: id, file: f, nodes: nodes, token: rand.Text(), downloads: make([]*download, len(nodes)),
		joined: make([]bool, len(nodes)), pending: len(nodes), done: make(chan struct{}),
	}
	s.cut = sync.OnceValue(func() (err error) {
		s.pieces, err = cutFile(f)
		return err
	})
	go s.watch()
	return s
}

// stop ends the choice of parents. The caller holds mu.
func (s *swarm) stop() {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// join registers the download of a node.
func (s *swarm) join(ctx context.Context, at int, n *fleet.Node, python, path string) (*download, error) {
	if err := s.cut(); err != nil {
		return nil, err
	}
	st, err := s.relay.openPeer(ctx, n, python)
	if err != nil {
		return nil, err
	}
	var got struct {
		Have int `json:"have"`
	}
	order := agent.Request{
		"do": "add", "id": s.id, "file": path, "size": s.file.Size,
		"piece": s.pieces.size, "sums": s.pieces.sums, "token": s.token,
	}
	if err := st.session.Call(ctx, order, &got); err != nil {
		return nil, err
	}
	t := &download{
		swarm: s, peer: st, index: at, have: min(max(got.Have, 0), s.pieces.count), waiting: true,
		refused: map[*download]bool{}, decided: make(chan *download, 1), fetched: make(chan event, 1),
	}
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	if old := s.downloads[at]; old != nil { // its connection broke
		old.gone, old.parent, old.byController = true, nil, false
	}
	s.downloads[at], st.downloads[s.id] = t, t
	s.arrive(at)
	return t, nil
}

// arrive records that a node takes part, or will not. The caller holds mu.
func (s *swarm) arrive(at int) {
	if !s.joined[at] {
		s.joined[at], s.pending = true, s.pending-1
	}
	if r := s.relay; r.settled.IsZero() {
		r.settled = time.Now().Add(joinTimeout)
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(s.relay.settled), func() {
			s.relay.mu.Lock()
			defer s.relay.mu.Unlock()
			s.plan()
		})
	}
	s.plan()
}

// skip records that a node does not take part.
func (s *swarm) skip(at int) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	s.arrive(at)
}

// lose ends a node's download. The node's program still runs, and would keep the nodes behind it waiting.
func (s *swarm) lose(t *download) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	go s.stopFetches(s.childrenOf(t), "source gave up its own download")
	t.gone, t.parent, t.byController, t.waiting = true, nil, false, false
	s.plan()
}

// complete records that a node has the whole file.
func (s *swarm) complete(t *download) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	t.have, t.whole, t.parent, t.byController, t.slow = s.pieces.count, true, nil, false, false
	s.plan()
}

// sendTo makes the controller send the file to a node, which passes it on meanwhile.
func (s *swarm) sendTo(ctx context.Context, t *download, send func(context.Context) error) error {
	if err := t.peer.session.Call(ctx, agent.Request{"do": "watch", "id": s.id}, nil); err != nil {
		s.lose(t) // send finds out whether it was the connection
	}
	if err := send(ctx); err != nil {
		s.lose(t)
		return err
	}
	// From now on the caller may remove the file, and the program still has to pass it on.
	if err := t.peer.session.Call(ctx, agent.Request{"do": "hold", "id": s.id}, nil); err != nil {
		s.lose(t)
		return nil
	}
	s.complete(t)
	return nil
}

// assign waits for the node's parent. A nil parent means the controller.
func (s *swarm) assign(ctx context.Context, t *download) (*download, error) {
	stuck := time.NewTimer(joinTimeout + stallTimeout)
	defer stuck.Stop()
	for {
		select {
		case parent := <-t.decided:
			return parent, nil
		case <-stuck.C:
			s.relay.mu.Lock()
			t.stuck = true
			s.plan()
			s.relay.mu.Unlock()
		case <-t.peer.session.Ended():
			return nil, nil // sendTo notes that
		case <-s.done:
			return nil, nil
		case <-ctx.Done():
			s.lose(t)
			return nil, context.Cause(ctx)
		}
	}
}
