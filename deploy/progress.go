package deploy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/cause"
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
	folded  string // failed, folded to the available room; "" if out of date
	group   int    // of --serial; 0: none
	bytes   int64  // to send
	active  map[*nodeRun]*activity
	notes   []ui.Named
	warns   []ui.Named
	flushed time.Time

	sent  atomic.Int64 // bytes
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
	watchEvery = time.Second
	// noteEvery is the least time between two prints of the messages about single nodes.
	noteEvery = 10 * time.Second
	// slowAfter is how long a node must be at work before the display names it.
	slowAfter = 3 * time.Second
	mostSlow  = 3
	// nodeShare is a node's part of the bar; its steps divide it.
	nodeShare = 1000
)

// newProgress starts the display for a number of nodes; failed names those that failed before.
func newProgress(reporter ui.Reporter, title string, nodes int, failed []string) *progress {
	w := &progress{
		reporter: reporter, nodes: nodes, failed: failed, active: map[*nodeRun]*activity{},
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

// close prints the last messages and ends the bar with the final state.
func (w *progress) close() {
	if w.bar == nil {
		return
	}
	close(w.stop)
	<-w.ended
	w.tell()
	w.show(time.Now())
	w.bar.Close()
}

// begin starts a node with the given number of steps.
func (w *progress) begin(u *nodeRun, steps int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active[u] = &activity{begin: now, since: now, steps: steps}
}

// step notes that a node begins the named step.
func (w *progress) step(u *nodeRun, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.active[u]
	if a.step != "" && a.past < a.steps {
		w.bar.Add(int64(nodeShare / a.steps))
		a.past++
	}
	a.step, a.since = name, time.Now()
}

// end notes that a node has ended, with or without an error.
func (w *progress) end(u *nodeRun) {
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

// turn sets the current group of --serial.
func (w *progress) turn(group int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = group
}

// send counts bytes that were sent.
func (w *progress) send(n int64) { w.sent.Add(n) }

// note queues a message about a node. Equal messages about several nodes are printed as one.
func (w *progress) note(u *nodeRun, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, said(u, cause.Messagef(format, args...)))
}

// warn is note for a warning.
func (w *progress) warn(u *nodeRun, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warns = append(w.warns, said(u, cause.Messagef(format, args...)))
}

// said makes a message about a node.
func said(u *nodeRun, m cause.Message) ui.Named {
	return ui.Named{Name: u.host.Name, Text: ui.OneLine(m.Text), Cause: m.Cause}
}

// due reports whether there are messages to print and the last print was long enough ago.
func (w *progress) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.notes)+len(w.warns) > 0 && now.Sub(w.flushed) >= noteEvery
}

// tell prints the queued messages.
func (w *progress) tell() {
	w.mu.Lock()
	notes, warns := w.notes, w.warns
	w.notes, w.warns, w.flushed = nil, nil, time.Now()
	w.mu.Unlock()
	for _, f := range ui.Fold(warns) {
		w.reporter.Warn("%s", toldOf(f))
	}
	for _, f := range ui.Fold(notes) {
		w.reporter.Note("%s", toldOf(f))
	}
}

// toldOf is a message with the names of its nodes, as one line.
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

// show updates the text beside the bar.
func (w *progress) show(now time.Time) {
	w.mu.Lock()
	lines := []string{w.standing(), w.slowest(now), w.failures()}
	w.mu.Unlock()
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	w.bar.Describe(strings.Join(lines, "\n"))
}

// standing is the overall state: nodes done, the group, bytes sent.
func (w *progress) standing() string {
	text := fmt.Sprintf("%d of %s", w.done, nodes(w.nodes))
	if w.group > 0 {
		text += fmt.Sprintf(", group %d", w.group)
	}
	if w.bytes > 0 {
		text += fmt.Sprintf(", %s of %s sent", ui.Size(min(max(w.sent.Load(), 0), w.bytes)), ui.Size(w.bytes))
	}
	return text
}

// slowest names the nodes that have been at work longest, with their steps and the time spent in
// them.
func (w *progress) slowest(now time.Time) string {
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

// failures names the failed nodes, folded to the available room.
func (w *progress) failures() string {
	if len(w.failed) == 0 {
		return ""
	}
	if w.folded == "" {
		w.folded, _ = ui.FoldWithin(w.failed, maxNames)
	}
	return strings.TrimSuffix(fmt.Sprintf("%d failed: %s", len(w.failed), w.folded), ": ")
}
