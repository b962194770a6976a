package fleet

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

func nodeNamed(name string) *Node { return &Node{Host: inventory.Host{Name: name}, Status: report.OK} }

// shownBar is a bar that remembers its last state.
type shownBar struct {
	done int64
	text string
}

func (b *shownBar) Add(n int64)          { b.done += n }
func (b *shownBar) Describe(text string) { b.text = text }
func (b *shownBar) Close()               {}

// What stands beside the bar: how far the nodes are, which are slow, and which have failed.
func TestStandingOfManyNodes(t *testing.T) {
	t.Parallel()
	bar := &shownBar{}
	begin := time.Now()
	w := &progress{nodes: 5, active: map[*Node]*activity{}, bar: bar, bytes: 10 << 20, group: 2}
	one, two, three, four := nodeNamed("gpu01"), nodeNamed("gpu02"), nodeNamed("gpu03"), nodeNamed("gpu04")
	for _, n := range []*Node{one, two, three, four} {
		w.begin(n, 3)
		w.step(n, "connect")
	}
	w.show(begin)
	if bar.text != "0 of 5 nodes, batch 2, 0 B of 10.0 MiB sent" || bar.done != 0 {
		t.Errorf("%q, %d", bar.text, bar.done)
	}
	w.step(one, "probe")
	w.sent.Add(4 << 20)
	w.active[two].begin = begin.Add(-time.Minute) // the one that began first is the slowest
	w.show(begin.Add(4 * time.Second))
	lines := strings.Split(bar.text, "\n")
	if len(lines) != 2 || lines[0] != "0 of 5 nodes, batch 2, 4.0 MiB of 10.0 MiB sent, 1.0 MiB/s" || !strings.HasPrefix(lines[1], "slowest: gpu02 (connect, ") || !strings.Contains(lines[1], "gpu01 (probe, ") || strings.Contains(lines[1], "gpu04") {
		t.Errorf("%q", bar.text)
	}
	two.Status, three.Status = report.Failed, report.Unreachable
	for _, n := range []*Node{one, two, three} {
		w.end(n)
	}
	w.show(begin.Add(5 * time.Second))
	lines = strings.Split(bar.text, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "3 of 5 nodes") || lines[2] != "2 failed: gpu[02-03]" {
		t.Errorf("%q", bar.text)
	}
	if w.end(four); bar.done != 4*nodeShare {
		t.Errorf("the bar stands at %d of %d nodes, want 4000", bar.done, w.nodes)
	}
	w.sent.Store(99 << 20) // a node that sent again
	if got := w.standing(); !strings.Contains(got, "10.0 MiB of 10.0 MiB sent") {
		t.Error(got)
	}
}

// Names of failed nodes that do not fit are counted.
func TestFailedNodesThatDoNotFit(t *testing.T) {
	t.Parallel()
	w := &progress{}
	for i := range 40 {
		w.failed = append(w.failed, strings.Repeat(string(rune('a'+i%26)), 20)+string(rune('a'+i/26)))
	}
	if got := w.failures(); !strings.HasPrefix(got, "40 failed: ") || len(got) > maxNames+20 || !strings.Contains(got, "…") {
		t.Error(got)
	}
	w = &progress{failed: []string{strings.Repeat("x", 100)}}
	if got := w.failures(); got != "1 failed" {
		t.Error(got)
	}
}

// Messages about many nodes wait for each other, and equal ones are one line.
func TestMessagesAreFolded(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := newProgress(ui.New(&out, ui.Options{}), "", 0, 0, nil)
	now := time.Now()
	if w.due(now) {
		t.Error("no message is due")
	}
	for _, name := range []string{"gpu01", "gpu02", "gpu03"} {
		w.note(nodeNamed(name), nodeerr.Messagef("it waits for %s\n of another", nodeerr.Own("pid "+name)))
		w.warn(nodeNamed(name), nodeerr.Messagef("little room"))
	}
	if !w.due(now.Add(noteEvery)) {
		t.Error("messages are not due")
	}
	w.printMessages()
	for _, want := range []string{"gpu[01-03] (3 nodes): little room", "gpu[01-03] (3 nodes), e.g. gpu01: it waits for pid gpu01 of another"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if w.due(time.Now().Add(time.Hour)) {
		t.Error("printed messages are due again")
	}
	w.close() // without a bar
}

// A fleet has logs only if it was asked for them; without, nothing is written or kept.
func TestNoLogs(t *testing.T) {
	t.Parallel()
	folder := newLogFolder(Options{Reporter: ui.New(io.Discard, ui.Options{})}, "run")
	l := folder.newLog(inventory.Host{Name: "gpu01"})
	l.Line("out", "text")
	l.Order([]byte("order"))
	l.step("connect")
	l.endPhase(true)
	if len(l.text) != 0 || l.Path() != "" {
		t.Errorf("%q, %s", l.text, l.Path())
	}
}
