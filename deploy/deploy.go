package deploy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Level is how much verify proves.
type Level string

// The levels of --verify.
const (
	VerifyLoad  Level = "load"  // every op is loaded
	VerifyFiles Level = "files" // RECORD hashes and metadata
)

// Options are what a deploy is made with, as plain resolved values.
type Options struct {
	Command    string // of dsbuild, for the report: deploy, rollback, ship or verify
	Hosts      []inventory.Host
	KnownHosts string // "" means the user's own
	Wheels     []Wheel
	Dialer     remote.Dialer // closed by Close, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int    // nodes at once; 0 means fanout.DefaultForks
	Serial     Serial // the groups in which nodes are changed; none: all at once
	// TooMany is asked with the number of failed nodes, and of how many: of all, or
	// of a group of Serial. Yes starts no more. nil: never, but for the next group after one
	// with failures.
	TooMany    func(failed, of int) bool
	Force      bool
	Bundle     *wheel.Bundle // wheelhouse to meet requirements from; nil: a node that lacks one is refused
	Index      bool          // meet them from each node's own index
	InUse      InUse         // what becomes of nodes whose environment is in use
	DryRun     bool          // nothing is written, no proof of what nodes share either: their word is taken
	Bandwidth  *rate.Limiter // bytes per second of all uploads; nil: no limit
	Logs       Logs          // what is kept of all that nodes say
	Timeout    time.Duration // how long sending, installing and verifying may each take on a node, and no step takes longer; 0: the usual limits
	Verify     Level
	VerifyLeft Level  // what is proved of nodes that are left alone; "" means Verify
	By         string // who deploys, for the journal
	// PipWheel returns the path of a pip wheel for a Python X.Y, for nodes whose environment has no pip.
	PipWheel func(ctx context.Context, python string) (string, error)
	// ConnectWait is how long the dialer may have a node wait in a queue. Such waits
	// take no place among the Forks.
	ConnectWait time.Duration
	// Asks is a dialer that may ask a person, who is not to be hurried: it has
	// limits of its own.
	Asks bool
}

// Deployment is one deploy: Survey, then Apply, then Close.
type Deployment struct {
	opt   Options
	run   string // names this run in files and journals
	units []*unit
	pips  map[string]upload // by Python X.Y

	installs int // nodes that Apply installs on

	rollback bool
	given    bool           // each node has its wheel on purpose
	reading  bool           // by Verify: nothing is changed
	watch    *watch         // while nodes are at work
	tables   *compat.Tables // verify
	files    shared         // verify: what nodes have of DeepSpeed
	split    sync.Map       // files of which nodes may have parts, by their paths: func() *inParts
}

// unit is one node on its way through the steps.
type unit struct {
	host   inventory.Host
	conn   remote.Conn
	runner remote.Runner
	facts  *node.Facts
	plan   NodePlan

	change  *change
	inbox   string // on the node, for uploads
	code    bool   // the byte code is there
	sent    int64  // bytes of files
	record  string // sha256 of the RECORD that is to be there
	noted   any    // rollback: what dsbuild noted of the version put back
	changed bool
	before  *Version
	after   *Version
	unseen  bool // what it has now is not known
	log     *nodeLog
	sight   *sight    // verify: what was seen of it
	runs    *WheelRef // verify: the wheel that it runs, or is to run

	status    Status
	step      string
	err       error
	serial    int       // the group of --serial in which it was changed, from 1
	until     time.Time // when waiting for processes to end is over
	aftermath string    // the end of err that says what became of the node after it had failed
	seconds   map[string]float64
}

// New prepares a deploy; nothing is done yet.
func New(opt Options) *Deployment {
	d := &Deployment{opt: opt, run: time.Now().UTC().Format("20060102T150405-") + strings.ToLower(rand.Text()[:6]), pips: map[string]upload{}}
	book := newLogBook(opt, d.run)
	for _, h := range opt.Hosts {
		d.units = append(d.units, &unit{host: h, log: book.of(h), status: Skipped, seconds: map[string]float64{}})
	}
	return d
}

// Close closes every connection, and the dialer.
func (d *Deployment) Close() {
	for _, u := range d.units {
		u.hangUp()
	}
	if c, ok := d.opt.Dialer.(io.Closer); ok {
		c.Close() //nolint:errcheck // likewise
	}
}

// Survey is the first phase: it reaches and probes every node and decides what
// is to happen. It changes nothing and sends no file; where nodes say that they share an
// environment, a file of one word shows for a moment whether they do.
func (d *Deployment) Survey(ctx context.Context) (Plan, error) {
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []Known) (Plan, error) { return NewPlan(known, d.opt.Wheels, d.planOptions(ctx)) })
}

func (d *Deployment) planOptions(ctx context.Context) PlanOptions {
	return PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle, Index: d.opt.Index, NoPip: d.fetchPips(ctx)}
}

// SurveyRollback is Survey for going back to what was there before the last
// deploy; wheels play no part in it.
func (d *Deployment) SurveyRollback(ctx context.Context) (Plan, error) {
	d.rollback = true
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []Known) (Plan, error) { return NewRollbackPlan(known), nil })
}

// Probe reaches every node and gathers its facts. Called again it looks anew,
// over the connections that are open, or over new ones where those have ended;
// a node that could not be reached before is not tried again.
func (d *Deployment) Probe(ctx context.Context) ([]Known, error) {
	var units []*unit
	for _, u := range d.units {
		if u.err == nil {
			units = append(units, u)
		}
	}
	d.watch = newWatch(d.opt.Reporter, "surveying", len(units), nil)
	defer d.watch.close()
	before := len(d.units) - len(units)
	d.reach(ctx, units, d.tooMany(before), d.connect, []step{
		{name: "probe", limit: d.within(probeLimit), do: d.probe}, // the facts
	}, func(*unit) {})
	if ctx.Err() != nil {
		return nil, d.cutOff(ctx)
	}
	return d.known(), nil
}

// reach connects to nodes, a host key checked, and takes each through steps, and last
// to the end. Where connecting can be a wait in a queue, the window is for the rest.
func (d *Deployment) reach(ctx context.Context, units []*unit, stop func(int) bool, connect func(context.Context, *unit) error, steps []step, last func(*unit)) {
	opt := fanout.Options{Forks: d.opt.Forks, StopWhen: stop}
	var window chan struct{}
	if d.opt.ConnectWait > 0 {
		window = make(chan struct{}, d.forks())
		opt.Forks = len(units)
	}
	results := fanout.Run(ctx, units, opt, func(ctx context.Context, u *unit) (struct{}, error) {
		defer last(u)
		d.watch.begin(u, 1+len(steps))
		defer d.watch.end(u)
		if err := d.walk(ctx, u, []step{{name: "connect", limit: d.connectLimit(), do: connect}}); err != nil {
			return struct{}{}, err
		}
		if window != nil {
			window <- struct{}{} // those that have one end when ctx does
			defer func() { <-window }()
		}
		return struct{}{}, d.walk(ctx, u, steps)
	})
	note(units, results)
}

// connectLimit is the time that a connection may take; 0 is no limit.
func (d *Deployment) connectLimit() time.Duration {
	if d.opt.Asks {
		return 0
	}
	return d.within(connectLimit) + d.opt.ConnectWait
}

// forks is how many nodes are worked on at once.
func (d *Deployment) forks() int {
	if d.opt.Forks > 0 {
		return d.opt.Forks
	}
	return fanout.DefaultForks
}

// tooMany asks TooMany when some nodes have failed already; nil where nothing
// is ever too many.
func (d *Deployment) tooMany(before int) func(int) bool {
	if d.opt.TooMany == nil {
		return nil
	}
	return func(n int) bool { return before+n > 0 && d.opt.TooMany(before+n, len(d.units)) }
}

// decide is the end of the first phase: every node gets its part of the plan.
func (d *Deployment) decide(ctx context.Context, how func([]Known) (Plan, error)) (Plan, error) {
	known := d.known()
	if !d.opt.DryRun {
		d.proveSharing(ctx, known)
	}
	plan, err := how(known)
	if ctx.Err() != nil { // what was decided may rest on a download that was cut off
		return Plan{}, d.cutOff(ctx)
	}
	if err != nil {
		return Plan{}, err
	}
	plan.Respect(known, d.opt.InUse)
	plan.Divide(d.opt.Serial)
	for i, u := range d.units {
		u.plan = plan.Nodes[i]
		switch u.plan.Action {
		case Refuse:
			u.status, u.step = Refused, "fit"
			u.err = withHint(errors.New(strings.Join(u.plan.Reasons, "; ")), u.plan.Hint)
		case Install, Return, Leave, Follow:
			u.step = "fit"
		}
	}
	return plan, nil
}

// cutOff is the end of a survey that did not get to a plan: nodes that were
// reached are skipped too, and say why.
func (d *Deployment) cutOff(ctx context.Context) error {
	cause := context.Cause(ctx)
	for _, u := range d.units {
		if u.err == nil {
			u.err = cause
		}
	}
	return cause
}

// note gives units the errors that only fanout knows: not started, or a panic.
func note(units []*unit, results []fanout.Result[struct{}]) {
	for i, r := range results {
		if u := units[i]; r.Err != nil && u.err == nil {
			u.err = r.Err
			if r.Started {
				u.status = Failed
			}
		}
	}
}

func (d *Deployment) known() []Known {
	nodes := make([]Known, len(d.units))
	for i, u := range d.units {
		nodes[i] = Known{Name: u.host.Name, Err: u.err}
		if u.facts != nil {
			nodes[i].Facts = *u.facts
		}
	}
	return nodes
}

// Apply is the second phase: it carries the plan of Survey out. The report is
// complete also when ctx ends on the way.
func (d *Deployment) Apply(ctx context.Context) *Report {
	order := newRollout(d.plans(), d.opt.Serial)
	var left []*unit
	var total int64
	var failed []string
	for _, u := range d.units {
		switch {
		case u.plan.Action == Install:
			d.installs++
		case u.plan.Action == Leave:
			left = append(left, u)
		case u.status == Failed || u.status == Unreachable:
			failed = append(failed, u.host.Name)
		}
	}
	for _, u := range d.units {
		if u.plan.Action == Install {
			for _, f := range d.uploads(u) {
				total += f.counted()
			}
		}
	}
	title := "deploying"
	if d.rollback {
		title = "rolling back"
	}
	d.watch = newWatch(d.opt.Reporter, title, order.total+len(left), failed)
	d.watch.bytes = total
	defer d.watch.close()
	start := time.Now()
	for number := 1; ; number++ {
		group := d.places(order.next())
		if len(group)+len(left) == 0 {
			return d.Report()
		}
		if len(d.opt.Serial) > 0 {
			d.watch.turn(number)
		}
		d.turn(ctx, group, left, start)
		left = nil
		for _, u := range group {
			if len(d.opt.Serial) > 0 && u.status != Skipped {
				u.serial = number
			}
		}
		if err := d.stop(number, group); err != nil && ctx.Err() == nil {
			d.skip(order, err)
			return d.Report()
		}
		if slices.ContainsFunc(group, func(u *unit) bool { return u.status == OK }) {
			order.proven()
		}
	}
}

// announce tells a dialer that can make use of it which nodes of a turn get
// the same files.
func (d *Deployment) announce(group []*unit) {
	s, ok := d.opt.Dialer.(remote.Spreader)
	if !ok {
		return
	}
	nodes := make(map[string][]string)
	for _, u := range group {
		if u.plan.Action == Install {
			for _, f := range d.uploads(u) {
				nodes[f.sha256] = append(nodes[f.sha256], u.host.Node)
			}
		}
	}
	for sha256, names := range nodes {
		s.Announce(sha256, names)
	}
}

// plans are those of all nodes.
func (d *Deployment) plans() []NodePlan {
	plans := make([]NodePlan, len(d.units))
	for i, u := range d.units {
		plans[i] = u.plan
	}
	return plans
}

// places are the nodes at some places.
func (d *Deployment) places(at []int) []*unit {
	units := make([]*unit, len(at))
	for i, place := range at {
		units[i] = d.units[place]
	}
	return units
}

// turn changes a group of nodes, and verifies those that are left alone with it.
func (d *Deployment) turn(ctx context.Context, group, left []*unit, start time.Time) {
	var first, followers []*unit
	for _, u := range group {
		u.until = time.Now().Add(d.opt.InUse.Wait)
		if u.plan.waits { // since all began
			u.until = start.Add(d.opt.InUse.Wait)
		}
		if u.plan.Action == Follow {
			followers = append(followers, u)
		} else {
			first = append(first, u)
		}
	}
	d.announce(first)
	d.phase(ctx, append(left, first...))
	d.phase(ctx, followers)
}

// skip gives the nodes of all further groups the reason why they are not begun.
func (d *Deployment) skip(order *rollout, why error) {
	for {
		rest := d.places(order.next())
		if len(rest) == 0 {
			return
		}
		for _, u := range rest {
			u.err = why
		}
	}
}

// phase takes units through their steps, unless too many have failed.
func (d *Deployment) phase(ctx context.Context, units []*unit) {
	tooMany := d.tooMany(d.failed())
	if tooMany != nil && tooMany(0) {
		for _, u := range units {
			u.err = fanout.ErrStopped
		}
		return
	}
	opt := fanout.Options{Forks: d.opt.Forks, StopWhen: tooMany}
	results := fanout.Run(ctx, units, opt, func(ctx context.Context, u *unit) (struct{}, error) {
		defer u.hangUp()
		steps := d.steps(u)
		d.watch.begin(u, len(steps))
		defer d.watch.end(u)
		err := d.walk(ctx, u, steps)
		if u.status == Refused {
			err = nil // nothing went wrong
		}
		return struct{}{}, err
	})
	note(units, results)
}

// failed counts the nodes that have failed so far.
func (d *Deployment) failed() int {
	n := 0
	for _, u := range d.units {
		if u.status == Failed || u.status == Unreachable {
			n++
		}
	}
	return n
}

// steps are what a node goes through after it was found to fit.
func (d *Deployment) steps(u *unit) []step {
	steps := d.changes(u)
	if u.plan.waits && u.plan.Action != Follow {
		wait := step{name: "fit", limit: d.opt.InUse.Wait + d.within(probeLimit), do: d.free} // before a byte is sent
		steps = append([]step{wait}, steps...)
	}
	return steps
}

func (d *Deployment) changes(u *unit) []step {
	verify := step{name: "verify", limit: d.within(verifyLimit), do: d.verify} // what an import finds is the wheel
	switch u.plan.Action {
	case Install:
		return []step{
			{name: "put", limit: d.within(putLimit), do: d.put},                                // the lock, the file
			{"install", d.opt.InUse.Wait + d.within(installLimit) + pipGrace, d.install, true}, // the old version moved aside, pip
			verify,
			{"record", recordLimit, d.record, true}, // final; the journal
		}
	case Return:
		return []step{
			{name: "rollback", limit: d.opt.InUse.Wait + d.within(installLimit), do: d.goBack}, // the lock, the exchange
			verify,
			{"record", recordLimit, d.recordBack, true},
		}
	case Follow:
		return []step{{name: "install", limit: installLimit, do: d.follow}, {name: "verify", limit: d.within(verifyLimit), do: d.verifyFollower}}
	case Leave:
		if u.facts.Leftovers {
			return []step{{name: "put", limit: d.within(putLimit), do: d.tidy}, verify} // files of a run that was cut off go
		}
	}
	return []step{verify}
}

// step is one thing done on a node.
type step struct {
	name  string
	limit time.Duration // 0: none
	do    func(context.Context, *unit) error
	agent bool // only while the agent holds the environment: put lets go of one that is as wanted
}

// The time a step may take at most.
const (
	connectLimit = 2 * time.Minute
	probeLimit   = 2 * time.Minute
	putLimit     = 30 * time.Minute
	installLimit = 15 * time.Minute
	verifyLimit  = 15 * time.Minute
	recordLimit  = 2 * time.Minute
	undoLimit    = time.Minute
	pipGrace     = 30 * time.Second // a pip that hangs is ended by the node, which then says so
)

// within is how long something may take that usually may take so long: what is long
// as long as the user says, and nothing longer than that.
func (d *Deployment) within(usual time.Duration) time.Duration {
	if given := d.opt.Timeout; given > 0 && (usual >= installLimit || usual > given) {
		return given
	}
	return usual
}

// walk takes a node through steps. Titles, times, limits and putting back are
// its business, not the steps'.
func (d *Deployment) walk(ctx context.Context, u *unit, steps []step) error {
	defer func() { u.log.settle(u.status == Failed || u.sight != nil && len(u.sight.broken) > 0) }()
	for _, s := range steps {
		if s.agent && u.change == nil {
			continue
		}
		u.step = s.name
		d.watch.step(u, s.name)
		u.log.step(s.name)
		begin := time.Now()
		limited, cancel := bound(ctx, s.limit)
		err := s.do(limited, u)
		if err != nil && errors.Is(err, limited.Err()) {
			err = context.Cause(limited)
		}
		cancel()
		u.seconds[s.name] += time.Since(begin).Seconds()
		u.log.ended(time.Since(begin), err)
		if err != nil {
			u.status, u.err = Failed, err
			switch surveying := s.name == "connect" || s.name == "probe" || s.name == "fit" || d.reading; {
			case isInUse(err):
				u.status = Refused
			case surveying && ctx.Err() != nil:
				u.status = Skipped // nothing was wrong with the node
			case errors.Is(err, remote.ErrSudo): // it was reached
			case s.name == "connect", surveying && errors.Is(err, remote.ErrLost):
				u.status = Unreachable
			}
			d.putBack(ctx, u)
			return err
		}
	}
	if u.plan.Action != "" {
		u.status = OK
	}
	if u.change != nil {
		u.change.end()
		u.change = nil
	}
	return nil
}

// bound is ctx with a limit, if that is not 0.
func bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, notWithin(limit))
}

func notWithin(limit time.Duration) error {
	return hint.With(fmt.Errorf("not done within %s", ui.Duration(limit)), "what is slow there, its network or its disk? --timeout gives it longer")
}

// Report sums up what has been done so far.
func (d *Deployment) Report() *Report {
	r := &Report{Command: d.opt.Command, Wheels: []WheelRef{}, Nodes: make([]NodeReport, len(d.units)), given: d.given}
	seen := map[string]bool{}
	for i, u := range d.units {
		n := NodeReport{
			Name: u.host.Name, Status: u.status, Step: u.step, Changed: u.changed, Along: names(u.plan.Along), Before: u.before.plain(), After: u.after.plain(), Unseen: u.unseen || u.facts == nil,
			Seconds: u.seconds, Sent: u.sent, Differs: []string{}, Remarks: []string{}, Serial: u.serial, Log: u.log.path(),
			unfit: u.plan.Unfit, aftermath: u.aftermath, aka: []string{u.host.Node, u.host.Address, label(u.host.Name)},
		}
		if u.sight != nil {
			u.sight.tell(&n)
		}
		if u.err != nil {
			n.Error, n.Hint = clip(ui.OneLine(u.err.Error()), maxError), ui.OneLine(hint.Of(u.err))
		}
		if u.facts != nil {
			f := *u.facts
			f.Dists, f.Along = nil, nil
			n.Facts = &f
		}
		if ref := u.ref(); ref != nil {
			n.Wheel = ref.Name
			if !seen[ref.SHA256] {
				seen[ref.SHA256] = true
				r.Wheels = append(r.Wheels, *ref)
			}
		}
		r.Nodes[i] = n
	}
	r.Differences = compareNodes(d.units, d.given)
	r.complete()
	return r
}

// maxError bounds the error of a node in the report.
const maxError = 4 << 10

// ref names the wheel that is for a node, or that was found on it; nil: none.
func (u *unit) ref() *WheelRef {
	if w := u.plan.Wheel; w != nil {
		return w.ref()
	}
	return u.runs
}

// public is a version without its local part.
func public(version string) string {
	v, _, _ := strings.Cut(version, "+")
	return v
}
