package deploy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// watch is what is seen of many nodes at work: one bar over all of them, how
// many are done and which failed, which take longest and with what; and what is
// to be told of single nodes, put together for those of which the same is.
type watch struct {
	reporter ui.Reporter
	bar      ui.Bar
	nodes    int

	mu      sync.Mutex
	done    int
	failed  []string
	folded  string // failed, as far as there is room; "" if not up to date
	group   int    // of --serial; 0: none
	bytes   int64  // to send
	active  map[*unit]*activity
	notes   []ui.Named
	warns   []ui.Named
	flushed time.Time

	sent  atomic.Int64 // bytes
	stop  chan struct{}
	ended chan struct{}
}

// activity is what a node is at.
type activity struct {
	begin, since time.Time // of all, of the step
	step         string
	steps, past  int
}

const (
	watchEvery = time.Second
	// noteEvery is how often what is told of single nodes is printed, at most.
	noteEvery = 10 * time.Second
	// slowAfter is for how long a node may be at work before it is named.
	slowAfter = 3 * time.Second
	mostSlow  = 3
	// nodeShare is a node's part of the bar, divided among its steps.
	nodeShare = 1000
)

// newWatch starts to show so many nodes at work, of which some failed before.
func newWatch(reporter ui.Reporter, title string, nodes int, failed []string) *watch {
	w := &watch{
		reporter: reporter, nodes: nodes, failed: failed, active: map[*unit]*activity{},
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	if nodes == 0 { // nothing to see
		return w
	}
	w.bar = reporter.Bar(title, int64(nodes)*nodeShare)
	go w.run()
	return w
}

// run shows how it stands, until close.
func (w *watch) run() {
	defer close(w.ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			w.show(now)
			if w.due(now) {
				w.tell()
			}
		}
	}
}

// close ends the bar with how it stands at last.
func (w *watch) close() {
	if w.bar == nil {
		return
	}
	close(w.stop)
	<-w.ended
	w.tell()
	w.show(time.Now())
	w.bar.Close()
}

// begin says that a node begins to go through so many steps.
func (w *watch) begin(u *unit, steps int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active[u] = &activity{begin: now, since: now, steps: steps}
}

// step says what a node does from now on.
func (w *watch) step(u *unit, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.active[u]
	if a.step != "" && a.past < a.steps {
		w.bar.Add(int64(nodeShare / a.steps))
		a.past++
	}
	a.step, a.since = name, time.Now()
}

// end says that a node is through, however it ended.
func (w *watch) end(u *unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.active[u]
	delete(w.active, u)
	w.bar.Add(int64(nodeShare - a.past*(nodeShare/max(a.steps, 1))))
	w.done++
	if u.status == Failed || u.status == Unreachable {
		w.failed, w.folded = append(w.failed, u.host.Name), ""
	}
}

// turn says which group of --serial it is.
func (w *watch) turn(group int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = group
}

// send counts bytes that are on their way.
func (w *watch) send(n int64) { w.sent.Add(n) }

// note has something told of a node, with all nodes of which the same is.
func (w *watch) note(u *unit, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, ui.Named{Name: u.host.Name, Text: ui.OneLine(fmt.Sprintf(format, args...))})
}

// warn is note for what asks for attention.
func (w *watch) warn(u *unit, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warns = append(w.warns, ui.Named{Name: u.host.Name, Text: ui.OneLine(fmt.Sprintf(format, args...))})
}

// due says whether it is time to tell what there is to tell.
func (w *watch) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.notes)+len(w.warns) > 0 && now.Sub(w.flushed) >= noteEvery
}

// tell tells what there is of single nodes.
func (w *watch) tell() {
	w.mu.Lock()
	notes, warns := w.notes, w.warns
	w.notes, w.warns, w.flushed = nil, nil, time.Now()
	w.mu.Unlock()
	for _, f := range ui.FoldAlike(warns) {
		w.reporter.Warn("%s", toldOf(f))
	}
	for _, f := range ui.FoldAlike(notes) {
		w.reporter.Note("%s", toldOf(f))
	}
}

// toldOf is a line about nodes.
func toldOf(f ui.Folded) string {
	who := f.Names
	if f.Count > 1 {
		who += " (" + nodes(f.Count) + ")"
	}
	if f.Example != "" {
		who += ", as on " + f.Example
	}
	return who + ": " + f.Text
}

// show describes how it stands.
func (w *watch) show(now time.Time) {
	w.mu.Lock()
	lines := []string{w.standing(), w.slowest(now), w.failures()}
	w.mu.Unlock()
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	w.bar.Describe(strings.Join(lines, "\n"))
}

// standing is how far all have come.
func (w *watch) standing() string {
	text := fmt.Sprintf("%d of %s", w.done, nodes(w.nodes))
	if w.group > 0 {
		text += fmt.Sprintf(", group %d", w.group)
	}
	if w.bytes > 0 {
		text += fmt.Sprintf(", %s of %s sent", ui.Size(min(max(w.sent.Load(), 0), w.bytes)), ui.Size(w.bytes))
	}
	return text
}

// slowest names the nodes that have been at work for longest, with what they do
// and since when.
func (w *watch) slowest(now time.Time) string {
	type slow struct {
		name string
		*activity
	}
	var all []slow
	for u, a := range w.active {
		if now.Sub(a.begin) >= slowAfter {
			all = append(all, slow{u.host.Name, a})
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b slow) int { return cmp.Or(a.begin.Compare(b.begin), cmp.Compare(a.name, b.name)) })
	words := make([]string, min(len(all), mostSlow))
	for i := range words {
		words[i] = fmt.Sprintf("%s (%s, %s)", all[i].name, all[i].step, now.Sub(all[i].since).Truncate(time.Second))
	}
	return "slowest: " + strings.Join(words, ", ")
}

// failures names the nodes that failed, as far as there is room.
func (w *watch) failures() string {
	if len(w.failed) == 0 {
		return ""
	}
	if w.folded == "" {
		w.folded, _ = ui.FoldWithin(w.failed, maxNames)
	}
	return strings.TrimSuffix(fmt.Sprintf("%d failed: %s", len(w.failed), w.folded), ": ")
}
