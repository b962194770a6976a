package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// progress shows many nodes at work: one bar for all of them, the number of nodes that are done,
// the failed ones, and the slowest ones with their steps. It also prints messages about single
// nodes, with equal messages folded into one line.
type progress struct {
	reporter ui.Reporter
	bar      ui.Bar
	nodes    int

	mu      sync.Mutex
	done    int
	failed  []string
	folded  string // failed, folded to the available room, or "" if out of date
	group   int    // of --serial, or zero
	bytes   int64  // to send
	active  map[*Node]*activity
	notes   []ui.Named
	warns   []ui.Named
	flushed time.Time

	sent  atomic.Int64 // bytes
	rate  int64        // bytes per second since the last update
	past  int64        // bytes sent by then
	shown time.Time    // time of the last update, if any
	stop  chan struct{}
	ended chan struct{}
}

// activity is a node's place in its steps.
type activity struct {
	begin, since time.Time // start of the first step, of the current step
	step         string
	steps, past  int
}

const (
	showEvery = time.Second
	// noteEvery is the least time between two prints of the messages about single nodes.
	noteEvery = 10 * time.Second
	// slowAfter is how long a node must be at work before the display lists it.
	slowAfter = 3 * time.Second
	maxSlow   = 3
	maxNames  = 60 // characters of the failed nodes' names
	// nodeShare is a node's part of the bar; its steps divide it.
	nodeShare = 1000
)

// newProgress starts the display for a number of nodes. Some nodes failed before.
func newProgress(reporter ui.Reporter, title string, nodes int, bytes int64, failed []string) *progress {
	w := &progress{
		reporter: reporter, nodes: nodes, bytes: bytes, failed: failed, active: map[*Node]*activity{},
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	if nodes == 0 { // there is nothing to show
		return w
	}
	w.bar = reporter.Bar(title, int64(nodes)*nodeShare)
	go w.run()
	return w
}

// run updates the display until close.
func (w *progress) run() {
	defer close(w.ended)
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			w.show(now)
			if w.due(now) {
				w.printMessages()
			}
		}
	}
}

// close prints the last messages and ends the bar with the final state.
func (w *progress) close() {
	if w.bar == nil {
		return
	}
	close(w.stop)
	<-w.ended
	w.printMessages()
	w.show(time.Now())
	w.bar.Close()
}

// begin starts a node with the given number of steps.
func (w *progress) begin(n *Node, steps int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active[n] = &activity{begin: now, since: now, steps: steps}
}

// step records that a node begins the named step.
func (w *progress) step(n *Node, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.active[n]
	if a.step != "" && a.past < a.steps {
		w.bar.Add(int64(nodeShare / a.steps))
		a.past++
	}
	a.step, a.since = name, time.Now()
}

// end records that a node has ended, with or without an error.
func (w *progress) end(n *Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.active[n]
	delete(w.active, n)
	w.bar.Add(int64(nodeShare - a.past*(nodeShare/max(a.steps, 1))))
	w.done++
	if n.Failed() {
		w.failed, w.folded = append(w.failed, n.Host.Name), ""
	}
}

// setGroup sets the current group of --serial.
func (w *progress) setGroup(group int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = group
}

// note queues a message about a node. Equal messages about several nodes are printed as one.
func (w *progress) note(n *Node, m nodeerr.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, messageOf(n, m))
}

// warn is note for a warning.
func (w *progress) warn(n *Node, m nodeerr.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warns = append(w.warns, messageOf(n, m))
}

// messageOf makes a message about a node.
func messageOf(n *Node, m nodeerr.Message) ui.Named {
	return ui.Named{Name: n.Host.Name, Text: ui.OneLine(m.Text), Cause: m.Common}
}

// due reports whether there are messages to print and the last print was long enough ago.
func (w *progress) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.notes)+len(w.warns) > 0 && now.Sub(w.flushed) >= noteEvery
}

// printMessages prints the queued messages.
func (w *progress) printMessages() {
	w.mu.Lock()
	notes, warns := w.notes, w.warns
	w.notes, w.warns, w.flushed = nil, nil, time.Now()
	w.mu.Unlock()
	for _, f := range ui.Fold(warns) {
		w.reporter.Warn("%s", f)
	}
	for _, f := range ui.Fold(notes) {
		w.reporter.Note("%s", f)
	}
}

// show updates the text next to the bar.
func (w *progress) show(now time.Time) {
	w.mu.Lock()
	// How many bytes per second arrive on all nodes together.
	sent := w.sent.Load()
	if since := now.Sub(w.shown).Seconds(); !w.shown.IsZero() && since > 0 {
		w.rate = int64(float64(sent-w.past) / since)
	}
	w.past, w.shown = sent, now
	lines := []string{w.standing(), w.slowest(now), w.failures()}
	w.mu.Unlock()
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	w.bar.Describe(strings.Join(lines, "\n"))
}

// standing is the overall state: nodes done, the group, bytes sent and their rate.
func (w *progress) standing() string {
	text := fmt.Sprintf("%d of %s", w.done, ui.Count(w.nodes, "node"))
	if w.group > 0 {
		text += fmt.Sprintf(", batch %d", w.group)
	}
	if w.bytes > 0 {
		text += fmt.Sprintf(", %s of %s sent", ui.Size(min(max(w.sent.Load(), 0), w.bytes)), ui.Size(w.bytes))
	}
	if w.rate > 0 {
		text += fmt.Sprintf(", %s/s", ui.Size(w.rate))
	}
	return text
}

// slowest lists the nodes that have been at work longest, with their steps and the time spent in them.
func (w *progress) slowest(now time.Time) string {
	type slow struct {
		name string
		*activity
	}
	var all []slow
	for n, a := range w.active {
		if now.Sub(a.begin) >= slowAfter {
			all = append(all, slow{n.Host.Name, a})
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b slow) int { return cmp.Or(a.begin.Compare(b.begin), cmp.Compare(a.name, b.name)) })
	words := make([]string, min(len(all), maxSlow))
	for i := range words {
		words[i] = fmt.Sprintf("%s (%s, %s)", all[i].name, all[i].step, now.Sub(all[i].since).Truncate(time.Second))
	}
	return "slowest: " + strings.Join(words, ", ")
}

// failures lists the failed nodes, folded to the available room.
func (w *progress) failures() string {
	if len(w.failed) == 0 {
		return ""
	}
	if w.folded == "" {
		w.folded, _ = ui.FoldWithin(w.failed, maxNames)
	}
	return strings.TrimSuffix(fmt.Sprintf("%d failed: %s", len(w.failed), w.folded), ": ")
}
