package relay

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/agent"
)

// A node that another one sends to is slow if it receives less than a quarter of the pieces that half of the others do, and
// its parent has so much more that they would need two looks for it.
const (
	lookEvery = 5 * time.Second
	slowShare = 4
	slowLooks = 2
)

// look is the state of a node at the last look.
type look struct {
	parent *seat
	have   int
	idle   int // looks since the last new piece, though its parent has more
}

// watch looks for slow nodes until the relay of the file ends. Nodes behind a slow one would wait
// for it: they get other parents. So does the slow one, once: it may be the parent's fault.
func (s *swarm) watch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	seen, heads, usual := map[*seat]look{}, map[*seat]look{}, 0
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		s.relay.mu.Lock()
		usual = s.usualGain(seen, usual)
		change := s.findSlow(seen, usual)
		suspect := s.suspectHead(heads)
		s.relay.mu.Unlock()
		if suspect.head != nil && s.outruns(suspect) {
			change = append(change, s.leaveHead(suspect.head)...)
		}
		s.stopFetches(change, "it sends too slowly")
	}
}

// stopFetches ends the fetches of nodes that need another source, and tells them why.
func (s *swarm) stopFetches(all []*seat, why string) {
	for _, t := range all {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		t.station.session.Ask(ctx, agent.Order{"do": "stop", "id": s.id, "why": why}, nil) //nolint:errcheck // its fetch ends then, or its session has
		cancel()
	}
}

// usualGain returns how many pieces half of the receiving nodes got since the last look; before, if
// fewer than two received any.
func (s *swarm) usualGain(seen map[*seat]look, before int) int {
	var gains []int
	for _, t := range s.seats {
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
func (s *swarm) findSlow(seen map[*seat]look, usual int) (change []*seat) {
	for _, t := range s.seats {
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

// A head, a node to which the driver sends, may be slow if it would need a minute more for the rest
// of the file. Then the driver measures whether it sends to another node at twice the speed. Where
// the driver's own link is slow, it cannot: the two share the link. A probe costs about a second of
// such a link, so there are few.
const (
	suspectLooks = 12
	maxProbes    = 2
	probeShare   = 2
	leastProbe   = 256 << 10 // bytes
)

// suspicion is a head that may be slow, and the node to compare it with.
type suspicion struct {
	head, other *seat
	rate        int64 // bytes per second that the head receives
}

// suspectHead returns a head that may be slow. Under a limit of --bwlimit none is: the driver itself
// is slow then.
func (s *swarm) suspectHead(heads map[*seat]look) (found suspicion) {
	if s.relay.opt.Limit > 0 || s.probes >= maxProbes {
		return suspicion{}
	}
	for _, t := range s.seats {
		if t == nil || t.gone || !t.byDriver || t.slow {
			delete(heads, t)
			continue
		}
		was, ok := heads[t]
		heads[t] = look{have: t.have}
		children := s.childrenOf(t)
		if gain := t.have - was.have; ok && len(children) > 0 && s.pieces.count-t.have > gain*suspectLooks {
			rate := float64(s.pieces.bytes(was.have, t.have, s.file.Size)) / lookEvery.Seconds()
			found = suspicion{t, children[0], int64(rate)}
		}
	}
	if found.head != nil {
		s.probes++
	}
	return found
}

// outruns reports whether the driver sends to another node much faster than to the head.
func (s *swarm) outruns(it suspicion) bool {
	noise := make([]byte, min(max(it.rate, leastProbe), maxPiece)) // it travels as base64, so a third more
	rand.Read(noise)
	within := lookEvery
	if it.rate > 0 {
		within = min(within, time.Duration(float64(len(noise))/float64(it.rate*probeShare)*float64(time.Second)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return it.other.station.session.Ask(ctx, agent.Order{"do": "probe", "noise": noise}, nil) == nil
}

// leaveHead marks a head as slow, and returns the nodes that need another source: the driver sends
// to one of them.
func (s *swarm) leaveHead(head *seat) []*seat {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	if head.gone || !head.byDriver {
		return nil
	}
	head.slow = true
	return s.childrenOf(head)
}

// childrenOf lists the nodes to which a node sends.
func (s *swarm) childrenOf(p *seat) (all []*seat) {
	for _, t := range s.seats {
		if t != nil && !t.gone && t.parent == p {
			all = append(all, t)
		}
	}
	return all
}
