package slurm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Options say which nodes are asked of Slurm, and how.
type Options struct {
	// Nodes are all that may be dialled, by Slurm's names: they are allocated
	// together as far as they are free.
	Nodes []string
	// Partition, Account, QOS and Time are those of the jobs; "" leaves them to Slurm.
	// Of several partitions, with commas between them, a node's first one is taken.
	Partition, Account, QOS, Time string
	// More are further options of salloc, each a word such as --gres=gpu:1.
	More []string
	// Wait is how long a node that is busy is waited for.
	Wait time.Duration
	// Report hears of jobs, and of nodes that are given back.
	Report ui.Reporter
}

// idleLimit is how long nodes are held on which nothing runs: while wheels are
// built, others may use them. What runs next asks for them again.
const idleLimit = 90 * time.Second

// closeLimit is how long Close waits for what still runs on nodes: for an agent
// there that puts an environment back.
const closeLimit = time.Minute

// Dialer reaches nodes in jobs of its own: one for all that are free, and more
// for those that become free later. It is a remote.Dialer and a remote.Spreader.
// Its jobs end with Close, and with this program however that ends.
type Dialer struct {
	opt    Options
	life   context.Context // until Close
	end    context.CancelFunc
	asking context.Context // until Close, or until Slurm ends a job
	stop   context.CancelCauseFunc

	mu        sync.Mutex
	places    map[string]*place
	announced map[string][]string // sha256 → the nodes that will need the file
	begun     bool                // nodes have been asked for
	active    int                 // how many programs run, or are about to
	calm      chan struct{}       // closed when active is 0 again; nil while it is
	idle      *time.Timer
	held      []*allocation
	pending   sync.WaitGroup // what asks for nodes, and what ends
}

// place is a node as the Dialer knows it.
type place struct {
	name  string
	alloc *allocation // that it is in; nil: none
	asked *request    // under way; nil: none
	open  int         // connections
}

// request is a node that is being asked for.
type request struct {
	done chan struct{} // closed once the node has an allocation, or err is set
	err  error
}

// New checks with Slurm that these nodes are there and that it would take such
// jobs; nothing is allocated yet. What is wrong is a *ConfigError.
func New(ctx context.Context, opt Options) (*Dialer, error) {
	d := &Dialer{opt: opt, places: make(map[string]*place), announced: make(map[string][]string)}
	d.life, d.end = context.WithCancel(context.WithoutCancel(ctx))
	d.asking, d.stop = context.WithCancelCause(d.life)
	for _, name := range opt.Nodes {
		d.places[name] = &place{name: name}
	}
	if err := d.check(ctx); err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

// Dial implements remote.Dialer: it returns once Slurm has allocated the node.
func (d *Dialer) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	if _, known := d.places[t.Node]; !known {
		return nil, fmt.Errorf("%q is none of the nodes that were asked of Slurm", t.Node)
	}
	_, done, err := d.lease(ctx, t.Node, true)
	if err != nil {
		return nil, err
	}
	defer done()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places[t.Node].open++
	c := &conn{dialer: d, node: t.Node}
	c.ended, c.end = context.WithCancel(d.life)
	return c, nil
}

// Announce implements remote.Spreader.
func (d *Dialer) Announce(sha256 string, nodes []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announced[sha256] = slices.Compact(slices.Sorted(slices.Values(append(nodes, d.announced[sha256]...))))
}

// Close ends what runs, and then the jobs.
func (d *Dialer) Close() error {
	d.stop(errClosed)
	d.end() // connections end what runs on them
	d.mu.Lock()
	calm := d.calm
	d.mu.Unlock()
	if calm != nil {
		select {
		case <-calm:
		case <-time.After(closeLimit):
		}
	}
	d.giveBack()
	d.pending.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle != nil {
		d.idle.Stop()
	}
	return nil
}

var errClosed = fmt.Errorf("%w: it was closed here", remote.ErrLost)

// lease returns the allocation that a node is in, so that something can run there
// until done is called. A node that is in none is asked for. An allocation that
// Slurm has ended is an error, unless the node is to be reached anew.
func (d *Dialer) lease(ctx context.Context, name string, anew bool) (a *allocation, done func(), err error) {
	for {
		d.mu.Lock()
		p := d.places[name]
		a := p.alloc
		if a != nil && a.over() && anew {
			a, p.alloc = nil, nil
		}
		switch {
		case d.life.Err() != nil:
			d.mu.Unlock()
			return nil, nil, errClosed
		case a != nil && a.over():
			d.mu.Unlock()
			return nil, nil, a.lost("before a command")
		case a != nil:
			d.work()
			d.mu.Unlock()
			return a, sync.OnceFunc(d.rest), nil
		case d.asking.Err() != nil:
			d.mu.Unlock()
			return nil, nil, context.Cause(d.asking)
		case p.asked == nil:
			d.ask(p)
		}
		r := p.asked
		d.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-d.life.Done():
			return nil, nil, errClosed
		}
		if r.err != nil {
			return nil, nil, r.err
		}
	}
}

// work notes that something is about to run; mu is held.
func (d *Dialer) work() {
	if d.active == 0 {
		d.calm = make(chan struct{})
	}
	d.active++
	if d.idle != nil {
		d.idle.Stop()
		d.idle = nil
	}
}

// rest notes that something has ended.
func (d *Dialer) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.active--; d.active > 0 {
		return
	}
	close(d.calm)
	d.calm = nil
	d.idle = time.AfterFunc(idleLimit, d.giveBack)
}

// giveBack ends all jobs, unless something runs in them.
func (d *Dialer) giveBack() {
	d.mu.Lock()
	closing := d.life.Err() != nil
	if d.active > 0 && !closing {
		d.mu.Unlock()
		return
	}
	held := d.held
	d.held = nil
	var names []string
	for _, p := range d.places {
		if p.alloc != nil && !p.alloc.over() {
			names = append(names, p.name)
			p.alloc = nil
		}
	}
	d.mu.Unlock()
	if !closing && len(names) > 0 {
		d.opt.Report.Note("%s given back to Slurm until there is something to do", ui.FoldNames(names))
	}
	var all sync.WaitGroup
	for _, a := range held {
		all.Go(a.end)
	}
	all.Wait()
}

// ask asks for a node, and in the same go for all others that will be needed: at
// first for every one, later for those that connections are open to. mu is held.
func (d *Dialer) ask(p *place) {
	var names []string
	for _, name := range d.opt.Nodes {
		other := d.places[name]
		if other.alloc == nil && other.asked == nil && (other == p || !d.begun || other.open > 0) {
			other.asked = &request{done: make(chan struct{})}
			names = append(names, name)
		}
	}
	d.begun = true
	d.pending.Go(func() { d.obtain(names) })
}

// grant gives nodes their allocation.
func (d *Dialer) grant(a *allocation) {
	d.mu.Lock()
	if d.life.Err() != nil { // Close may have looked already
		d.mu.Unlock()
		a.end()
		return
	}
	defer d.mu.Unlock()
	d.opt.Report.Note("Slurm job %s has %s", a.job, ui.FoldNames(a.nodes))
	d.held = append(d.held, a)
	for _, name := range a.nodes {
		if p := d.places[name]; p != nil && p.asked != nil {
			p.alloc = a
			p.answer(nil)
		}
	}
	// Should nobody come to use them.
	if d.active == 0 && d.idle == nil {
		d.idle = time.AfterFunc(idleLimit, d.giveBack)
	}
}

// refuse tells those who wait for nodes why they get none.
func (d *Dialer) refuse(names []string, why func(name string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if p := d.places[name]; p.asked != nil {
			p.answer(why(name))
		}
	}
}

// answer ends a request; the dialer's mu is held.
func (p *place) answer(err error) {
	p.asked.err = err
	close(p.asked.done)
	p.asked = nil
}
