package relay

import (
	"context"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node/agent"
)

// A node that receives from another node is slow if it gets less than 1/slowShare of the median gain, and a usual node
// would take slowLooks looks to make up its lag behind its parent.
const (
	lookEvery = 5 * time.Second
	slowShare = 4
	slowLooks = 2
)

// look is the state of a node at the last look.
type look struct {
	parent *download
	have   int
	idle   int // looks since the last new piece, though its parent has more
}

// watch looks for slow nodes until the relay of the file ends. Nodes behind a slow one would wait
// for it: they get other parents. So does the slow one, once: it may be the parent's fault.
func (s *swarm) watch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	seen, usual := map[*download]look{}, 0
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		s.relay.mu.Lock()
		usual = s.usualGain(seen, usual)
		change := s.findSlow(seen, usual)
		s.relay.mu.Unlock()
		s.stopFetches(change, "too slow")
	}
}

// stopFetches ends the fetches of nodes that need another source, with a reason for their notes.
func (s *swarm) stopFetches(all []*download, why string) {
	for _, t := range all {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		order := agent.Request{"do": "stop", "id": s.id, "why": why}
		t.peer.session.Call(ctx, order, nil) //nolint:errcheck // its fetch ends then, or its session has
		cancel()
	}
}

// usualGain returns how many pieces half of the receiving nodes got since the last look; before, if
// fewer than two received any.
func (s *swarm) usualGain(seen map[*download]look, before int) int {
	var gains []int
	for _, t := range s.downloads {
		if was, ok := seen[t]; ok && t != nil && t.parent != nil && was.parent == t.parent {
			gains = append(gains, t.have-was.have)
		}
	}
	if len(gains) < 2 {
		return before
	}
	slices.Sort(gains)
	return gains[len(gains)/2]
}

// findSlow marks slow nodes, and returns the nodes that need another parent.
func (s *swarm) findSlow(seen map[*download]look, usual int) (change []*download) {
	for _, t := range s.downloads {
		if t == nil || t.gone || t.parent == nil {
			delete(seen, t)
			continue
		}
		if t.parent.gone { // lose told it to stop before its fetch had begun
			change = append(change, t)
			continue
		}
		was, ok := seen[t]
		now := look{parent: t.parent, have: t.have}
		seen[t] = now
		if !ok || was.parent != t.parent {
			continue
		}
		gain, lag := t.have-was.have, t.parent.have-t.have
		if gain == 0 && lag > 0 {
			now.idle = was.idle + 1
			seen[t] = now
		}
		slow := gain*slowShare < usual && lag >= usual*slowLooks
		if now.idle >= slowLooks || slow && !t.slow && len(t.refused) == 0 {
			change = append(change, t)
		}
		if slow && !t.slow {
			change = append(change, s.childrenOf(t)...)
		}
		t.slow = slow || t.slow && gain*slowShare < usual
	}
	return change
}

// childrenOf lists the nodes to which a node sends.
func (s *swarm) childrenOf(p *download) (all []*download) {
	for _, t := range s.downloads {
		if t != nil && !t.gone && t.parent == p {
			all = append(all, t)
		}
	}
	return all
}
