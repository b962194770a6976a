// Package crew runs a rendered job on machines that no scheduler rules: it starts
// every machine's part over a connection to it, brings back what each rank says,
// and ends all of it when one fails, when it is told to, or when it is itself gone.
//
// On each machine a small program of dsbuild's (supervise.py) is the parent of all
// that the job starts there, and lives no longer than the connection.
package crew

import (
	"context"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/node"
)

// Link is an open connection to a machine.
type Link interface {
	remote.Runner
	Close() error
}

// Machine is one that takes part in a job.
type Machine struct {
	launch.Part
	// Open connects to it.
	Open func(ctx context.Context) (Link, error)
}

// Options say what is run, where and how.
type Options struct {
	Job      *launch.Job
	Machines []Machine
	// Env are the variables of the job that come from this side.
	Env map[string]string
	// Logs is the folder of the run; what is in it of an earlier one is replaced.
	Logs string
	// Grace is how long processes have to end by themselves once they are asked to.
	Grace time.Duration
	// Patience is how long a machine waits for a sign of life of this side before it
	// ends what it runs; a minute if 0.
	Patience time.Duration
	Report   ui.Reporter
}

// Bounds in time.
const (
	// settle is how long others may tell of their own failure after the first, so
	// that the one that began it is found.
	settle = 2 * time.Second
	// overtime is what a machine may take beyond the grace to end everything.
	overtime = 20 * time.Second
	// hello is how long a machine may take to say whether the job can run there.
	hello = 2 * time.Minute
	// redraw is how often the line of progress changes.
	redraw = 250 * time.Millisecond
)

// Run runs a job to its end. The report is there whenever anything was begun, and
// says what became of it; an error is about what could not be begun at all. When
// ctx ends, everything is ended first.
func Run(ctx context.Context, opt Options) (*Report, error) {
	if opt.Patience == 0 {
		opt.Patience = time.Minute
	}
	book, err := newBook(opt.Logs, opt.Job.WorldSize())
	if err != nil {
		return nil, err
	}
	c := &crew{opt: opt, book: book, ranks: map[int]*rank{}, events: make(chan event, 256), begin: time.Now()}
	for i := range opt.Machines {
		m := &member{Machine: &opt.Machines[i], orders: make(chan string, 4)}
		c.members = append(c.members, m)
		for n := range m.Count {
			if m.First >= 0 {
				c.ranks[m.First+n] = &rank{number: m.First + n, local: n, member: m}
			}
		}
	}
	c.run(ctx)
	r := c.report(ctx)
	return r, book.finish(r)
}

// phase is how far a job has come.
type phase int

const (
	gathering phase = iota // machines are connected to and looked at
	running
	settling // one has failed
	stopping
)

// crew is a job that runs.
type crew struct {
	opt     Options
	book    *book
	members []*member
	ranks   map[int]*rank
	events  chan event
	begin   time.Time

	phase   phase
	changed time.Time // when the phase began
	left    int       // members that may still say something
	last    string    // what rank 0 said last
}

// member is a machine at work.
type member struct {
	*Machine
	orders chan string // to its program: go, stop

	state    memberState
	err      error  // why it is out of it
	end      ending // what its program said last
	ended    bool   // it has said it
	at       time.Time
	launcher tail
}

// memberState is what a machine does.
type memberState int

const (
	joining memberState = iota
	ready
	refused // something there hinders the job
	atWork
	over // its program has said how it ended
	lost // it cannot be, or is no longer, reached
)

// rank is one process of the job.
type rank struct {
	number, local int
	member        *member
	gone          time.Time // when its process was seen to have ended; zero before
	failed        time.Time // when it was first known to have failed
	code, signal  int
	tail          tail
}

// name is what a machine is called.
func (m *member) name() string {
	if m.Node == "" {
		return "this machine"
	}
	return m.Node
}

func (c *crew) run(ctx context.Context) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	dialing, giveUp := context.WithCancel(lasting)
	defer giveUp()
	for _, m := range c.members {
		c.left++
		go c.attend(lasting, dialing, m)
	}
	bar := c.opt.Report.Bar("job "+c.opt.Job.Name, 0)
	defer bar.Close()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	interrupted := ctx.Done()
	for c.left > 0 {
		select {
		case e := <-c.events:
			c.take(e)
		case <-tick.C:
			bar.Describe(c.progress())
		case <-interrupted:
			interrupted = nil
			c.stop()
		}
		now := time.Now()
		switch {
		case c.phase == settling && now.Sub(c.changed) > settle:
			c.stop()
		case c.phase == stopping && now.Sub(c.changed) > c.opt.Grace+overtime:
			cancel()
		}
		if c.phase == stopping {
			giveUp()
		}
	}
}

// enter begins a phase.
func (c *crew) enter(p phase) { c.phase, c.changed = p, time.Now() }

// stop has all machines end what they run.
func (c *crew) stop() {
	if c.phase == stopping {
		return
	}
	c.enter(stopping)
	c.order("stop")
}

// order tells all that may hear it.
func (c *crew) order(word string) {
	for _, m := range c.members {
		if word == "go" && m.state != ready {
			continue
		}
		if word == "go" {
			m.state = atWork
		}
		m.orders <- word // at most go and stop are ever said
	}
}

// take is what becomes of news.
func (c *crew) take(e event) {
	m := e.from
	switch {
	case e.closed:
		c.left--
		if !m.ended && m.state != refused {
			m.state, m.err, m.at = lost, e.err, e.at
			c.trouble(m)
		}
	case e.ready && m.state == joining:
		m.state = ready
	case e.refused != "" && m.state == joining:
		m.state, m.err, m.at = refused, node.Words(e.refused), e.at
	case e.end != nil && !m.ended:
		m.ended, m.end, m.at = true, *e.end, e.at
		switch {
		case m.state == atWork:
			m.state = over
			if !m.end.passed() {
				c.trouble(m)
			}
		case c.phase == gathering && m.state != refused:
			m.state, m.err = lost, fmt.Errorf("dsbuild's program there ended before the job began: %s", m.end.why())
		}
	case e.rank != nil:
		c.process(e)
	case e.text != "":
		c.heard(e)
	}
	if c.phase == gathering {
		c.gather()
	}
}

// gather begins once everybody is there, or ends where somebody will not come.
func (c *crew) gather() {
	there := 0
	for _, m := range c.members {
		switch m.state {
		case joining:
			return
		case ready:
			there++
		}
	}
	if there < c.opt.Job.Nodes.Min || c.members[0].state != ready {
		c.stop()
		return
	}
	for _, m := range c.members {
		if m.state != ready {
			c.opt.Report.Warn("%s: %v; the job begins without it", m.name(), m.err)
			m.orders <- "stop"
		}
	}
	c.enter(running)
	c.order("go")
}

// process notes what is known of a rank's process. Where nodes agree on their
// ranks, a rank may be another node's after a restart.
func (c *crew) process(e event) {
	r := c.ranks[e.rank.number]
	if r == nil || r.member != e.from {
		if !e.rank.begun || e.from.First >= 0 || e.rank.number < 0 || e.rank.number >= c.opt.Job.WorldSize() {
			return // not one of its own
		}
		r = &rank{number: e.rank.number, member: e.from}
		c.ranks[r.number] = r
	}
	if e.rank.begun {
		*r = rank{number: r.number, local: e.rank.local, member: r.member, tail: r.tail}
		return
	}
	r.gone = e.at
	switch status := e.rank.status; {
	case status > 0 && status&0x7f != 0:
		c.failed(r, e.at, 0, status&0x7f)
	case status > 0:
		c.failed(r, e.at, status>>8&0xff, 0)
	}
}

// failed notes that a rank has failed, and how.
func (c *crew) failed(r *rank, at time.Time, code, signal int) {
	if r.failed.IsZero() {
		r.failed = at
	}
	if r.code == 0 && r.signal == 0 {
		r.code, r.signal = code, signal
	}
	if c.opt.Job.MaxRestarts == 0 {
		c.trouble(nil)
	}
}

// trouble is when a machine is out, or with nil a rank that nobody starts again.
// A job that may lose nodes goes on as long as there are enough.
func (c *crew) trouble(out *member) {
	if c.phase != running {
		return
	}
	well := 0
	for _, m := range c.members {
		if m.state == atWork || m.state == over && m.end.passed() {
			well++
		}
	}
	if out == nil || well < c.opt.Job.Nodes.Min {
		c.enter(settling)
		return
	}
	c.opt.Report.Warn("%s is out (%s); the job goes on with %s", out.name(), c.suspectNode(out).Why, machines(well))
}

// progress is what is said while the job runs.
func (c *crew) progress() string {
	count := map[memberState]int{}
	for _, m := range c.members {
		count[m.state]++
	}
	all := len(c.members)
	switch c.phase {
	case gathering:
		return fmt.Sprintf("%d of %s there", count[ready], machines(all))
	case running:
		text := fmt.Sprintf("%d of %s at work", count[atWork], machines(all))
		if c.last != "" {
			text += "\nrank 0: " + c.last
		}
		return text
	}
	return fmt.Sprintf("stopping; %d of %s still at work", c.left, machines(all))
}

func machines(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
