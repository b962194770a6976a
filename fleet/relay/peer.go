package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
)

// quiet is how long a node may send nothing before the other end closes the connection. A parent without new pieces
// sends a heartbeat every second.
const quiet = 10 * time.Second

// peer is the program on a node, which takes part in the relay of one file after another.
type peer struct {
	relay     *Relay
	node      *fleet.Node
	session   *agent.Session
	port      int
	downloads map[int]*download // by the number of the file; guarded by the relay's mu
}

// openPeer returns the program on a node, and starts it if it does not run.
func (r *Relay) openPeer(ctx context.Context, n *fleet.Node, python string) (*peer, error) {
	r.mu.Lock()
	st := r.peers[n.Host.Name]
	r.mu.Unlock()
	if st != nil && st.session.Err() == nil {
		return st, nil
	}
	order, err := r.introduce(n)
	if err != nil {
		return nil, err
	}
	st = &peer{relay: r, node: n, downloads: map[int]*download{}}
	script := node.Script{
		Python: python, Program: program, Request: map[string]any{"quiet_s": quiet.Seconds()}, Endless: true,
	}
	st.session, err = agent.Start(ctx, n.Runner, agent.Options{Script: script, Event: st.handleEvent}, nil)
	if err != nil {
		return nil, err
	}
	var got struct {
		Port int `json:"port"`
	}
	err = st.session.Call(ctx, order, &got)
	if err == nil && (got.Port < 1 || got.Port > 65535) {
		err = fmt.Errorf("invalid port %d", got.Port)
	}
	if err != nil {
		st.session.End()
		return nil, err
	}
	st.port = got.Port
	r.mu.Lock()
	r.peers[n.Host.Name] = st
	r.mu.Unlock()
	go func() {
		<-st.session.Ended()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, t := range st.downloads {
			t.gone, t.parent, t.byController, t.waiting = true, nil, false, false
			t.swarm.plan()
		}
	}()
	return st, nil
}

// introduce makes the first order to a node: its certificate and key, and the authority of the run.
func (r *Relay) introduce(n *fleet.Node) (agent.Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.authority == nil {
		a, err := newAuthority()
		if err != nil {
			return nil, err
		}
		r.authority = a
	}
	certificate, key, err := r.authority.issue(n.Host.Name)
	return agent.Request{
		"do": "begin", "limit": r.opt.Limit, "ca": encodePEM("CERTIFICATE", r.authority.certificate.Raw),
		"certificate": certificate, "key": key,
	}, err
}

// event is a message of the program that answers no order.
type event struct {
	ID    int    `json:"id"`    // of the file
	Have  int    `json:"have"`  // pieces there
	Fetch int    `json:"fetch"` // not 0: this fetch has ended
	Why   string `json:"why"`   // "": the file is whole
	Wrong bool   `json:"wrong"` // the parent sent wrong bytes
	Local bool   `json:"local"` // the node cannot write the file
}

// handleEvent handles an event of the node's program. The node may lie: it cannot have
// more pieces than the file has, or fewer than before.
func (st *peer) handleEvent(m json.RawMessage) error {
	var got event
	if err := node.Decode(m, &got); err != nil {
		return err
	}
	st.relay.mu.Lock()
	defer st.relay.mu.Unlock()
	t := st.downloads[got.ID]
	if t == nil {
		return nil
	}
	if n := min(got.Have, t.swarm.pieces.count); n > t.have {
		t.count(n)
		t.have = n
	}
	if got.Fetch == t.fetches && got.Fetch > 0 {
		select {
		case t.fetched <- got:
		default: // said more than once
		}
	}
	return nil
}
