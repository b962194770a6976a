package slurm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Options select the nodes and the options of Slurm jobs.
type Options struct {
	// Nodes are all nodes that may be dialed, by their Slurm names. One job gets all idle ones.
	Nodes []string
	// Partition, Account, QOS and Time are options of the jobs. Slurm chooses those that are empty.
	// Partition may list several, separated by commas. A node is requested in the first that has it.
	Partition, Account, QOS, Time string
	// More are additional options of salloc, one word each, such as --gres=gpu:1.
	More []string
	// Wait is the longest wait for a busy node.
	Wait time.Duration
	// Report gets notes about jobs and about released nodes.
	Report ui.Reporter
}

// idleLimit is the time after which unused nodes are released, so that others may use them while
// wheels are built. The next command requests them again.
const idleLimit = 90 * time.Second

// closeLimit is the longest wait of Close for programs on nodes. An agent there may be rolling back
// an environment.
const closeLimit = time.Minute

// Dialer is a remote.Dialer that allocates nodes: one job for all idle nodes, and more jobs for nodes
// that become idle later. The jobs end with Close, or when the program exits or is killed.
type Dialer struct {
	opt    Options
	life   context.Context // ends with Close
	end    context.CancelFunc
	asking context.Context // ends with Close, or when Slurm ends a job
	stop   context.CancelCauseFunc

	mu      sync.Mutex
	places  map[string]*place
	begun   bool          // the Dialer has asked for nodes
	active  int           // number of programs that run or are about to
	calm    chan struct{} // closed when active drops to 0; nil while active is 0
	idle    *time.Timer
	held    []*allocation
	pending sync.WaitGroup // goroutines that request nodes or wait for jobs to end
}

// place is the Dialer's state of one node.
type place struct {
	name  string
	alloc *allocation // the node's allocation, or nil
	asked *request    // the pending request, or nil
	open  int         // number of connections
}

// request is a pending request for a node.
type request struct {
	done chan struct{} // closed once the node has an allocation, or err is set
	err  error
}

// New checks with Slurm that these nodes exist and that Slurm would accept the jobs. It reports
// wrong settings as an error with exit code 2. It allocates nothing.
func New(ctx context.Context, opt Options) (*Dialer, error) {
	d := &Dialer{opt: opt, places: make(map[string]*place)}
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

// Dial implements remote.Dialer. It returns once Slurm has allocated the node.
func (d *Dialer) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	if _, known := d.places[t.Node]; !known {
		return nil, fmt.Errorf("node %q was not requested from Slurm", t.Node)
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

// Close ends the running programs, and then the jobs.
func (d *Dialer) Close() error {
	d.stop(errClosed)
	d.end() // connections end their programs
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

var errClosed = fmt.Errorf("%w: closed by dsbuild", remote.ErrLost)

// lease returns the allocation of a node for a program to run in. The caller calls done when the
// program has ended. If the node has no allocation, lease requests one. If Slurm has ended the
// allocation, lease returns an error, or, if renew is set, requests a new allocation.
func (d *Dialer) lease(ctx context.Context, name string, renew bool) (a *allocation, done func(), err error) {
	for {
		d.mu.Lock()
		p := d.places[name]
		a := p.alloc
		if a != nil && a.over() && renew {
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
			// Count the program that is about to run.
			if d.active == 0 {
				d.calm = make(chan struct{})
			}
			d.active++
			if d.idle != nil {
				d.idle.Stop()
				d.idle = nil
			}
			d.mu.Unlock()
			return a, sync.OnceFunc(d.endUse), nil
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

// endUse counts a program that has ended.
func (d *Dialer) endUse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.active--; d.active > 0 {
		return
	}
	close(d.calm)
	d.calm = nil
	d.idle = time.AfterFunc(idleLimit, d.giveBack)
}

// giveBack ends all jobs, unless a program runs in them. After Close it ends them in any case.
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
		d.opt.Report.Note("released %s to Slurm until needed again", ui.FoldNames(names))
	}
	var all sync.WaitGroup
	for _, a := range held {
		all.Go(a.end)
	}
	all.Wait()
}

// ask requests a node and, in the same request, all others that will be needed: every node the first
// time, and later the nodes with open connections. The caller holds mu.
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

// grant assigns an allocation to its nodes.
func (d *Dialer) grant(a *allocation) {
	d.mu.Lock()
	if d.life.Err() != nil { // Close may have released the held jobs already
		d.mu.Unlock()
		a.end()
		return
	}
	defer d.mu.Unlock()
	d.opt.Report.Note("allocated %s in Slurm job %s", ui.FoldNames(a.nodes), a.job)
	d.held = append(d.held, a)
	for _, name := range a.nodes {
		if p := d.places[name]; p != nil && p.asked != nil {
			p.alloc = a
			p.answer(nil)
		}
	}
	// The nodes may remain unused, so the idle timer starts now.
	if d.active == 0 && d.idle == nil {
		d.idle = time.AfterFunc(idleLimit, d.giveBack)
	}
}

// refuse fails the pending requests for nodes.
func (d *Dialer) refuse(names []string, why func(name string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if p := d.places[name]; p.asked != nil {
			p.answer(why(name))
		}
	}
}

// answer ends a request; the caller holds the dialer's mu.
func (p *place) answer(err error) {
	p.asked.err = err
	close(p.asked.done)
	p.asked = nil
}
