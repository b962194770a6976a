package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
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
	// Report hears of jobs that wait and of nodes that are given back.
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

// ConfigError is what Slurm says cannot be: nodes that it does not know, or a
// partition, an account or a time that it does not take.
type ConfigError struct {
	what string
	hint string
}

func (e *ConfigError) Error() string { return e.what }

// Hint says what to try.
func (e *ConfigError) Hint() string { return e.hint }

// ExitCode is that of a wrong configuration.
func (e *ConfigError) ExitCode() int { return 2 }

// NoNodes is the error of a partition without nodes, or that Slurm does not know; ""
// is the default one.
func NoNodes(partition string) *ConfigError {
	what := "Slurm has no nodes in partition " + partition
	if partition == "" {
		what = "Slurm has no default partition"
	}
	return &ConfigError{what, "'sinfo' says which partitions there are"}
}

// check finds out what cannot be, before anything is asked for.
func (d *Dialer) check(ctx context.Context) error {
	listed, err := Nodes(ctx, d.opt.Partition)
	if err != nil {
		return &ConfigError{err.Error(), hint.Of(err)}
	}
	parts, unknown := d.byPartition(d.opt.Nodes, listed)
	if len(unknown) > 0 {
		return d.unknown(ctx, unknown, listed)
	}
	for _, part := range parts {
		if len(part.usable()) == 0 {
			continue
		}
		args := append([]string{"--test-only", "--wrap=true"}, d.jobOptions(part, part.usable())...)
		if _, _, err := (Program{Name: "sbatch", Args: args}).Output(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			return &ConfigError{"Slurm would not take a job for these nodes: " + err.Error(),
				"'sinfo' says which partitions there are, 'sacctmgr show assoc user=$USER' which accounts and QOS are yours"}
		}
	}
	return nil
}

// unknown is the error of nodes that Slurm does not know, or not in this partition.
func (d *Dialer) unknown(ctx context.Context, names []string, listed []Node) error {
	const advice = "in the inventory a node must have the name that Slurm has for it (NodeName): 'sinfo --Node' lists them"
	if d.opt.Partition == "" {
		return &ConfigError{fmt.Sprintf("Slurm knows no node %s", ui.FoldNames(names)), advice}
	}
	if len(listed) == 0 {
		return NoNodes(d.opt.Partition)
	}
	all, err := Nodes(ctx, "")
	if err != nil {
		return err
	}
	_, strangers := d.byPartition(names, all)
	if len(strangers) > 0 {
		return &ConfigError{fmt.Sprintf("Slurm knows no node %s", ui.FoldNames(strangers)), advice}
	}
	return &ConfigError{fmt.Sprintf("%s: not in partition %s", ui.FoldNames(names), d.opt.Partition), "without --partition each is asked for in one that it is in"}
}

// partition is one in which nodes are asked for.
type partition struct {
	name   string
	nodes  []Node   // that are wanted
	others []string // that are in it, and are not
}

// usable are the wanted nodes that can be had, now or later.
func (p partition) usable() []string {
	var names []string
	for _, n := range p.nodes {
		if n.down() == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// byPartition finds for each node the partition to ask for it in, and names those
// that Slurm does not list.
func (d *Dialer) byPartition(names []string, listed []Node) (parts []partition, unknown []string) {
	at := make(map[string]int)
	known := make(map[string]Node, len(listed))
	for _, n := range listed {
		known[n.Name] = n
	}
	for _, name := range names {
		n, ok := known[name]
		if !ok {
			unknown = append(unknown, name)
			continue
		}
		in := d.partitionOf(n)
		if _, seen := at[in]; !seen {
			at[in] = len(parts)
			parts = append(parts, partition{name: in})
		}
		parts[at[in]].nodes = append(parts[at[in]].nodes, n)
	}
	for i := range parts {
		parts[i].others = parts[i].outsiders(listed)
	}
	return parts, unknown
}

// outsiders are the nodes of the partition that are not wanted.
func (p partition) outsiders(listed []Node) []string {
	wanted := make(map[string]bool, len(p.nodes))
	for _, n := range p.nodes {
		wanted[n.Name] = true
	}
	var names []string
	for _, n := range listed {
		in := slices.ContainsFunc(n.Partitions, func(one Partition) bool { return one.Name == p.name })
		if in && !wanted[n.Name] {
			names = append(names, n.Name)
		}
	}
	return names
}

// partitionOf is the first partition of a node, in the order asked for, that starts
// jobs; the first where none does.
func (d *Dialer) partitionOf(n Node) string {
	order := n.Partitions
	if d.opt.Partition != "" {
		wanted := strings.Split(d.opt.Partition, ",")
		order = slices.Clone(order)
		slices.SortStableFunc(order, func(a, b Partition) int {
			return slices.Index(wanted, a.Name) - slices.Index(wanted, b.Name)
		})
	}
	for _, p := range order {
		if p.Up {
			return p.Name
		}
	}
	return order[0].Name
}

// memoryMB is what a job asks of a node: enough for a Python that imports torch. It
// is not asked for where nodes say they have less: there nobody wrote down how much.
const memoryMB = 2048

// jobOptions are those of a job for some of these nodes of a partition: as many as
// are free, one at least. A list of nodes would mean all of them, so the others are
// excluded.
func (d *Dialer) jobOptions(p partition, names []string) []string {
	var args []string
	asked := slices.ContainsFunc(d.opt.More, func(option string) bool { return strings.HasPrefix(option, "--mem") })
	small := slices.ContainsFunc(p.nodes, func(n Node) bool { return n.MemoryMB < memoryMB })
	if !asked && !small {
		args = append(args, fmt.Sprintf("--mem=%dM", memoryMB))
	}
	args = append(args, d.opt.More...)
	// What follows has the last word. A node that fails must not take the others along.
	args = append(args, "--job-name=dsbuild", "--partition="+p.name, fmt.Sprintf("--nodes=1-%d", len(names)), "--cpus-per-task=1", "--no-kill")
	if others := p.without(names); len(others) > 0 {
		args = append(args, "--exclude="+ui.FoldNames(others))
	}
	for _, o := range []struct{ option, value string }{{"--account=", d.opt.Account}, {"--qos=", d.opt.QOS}, {"--time=", d.opt.Time}} {
		if o.value != "" {
			args = append(args, o.option+o.value)
		}
	}
	return args
}

// without are all nodes of the partition but these.
func (p partition) without(names []string) []string {
	var others []string
	for _, n := range p.nodes {
		if !slices.Contains(names, n.Name) {
			others = append(others, n.Name)
		}
	}
	return append(others, p.others...)
}
