// Package jobrunner runs a rendered job on nodes without a scheduler. It starts each
// node's part over a connection, collects the output of each rank, and ends all parts
// when one fails, when the user interrupts it, or when dsbuild itself dies.
//
// On each node a small program (supervise.py) is the parent of all processes of the
// job. It ends with the connection.
package jobrunner

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch"
)

// Conn is an open connection to a node.
type Conn interface {
	remote.Runner
	Close() error
}

// Machine is a node of a job.
type Machine struct {
	launch.Part
	// Open connects to it.
	Open func(ctx context.Context) (Conn, error)
}

// Options are the job, its nodes and the settings of a run.
type Options struct {
	Job      *launch.Job
	Machines []Machine
	// Env are the job's variables from dsbuild's environment.
	Env map[string]string
	// Logs is the directory of the run. The run replaces the logs of an earlier run.
	Logs string
	// Grace is the time for processes to end after SIGTERM.
	Grace time.Duration
	// HeartbeatTimeout is how long a node waits for a heartbeat from dsbuild before it ends its
	// processes. The default is a minute.
	HeartbeatTimeout time.Duration
	Report           ui.Reporter
	// WriteHint formats the settings in a node's hint. It may be nil.
	WriteHint func(hint, nodes string) string
}

// Time limits.
const (
	// settle is the wait for further failures after the first, so that the report
	// names the original one.
	settle = 2 * time.Second
	// killTimeout is how long a node may take, after the grace, to end everything.
	killTimeout = 20 * time.Second
	// startTimeout is how long a node may take to report whether the job can run there.
	startTimeout = 2 * time.Minute
	// redraw is the interval of the progress line.
	redraw = 250 * time.Millisecond
)

// Run runs a job and waits for it. Once the job has started, Run returns a report even if the
// job failed. An error means that the job could not start, or that its logs could not be written.
// When ctx ends, Run ends all processes first.
func Run(ctx context.Context, opt Options) (*Report, error) {
	opt.HeartbeatTimeout = cmp.Or(opt.HeartbeatTimeout, time.Minute)
	book, err := newRankLogs(opt.Logs, opt.Job.WorldSize())
	if err != nil {
		return nil, err
	}
	c := &jobRun{opt: opt, book: book, ranks: map[int]*rank{}, events: make(chan event, 256), begin: time.Now()}
	for i := range opt.Machines {
		m := &member{Machine: &opt.Machines[i], orders: make(chan string, 4)}
		c.members = append(c.members, m)
		for n := range m.Count {
			if m.First >= 0 {
				c.ranks[m.First+n] = &rank{number: m.First + n, local: n, member: m}
			}
		}
	}
	c.runLoop(ctx)
	r := c.buildReport(ctx)
	return r, book.writeReport(r)
}

// phase is the progress of a job.
type phase int

const (
	gathering phase = iota // dsbuild connects to the nodes and checks them
	running
	settling // a rank or node has failed
	stopping
)

// jobRun is a running job.
type jobRun struct {
	opt     Options
	book    *rankLogs
	members []*member
	ranks   map[int]*rank
	events  chan event
	begin   time.Time

	phase   phase
	changed time.Time // the start of the phase
	left    int       // members whose connection is still open
	last    string    // the last line of rank 0
}

// member is a node of a running job.
type member struct {
	*Machine
	orders chan string // to its program: go, stop

	state    memberState
	err      error  // why the node dropped out
	end      ending // the last message of its program
	ended    bool   // that message has arrived
	at       time.Time
	launcher tail
}

// memberState is the state of a node.
type memberState int

const (
	joining memberState = iota
	ready
	refused // the job cannot run there
	atWork
	over // its program has ended and reported how
	lost // no connection
)

// rank is one process of the job.
type rank struct {
	number, local int
	member        *member
	gone          time.Time // the end of its process; zero before
	failed        time.Time // its first known failure
	code, signal  int
	tail          tail
}

// name returns the node's name.
func (m *member) name() string {
	return cmp.Or(m.Node, "this machine")
}

func (c *jobRun) runLoop(ctx context.Context) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	dialing, giveUp := context.WithCancel(lasting)
	defer giveUp()
	for _, m := range c.members {
		c.left++
		go func() { // all the work for one node
			err := m.withoutNode(c.runMember(lasting, dialing, m))
			c.events <- event{from: m, at: time.Now(), closed: true, err: err}
		}()
	}
	bar := c.opt.Report.Bar("job "+c.opt.Job.Name, 0)
	defer bar.Close()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	interrupted := ctx.Done()
	for c.left > 0 {
		select {
		case e := <-c.events:
			c.handleEvent(e)
		case <-tick.C:
			bar.Describe(c.describeProgress())
		case <-interrupted:
			interrupted = nil
			c.stopAll()
		}
		now := time.Now()
		switch {
		case c.phase == settling && now.Sub(c.changed) > settle:
			c.stopAll()
		case c.phase == stopping && now.Sub(c.changed) > c.opt.Grace+killTimeout:
			cancel()
		}
		if c.phase == stopping {
			giveUp()
		}
	}
}

func (c *jobRun) enterPhase(p phase) { c.phase, c.changed = p, time.Now() }

// stopAll requests all nodes to end their processes.
func (c *jobRun) stopAll() {
	if c.phase == stopping {
		return
	}
	c.enterPhase(stopping)
	c.orderAll("stop")
}

// orderAll sends a request to all nodes, but "go" only to nodes that are ready.
func (c *jobRun) orderAll(word string) {
	for _, m := range c.members {
		if word == "go" && m.state != ready {
			continue
		}
		if word == "go" {
			m.state = atWork
		}
		m.orders <- word // never blocks: the buffer has room for go and stop
	}
}

func (c *jobRun) handleEvent(e event) {
	m := e.from
	switch {
	case e.closed:
		c.left--
		neverReady := m.state == joining && c.phase == stopping
		if !m.ended && m.state != refused && !neverReady {
			m.state, m.err, m.at = lost, e.err, e.at
			c.handleFailure(m)
		}
	case e.ready && m.state == joining:
		m.state = ready
	case e.refused != nil && m.state == joining:
		m.state, m.err, m.at = refused, e.refused, e.at
	case e.End != nil && !m.ended:
		m.ended, m.end, m.at = true, *e.End, e.at
		switch {
		case m.state == atWork:
			m.state = over
			if !m.end.hasPassed() {
				c.handleFailure(m)
			}
		case c.phase == gathering && m.state != refused:
			m.state, m.err = lost, fmt.Errorf("agent exited before the job started: %s", m.reasonText())
		}
	case e.Rank != nil:
		c.trackProcess(e)
	case e.Out != nil:
		c.logOutput(e)
	}
	if c.phase == gathering {
		c.startWhenReady()
	}
}

// startWhenReady starts the job when all nodes are ready, or stops it if too many
// cannot take part.
func (c *jobRun) startWhenReady() {
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
		c.stopAll()
		return
	}
	for _, m := range c.members {
		if m.state != ready {
			c.opt.Report.Warn("%s: %v; the job starts without it", m.name(), m.err)
			m.orders <- "stop"
		}
	}
	c.enterPhase(running)
	c.orderAll("go")
}

// trackProcess records the start or the end of a rank's process. If the nodes agree on
// their ranks, a rank may move to another node after a restart.
func (c *jobRun) trackProcess(e event) {
	r := c.ranks[e.Rank.Number]
	if r == nil || r.member != e.from {
		if !e.Rank.Started || e.from.First >= 0 || e.Rank.Number < 0 || e.Rank.Number >= c.opt.Job.WorldSize() {
			return // the rank is not on that node
		}
		r = &rank{number: e.Rank.Number, member: e.from}
		c.ranks[r.number] = r
	}
	if e.Rank.Started {
		*r = rank{number: r.number, local: e.Rank.Local, member: r.member, tail: r.tail}
		return
	}
	r.gone = e.at
	switch status := e.Rank.Status; {
	case status > 0 && status&0x7f != 0:
		c.noteFailure(r, e.at, 0, status&0x7f)
	case status > 0:
		c.noteFailure(r, e.at, status>>8&0xff, 0)
	}
}

// noteFailure records that a rank has failed, and how.
func (c *jobRun) noteFailure(r *rank, at time.Time, code, signal int) {
	if r.failed.IsZero() {
		r.failed = at
	}
	if r.code == 0 && r.signal == 0 {
		r.code, r.signal = code, signal
	}
	if c.opt.Job.MaxRestarts == 0 {
		c.handleFailure(nil)
	}
}

// handleFailure handles a lost node or, if out is nil, a failed rank without restarts. An
// elastic job continues while enough nodes are left.
func (c *jobRun) handleFailure(out *member) {
	if c.phase != running {
		return
	}
	well := 0
	for _, m := range c.members {
		if m.state == atWork || m.state == over && m.end.hasPassed() {
			well++
		}
	}
	if out == nil || well < c.opt.Job.Nodes.Min {
		c.enterPhase(settling)
		return
	}
	c.opt.Report.Warn("%s dropped out (%s); the job continues with %s",
		out.name(), c.suspectNode(out).Why, ui.Count(well, "node"))
}

// describeProgress returns the text of the progress line.
func (c *jobRun) describeProgress() string {
	count := map[memberState]int{}
	for _, m := range c.members {
		count[m.state]++
	}
	all := len(c.members)
	switch c.phase {
	case gathering:
		return fmt.Sprintf("%d of %s ready", count[ready], ui.Count(all, "node"))
	case running:
		text := fmt.Sprintf("%d of %s running", count[atWork], ui.Count(all, "node"))
		if c.last != "" {
			text += "\nrank 0: " + c.last
		}
		return text
	}
	return fmt.Sprintf("stopping; %d of %s still running", c.left, ui.Count(all, "node"))
}
