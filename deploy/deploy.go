package deploy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Level is how thorough a verification is.
type Level string

// The levels of --verify.
const (
	VerifyLoad  Level = "load"  // import DeepSpeed and load every op
	VerifyFiles Level = "files" // compare files with the RECORD's hashes, and check metadata
)

// Options are the resolved settings of a deploy.
type Options struct {
	Command    string // the dsbuild command, for the report: deploy, rollback, ship or verify
	Hosts      []inventory.Host
	KnownHosts string // path of known_hosts; "" means the user's own
	Wheels     []Wheel
	Dialer     remote.Dialer // Close closes it, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int    // nodes at once; 0 means fanout.DefaultForks
	Serial     Serial // the groups in which nodes are changed; nil: all nodes at once
	// TooMany is called with the number of failed nodes and the total: of all nodes, or of one
	// group of Serial. If it returns true, dsbuild starts no further node. nil: dsbuild never
	// stops early, except that after a group with failures it does not start the next group.
	TooMany    func(failed, of int) bool
	Force      bool
	Bundle     *wheel.Bundle // wheelhouse for requirements; nil: a node that lacks one is refused
	Index      bool          // meet requirements from each node's own index
	InUse      InUse         // the policy for nodes whose environment is in use
	DryRun     bool          // write nothing, not even to prove sharing: the nodes' claims are believed
	Bandwidth  *rate.Limiter // bytes per second of all uploads; nil: no limit
	Logs       Logs          // where to keep the log of each node
	Timeout    time.Duration // limit for each of put, install and verify on a node, and cap for the other steps; 0: the defaults
	Verify     Level
	VerifyLeft Level  // the level for nodes that are left alone; "" means Verify
	By         string // the user who deploys, for the journal
	// PipWheel returns the path of a pip wheel for a Python X.Y. dsbuild sends it to nodes whose
	// environment has no pip.
	PipWheel func(ctx context.Context, python string) (string, error)
	// ConnectWait is how long the dialer may let a node wait in a queue. A waiting node does not
	// count towards Forks.
	ConnectWait time.Duration
	// Asks is true if the dialer may prompt a person. Connecting then has no time limit here; the
	// dialer has limits of its own.
	Asks bool
}

// Deployment is one deploy. The caller calls Survey, then Apply, then Close.
type Deployment struct {
	opt   Options
	run   string // the name of this run in files and journals
	units []*nodeRun
	pips  map[string]upload // by Python X.Y

	installs int // number of nodes that Apply installs on

	rollback bool
	given    bool           // each node was assigned its wheel; a fleet with several wheels is intended
	reading  bool           // set by Verify: no node is changed
	progress *progress      // set while nodes are at work
	tables   *compat.Tables // verify: to check that a wheel fits
	files    shared         // verify: the file lists that nodes have of DeepSpeed
}

// nodeRun is the state of one node on its way through the steps.
type nodeRun struct {
	host   inventory.Host
	conn   remote.Conn
	runner remote.Runner
	facts  *node.Facts
	plan   NodePlan

	session *agentSession
	inbox   string // folder on the node for uploads
	code    bool   // the byte code has arrived
	sent    int64  // bytes of files sent
	record  string // sha256 of the RECORD that verify expects
	noted   any    // rollback: dsbuild's note on the version put back
	changed bool
	before  *Version
	after   *Version
	unseen  bool // its current version is not known
	log     *nodeLog
	state   *nodeState // verify: the findings about it
	runs    *WheelRef  // verify: the wheel that it runs, or should run

	status  Status
	step    string
	err     error
	serial  int       // the group of --serial in which it was changed, from 1
	until   time.Time // deadline of the wait for processes to end
	seconds map[string]float64
}

// New prepares a deploy; it contacts no node yet.
func New(opt Options) *Deployment {
	d := &Deployment{opt: opt, run: time.Now().UTC().Format("20060102T150405-") + strings.ToLower(rand.Text()[:6]), pips: map[string]upload{}}
	book := newLogBook(opt, d.run)
	for _, h := range opt.Hosts {
		d.units = append(d.units, &nodeRun{host: h, log: book.of(h), status: Skipped, seconds: map[string]float64{}})
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

// Survey is the first phase: dsbuild connects to every node, probes it and decides its action. It
// changes no environment and sends no wheel. Where nodes claim that they share an environment,
// dsbuild writes a file with one word there for a moment to prove it.
func (d *Deployment) Survey(ctx context.Context) (Plan, error) {
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []Known) (Plan, error) { return NewPlan(known, d.opt.Wheels, d.planOptions(ctx)) })
}

func (d *Deployment) planOptions(ctx context.Context) PlanOptions {
	return PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle, Index: d.opt.Index, NoPip: d.fetchPips(ctx)}
}

// SurveyRollback is Survey for a rollback to the version before the last deploy. It needs no
// wheels.
func (d *Deployment) SurveyRollback(ctx context.Context) (Plan, error) {
	d.rollback = true
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []Known) (Plan, error) { return NewRollbackPlan(known), nil })
}

// Probe connects to every node and gathers its facts. A second call probes again, over the open
// connections, or over new ones where those have ended. It does not retry a node that could not
// be reached before.
func (d *Deployment) Probe(ctx context.Context) ([]Known, error) {
	var units []*nodeRun
	for _, u := range d.units {
		if u.err == nil {
			units = append(units, u)
		}
	}
	d.progress = newProgress(d.opt.Reporter, "surveying", len(units), nil)
	defer d.progress.close()
	before := len(d.units) - len(units)
	d.reach(ctx, units, d.tooMany(before), d.connect, []step{
		{name: "probe", limit: d.within(probeLimit), do: d.probe}, // gathers the facts
	}, func(*nodeRun) {})
	if ctx.Err() != nil {
		return nil, d.cutOff(ctx)
	}
	return d.known(), nil
}

// reach connects to nodes with a checked host key, takes each through steps, and calls last for
// each at its end. If connecting may mean a wait in a queue (ConnectWait), every node connects at
// once and the limit of Forks applies only to steps.
func (d *Deployment) reach(ctx context.Context, units []*nodeRun, stop func(int) bool, connect func(context.Context, *nodeRun) error, steps []step, last func(*nodeRun)) {
	opt := fanout.Options{Forks: d.opt.Forks, StopWhen: stop}
	var window chan struct{}
	if d.opt.ConnectWait > 0 {
		window = make(chan struct{}, d.forks())
		opt.Forks = len(units)
	}
	results := fanout.Run(ctx, units, opt, func(ctx context.Context, u *nodeRun) (struct{}, error) {
		defer last(u)
		d.progress.begin(u, 1+len(steps))
		defer d.progress.end(u)
		if err := d.walk(ctx, u, []step{{name: "connect", limit: d.connectLimit(), do: connect}}); err != nil {
			return struct{}{}, err
		}
		if window != nil {
			window <- struct{}{} // a node that holds a place ends when ctx does
			defer func() { <-window }()
		}
		return struct{}{}, d.walk(ctx, u, steps)
	})
	note(units, results)
}

// connectLimit is the time limit of a connection; 0 means no limit.
func (d *Deployment) connectLimit() time.Duration {
	if d.opt.Asks {
		return 0
	}
	return d.within(connectLimit) + d.opt.ConnectWait
}

// forks is the number of nodes that dsbuild works on at once.
func (d *Deployment) forks() int {
	if d.opt.Forks > 0 {
		return d.opt.Forks
	}
	return fanout.DefaultForks
}

// tooMany wraps TooMany for a phase before which some nodes failed already. It returns nil if the
// deploy never stops early.
func (d *Deployment) tooMany(before int) func(int) bool {
	if d.opt.TooMany == nil {
		return nil
	}
	return func(n int) bool { return before+n > 0 && d.opt.TooMany(before+n, len(d.units)) }
}

// decide ends the first phase: how makes the plan, and every node gets its part of it.
func (d *Deployment) decide(ctx context.Context, how func([]Known) (Plan, error)) (Plan, error) {
	known := d.known()
	if !d.opt.DryRun {
		d.proveSharing(ctx, known)
	}
	plan, err := how(known)
	if ctx.Err() != nil { // the plan may rest on a download that was interrupted
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
			u.err = withHint(cause.Error(cause.Message{Text: strings.Join(u.plan.Reasons, "; "), Cause: u.plan.Cause()}), u.plan.Hint)
		case Install, Return, Leave, Follow:
			u.step = "fit"
		}
	}
	return plan, nil
}

// cutOff ends a survey that was interrupted before it had a plan: the nodes that were reached are
// skipped too, with the reason.
func (d *Deployment) cutOff(ctx context.Context) error {
	why := context.Cause(ctx)
	for _, u := range d.units {
		if u.err == nil {
			u.err = why
		}
	}
	return why
}

// note copies to units the errors that only fanout knows: the node was not started, or its
// goroutine panicked.
func note(units []*nodeRun, results []fanout.Result[struct{}]) {
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

// Apply is the second phase: it carries out the plan of Survey. The report is complete even if
// ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *Report {
	order := newRollout(d.plans(), d.opt.Serial)
	var left []*nodeRun
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
	d.progress = newProgress(d.opt.Reporter, title, order.total+len(left), failed)
	d.progress.bytes = total
	defer d.progress.close()
	start := time.Now()
	for number := 1; ; number++ {
		group := d.places(order.next())
		if len(group)+len(left) == 0 {
			return d.Report()
		}
		if len(d.opt.Serial) > 0 {
			d.progress.turn(number)
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
		if slices.ContainsFunc(group, func(u *nodeRun) bool { return u.status == OK }) {
			order.proven()
		}
	}
}

// announce tells a dialer that spreads files between nodes which nodes of a group get the same
// files. Other dialers are not told.
func (d *Deployment) announce(group []*nodeRun) {
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

// plans returns the plans of all nodes.
func (d *Deployment) plans() []NodePlan {
	plans := make([]NodePlan, len(d.units))
	for i, u := range d.units {
		plans[i] = u.plan
	}
	return plans
}

// places returns the nodes at the given indexes.
func (d *Deployment) places(at []int) []*nodeRun {
	units := make([]*nodeRun, len(at))
	for i, place := range at {
		units[i] = d.units[place]
	}
	return units
}

// turn changes a group of nodes, and verifies along with it the nodes in left, which are not
// changed.
func (d *Deployment) turn(ctx context.Context, group, left []*nodeRun, start time.Time) {
	var first, followers []*nodeRun
	for _, u := range group {
		u.until = time.Now().Add(d.opt.InUse.Wait)
		if u.plan.waits { // counted from the start of Apply
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

// skip gives the nodes of all further groups the reason why dsbuild does not start them.
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

// phase takes units through their steps, and starts no further unit once too many have failed.
func (d *Deployment) phase(ctx context.Context, units []*nodeRun) {
	tooMany := d.tooMany(d.failed())
	if tooMany != nil && tooMany(0) {
		for _, u := range units {
			u.err = fanout.ErrStopped
		}
		return
	}
	opt := fanout.Options{Forks: d.opt.Forks, StopWhen: tooMany}
	results := fanout.Run(ctx, units, opt, func(ctx context.Context, u *nodeRun) (struct{}, error) {
		defer u.hangUp()
		steps := d.steps(u)
		d.progress.begin(u, len(steps))
		defer d.progress.end(u)
		err := d.walk(ctx, u, steps)
		if u.status == Refused {
			err = nil // a refusal does not count as a failure
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

// steps returns the steps of a node in Apply. A node that waits for processes to end first waits
// for them, before dsbuild sends a byte.
func (d *Deployment) steps(u *nodeRun) []step {
	steps := d.changes(u)
	if u.plan.waits && u.plan.Action != Follow {
		wait := step{name: "fit", limit: d.opt.InUse.Wait + d.within(probeLimit), do: d.free} // waits before dsbuild sends a byte
		steps = append([]step{wait}, steps...)
	}
	return steps
}

func (d *Deployment) changes(u *nodeRun) []step {
	verify := step{name: "verify", limit: d.within(verifyLimit), do: d.verify} // proves that an import finds the wheel
	switch u.plan.Action {
	case Install:
		return []step{
			{name: "put", limit: d.within(putLimit), do: d.put},                                // takes the lock, sends the files
			{"install", d.opt.InUse.Wait + d.within(installLimit) + pipGrace, d.install, true}, // moves the old version aside, runs pip
			verify,
			{"record", recordLimit, d.record, true}, // makes the change final, writes the journal
		}
	case Return:
		return []step{
			{name: "rollback", limit: d.opt.InUse.Wait + d.within(installLimit), do: d.goBack}, // takes the lock, exchanges the versions
			verify,
			{"record", recordLimit, d.recordBack, true},
		}
	case Follow:
		return []step{{name: "install", limit: installLimit, do: d.follow}, {name: "verify", limit: d.within(verifyLimit), do: d.verifyFollower}}
	case Leave:
		if u.facts.Leftovers {
			return []step{{name: "put", limit: d.within(putLimit), do: d.tidy}, verify} // removes the files of an interrupted run
		}
	}
	return []step{verify}
}

// step is one action on a node.
type step struct {
	name  string
	limit time.Duration // 0: none
	do    func(context.Context, *nodeRun) error
	agent bool // skipped unless the agent holds the lock: put releases a node that already runs the wheel
}

// The default time limits of the steps.
const (
	connectLimit = 2 * time.Minute
	probeLimit   = 2 * time.Minute
	putLimit     = 30 * time.Minute
	installLimit = 15 * time.Minute
	verifyLimit  = 15 * time.Minute
	recordLimit  = 2 * time.Minute
	undoLimit    = time.Minute
	pipGrace     = 30 * time.Second // time for the node to stop a hanging pip and report it
)

// within is a step's time limit after --timeout. --timeout replaces the limits of long steps
// (installLimit or more) and caps the shorter ones.
func (d *Deployment) within(usual time.Duration) time.Duration {
	if given := d.opt.Timeout; given > 0 && (usual >= installLimit || usual > given) {
		return given
	}
	return usual
}

// walk takes a node through steps. It also handles the progress display, durations, time limits,
// the log and the undo after a failure, so that a step does not have to.
func (d *Deployment) walk(ctx context.Context, u *nodeRun, steps []step) error {
	defer func() { u.log.settle(u.status == Failed || u.state != nil && len(u.state.broken) > 0) }()
	for _, s := range steps {
		if s.agent && u.session == nil {
			continue
		}
		u.step = s.name
		d.progress.step(u, s.name)
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
				u.status = Skipped // the run was interrupted; the node did not fail
			case errors.Is(err, remote.ErrSudo): // stays Failed: the node was reached
			case s.name == "connect", surveying && errors.Is(err, remote.ErrLost):
				u.status = Unreachable
			}
			d.undoNode(ctx, u)
			return err
		}
	}
	if u.plan.Action != "" {
		u.status = OK
	}
	if u.session != nil {
		u.session.end()
		u.session = nil
	}
	return nil
}

// bound returns ctx with a time limit; a limit of 0 means none.
func bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, notWithin(limit))
}

func notWithin(limit time.Duration) error {
	return hint.With(fmt.Errorf("not done within %s", ui.Duration(limit)), "what is slow there, its network or its disk? --timeout gives it longer")
}

// Report returns the report of the run so far.
func (d *Deployment) Report() *Report {
	r := &Report{Command: d.opt.Command, Wheels: []WheelRef{}, Nodes: make([]NodeReport, len(d.units)), given: d.given}
	seen := map[string]bool{}
	for i, u := range d.units {
		n := NodeReport{
			Name: u.host.Name, Status: u.status, Step: u.step, Changed: u.changed, Along: names(u.plan.Along), Before: u.before.plain(), After: u.after.plain(), Unseen: u.unseen || u.facts == nil,
			Seconds: u.seconds, Sent: u.sent, Differs: []string{}, Remarks: []string{}, Serial: u.serial, Log: u.log.path(),
			unfit: u.plan.Unfit, cause: cause.Of(u.err),
		}
		if u.state != nil {
			u.state.tell(&n)
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

// maxError bounds the error text of a node in the report, in bytes.
const maxError = 4 << 10

// ref names the wheel planned for a node, or else the wheel found on it; nil if there is neither.
func (u *nodeRun) ref() *WheelRef {
	if w := u.plan.Wheel; w != nil {
		return w.ref()
	}
	return u.runs
}

// public returns a version without its local part.
func public(version string) string {
	v, _, _ := strings.Cut(version, "+")
	return v
}
