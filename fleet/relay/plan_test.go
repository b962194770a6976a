package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/inventory"
)

// crowd is a swarm of nodes that all wait for a file.
func crowd(t *testing.T, fanout, count int) *swarm {
	t.Helper()
	r := New(Options{Fanout: fanout})
	r.settled = time.Now().Add(-time.Second)
	nodes := make([]*fleet.Node, count)
	for i := range nodes {
		nodes[i] = &fleet.Node{Host: inventory.Host{Name: fmt.Sprint(i)}}
	}
	s := newSwarm(r, 1, fleet.LocalFile{Size: 100 * leastPiece}, nodes)
	t.Cleanup(s.stop)
	s.pieces = pieces{size: leastPiece, count: 100}
	s.pending = 0
	for i := range nodes {
		s.downloads[i] = &download{swarm: s, peer: &peer{relay: r, node: nodes[i]}, index: i, waiting: true, refused: map[*download]bool{}, decided: make(chan *download, 1)}
	}
	return s
}

// depth is the number of nodes between a node and the controller.
func depth(t *download) int {
	n := 0
	for ; t.parent != nil; t = t.parent {
		n++
	}
	return n
}

func TestPlanOfManyNodes(t *testing.T) {
	t.Parallel()
	for fanout, deepest := range map[int]int{1: 999, 2: 1000, 8: 1000} {
		s := crowd(t, fanout, 1000)
		s.plan()
		heads, most := 0, 0
		for i, n := range s.downloads {
			if n.waiting {
				t.Fatalf("%d waits", i)
			}
			if n.byController {
				heads++
			}
			most = max(most, depth(n))
			if fanout == 1 && i > 0 && n.parent != s.downloads[i-1] {
				t.Errorf("%d gets it from %d", i, n.parent.index)
			}
		}
		if heads != 1 || most > deepest {
			t.Errorf("fanout %d: %d heads, depth %d", fanout, heads, most)
		}
	}
}

// A node whose parent is lost gets another one, never one behind itself.
func TestPlanAfterALoss(t *testing.T) {
	t.Parallel()
	s := crowd(t, 1, 6)
	s.plan()
	s.downloads[2].gone, s.downloads[2].parent = true, nil
	<-s.downloads[3].decided
	s.downloads[3].parent, s.downloads[3].waiting = nil, true
	s.plan()
	if p := s.downloads[3].parent; p != s.downloads[1] {
		t.Errorf("%+v", p)
	}
	head := s.downloads[0]
	head.gone, head.byController = true, false
	<-s.downloads[1].decided
	s.downloads[1].parent, s.downloads[1].waiting = nil, true
	s.plan()
	if !s.downloads[1].byController {
		t.Error("nobody sends the file to the node behind the head")
	}
}

// A node at a hundredth of the speed of the others loses its children to other parents.
func TestSlowNode(t *testing.T) {
	t.Parallel()
	s := crowd(t, 1, 5)
	s.plan()
	have := func(pieces ...int) map[*download]look {
		seen := map[*download]look{}
		for i, n := range s.downloads {
			seen[n] = look{parent: n.parent, have: n.have}
			n.have = pieces[i]
		}
		return seen
	}
	have(0, 0, 0, 0, 0)
	seen := have(60, 59, 1, 1, 1)
	if change := s.findSlow(seen, 20); len(change) != 2 || change[0] != s.downloads[2] || change[1] != s.downloads[3] {
		t.Errorf("%v", change)
	}
	if !s.downloads[2].slow || s.downloads[2].sends() {
		t.Error("it is still a parent")
	}
	seen = have(80, 79, 30, 30, 30)
	if s.findSlow(seen, 20); s.downloads[2].slow {
		t.Error("it is fast again, and still slow")
	}
}

// A parent that is alive and sends nothing is left.
func TestStalledParent(t *testing.T) {
	t.Parallel()
	s := crowd(t, 1, 2)
	s.plan()
	s.downloads[0].have = 9
	seen := map[*download]look{}
	for range slowLooks {
		if change := s.findSlow(seen, 0); len(change) > 0 {
			t.Error("it is left at once")
		}
	}
	if change := s.findSlow(seen, 0); len(change) != 1 || change[0] != s.downloads[1] {
		t.Errorf("%v", change)
	}
}

func TestParseMode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"auto": "{false 0 0}", "off": "{true 0 0}", "3": "{false 3 0}", "": "error", "0": "error", "9": "error", "-1": "error", "on": "error",
	} {
		got := "error"
		if opt, err := ParseMode(text); err == nil {
			got = fmt.Sprint(opt)
		}
		if got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestWorthwhile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size  int64
		nodes int
		want  bool
	}{{100 << 20, 2, false}, {100 << 20, 3, true}, {1 << 20, 1000, false}, {8 << 20, 8, false}, {8 << 20, 9, true}} {
		if ShouldRelay(c.size, c.nodes) != c.want {
			t.Errorf("%+v", c)
		}
	}
}
