package relay

import (
	"slices"
	"time"
)

// stuckFanout is how many nodes a node sends to if others would wait for the controller.
const stuckFanout = 4

// plan assigns parents to the waiting nodes, once all nodes have come or joinTimeout has passed. The caller holds mu.
func (s *swarm) plan() {
	if s.pending > 0 && (s.relay.settled.IsZero() || time.Now().Before(s.relay.settled)) {
		return
	}
	fed, children := s.reachedNodes()
	for s.assignAll(fed, children) {
		// The next node to receive from the controller: of the nodes that no other can serve, it has the most pieces.
		var head *download
		for _, t := range s.downloads {
			if t != nil && t.waiting && (t.stuck || !s.canServe(t, fed)) && (head == nil || t.have > head.have) {
				head = t
			}
		}
		if head == nil {
			return
		}
		head.byController = true
		head.decide(nil)
		s.mark(fed, head)
	}
}

// assignAll assigns each waiting node a parent among the fed ones. It reports whether some still wait.
func (s *swarm) assignAll(fed []bool, children []int) (left bool) {
	for _, t := range s.downloads {
		if t == nil || !t.waiting {
			continue
		}
		p := s.chooseParent(t, fed, children)
		if p == nil {
			left = true
			continue
		}
		t.parent = p
		children[p.index]++
		t.decide(p)
		s.mark(fed, t)
	}
	return left
}

// decide ends the wait of a node.
func (t *download) decide(parent *download) {
	t.waiting = false
	t.decided <- parent
}

// reachedNodes returns by place which nodes the file reaches, from the controller or a whole copy, and the
// number of nodes that each sends to. Slow ones cost their parent hardly anything.
func (s *swarm) reachedNodes() (fed []bool, children []int) {
	fed, children = make([]bool, len(s.downloads)), make([]int, len(s.downloads))
	for _, t := range s.downloads {
		if t != nil && !t.gone && t.parent != nil && !t.slow {
			children[t.parent.index]++
		}
	}
	for _, t := range s.downloads {
		if t != nil && !t.gone && (t.whole || t.byController) {
			fed[t.index] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, t := range s.downloads {
			if t != nil && !t.gone && !fed[t.index] && t.parent != nil && !t.parent.gone && fed[t.parent.index] {
				fed[t.index], grew = true, true
			}
		}
	}
	return fed, children
}

// mark sets fed for a node that the file reaches, and for all nodes behind it.
func (s *swarm) mark(fed []bool, t *download) {
	fed[t.index] = true
	for _, child := range s.downloads {
		if child != nil && !child.gone && child.parent == t && !fed[child.index] {
			s.mark(fed, child)
		}
	}
}

// chooseParent returns the nearest node before this one that can send it the file, else the nearest node behind it, or
// nil. A waiting node has no children, so a fed node is not behind it in the chain.
func (s *swarm) chooseParent(t *download, fed []bool, children []int) *download {
	if len(t.refused) >= maxTries {
		return nil
	}
	fanout := max(s.relay.opt.Fanout, 1)
	if t.stuck {
		fanout = max(fanout, stuckFanout)
	}
	for i := 1; i < len(s.downloads); i++ {
		at := t.index - i
		if at < 0 { // no more before it
			at = i
		}
		if p := s.downloads[at]; fed[at] && p.sends() && !t.refused[p] && children[at] < fanout {
			return p
		}
	}
	return nil
}

// canServe reports whether some node can send the file to this one, now or soon.
func (s *swarm) canServe(t *download, fed []bool) bool {
	return len(t.refused) < maxTries && slices.ContainsFunc(s.downloads, func(p *download) bool {
		return p.sends() && fed[p.index] && !t.refused[p]
	})
}
