package check

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
)

// Options are what a check is made with, as plain resolved values.
type Options struct {
	Hosts      []inventory.Host // each node once
	KnownHosts string           // "" means the user's own
	Dialer     remote.Dialer    // closed by Run, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int // nodes connected to at once; 0 means fanout.DefaultForks
	// ConnectWait is how long the dialer may have a node wait in a queue.
	ConnectWait time.Duration
	// Asks is a dialer that may ask a person, who is not to be hurried.
	Asks bool

	Master  string   // address of the first node for the others; "" is that of the inventory
	Port    int      // that the first node is to listen on
	JAX     bool     // the job is one of JAX: it sums by JAX
	SSH     bool     // the launcher logs in from the first node on the others
	Data    []string // folders and files that all nodes are to see
	Output  []string // folders that all nodes are to write to
	MinFree int64    // bytes
	Skip    []Kind
	Timeout time.Duration // of each step of a collective; 0: the usual
}

// The time that things may take at most.
const (
	connectLimit = 2 * time.Minute
	probeLimit   = 2 * time.Minute
	lookLimit    = 20 * time.Second // what a node looks at by itself: its disks, its name server, nvidia-smi
	askLimit     = time.Minute      // an order that takes a moment
	toolsLimit   = 3 * time.Minute  // NVIDIA's own tests
	stageLimit   = 2 * time.Minute  // each step of a collective
)

// run is one check.
type run struct {
	opt     Options
	id      string
	members []*member
	pairs   Pairs
	sums    []Sum
	notes   []Note // what was not checked, and why
	clock   string // a word about this machine's own clock
	events  chan event
}

// member is one node on its way through a check.
type member struct {
	host    inventory.Host
	index   int
	word    string // what callers of it know
	conn    remote.Conn
	runner  remote.Runner
	agent   *agent
	facts   *node.Facts
	seen    survey
	route   *routed
	skew    *Skew
	seconds float64

	status   Status
	err      error
	findings []Finding
}

// find notes something about a node.
func (m *member) find(kind Kind, level Level, tip, format string, args ...any) {
	text := ui.OneLine(fmt.Sprintf(format, args...)) // what a node says must not look like lines of ours
	m.findings = append(m.findings, Finding{kind, level, text, ui.Clean(tip)})
}

// has reports whether an error of one of these kinds was found.
func (m *member) has(kinds ...Kind) bool {
	return slices.ContainsFunc(m.findings, func(f Finding) bool { return f.Level == Error && slices.Contains(kinds, f.Check) })
}

// Run checks the nodes. The report is complete as far as it goes also when ctx ends on
// the way.
func Run(ctx context.Context, opt Options) *Report {
	r := &run{opt: opt, id: strings.ToLower(rand.Text()[:12]), events: make(chan event, 4096)}
	for i, h := range opt.Hosts {
		r.members = append(r.members, &member{host: h, index: i, word: strings.ToLower(rand.Text() + rand.Text())[:32], status: Skipped})
	}
	defer r.close()
	for _, p := range []struct {
		kind Kind
		do   func(context.Context)
	}{
		{Connect, r.reach},          // connect, the facts, the program, what it finds by itself
		{Versions, r.versions},      //
		{Variables, r.variables},    //
		{Devices, r.devices},        // how many, how they are, NVIDIA's own tests
		{Disk, r.disk},              //
		{Clock, r.clocks},           // against this machine, within what an answer takes
		{Names, r.names},            // the master's address, the node's own name
		{Interface, r.interfaces},   // by which the master is reached
		{Port, r.port},              // free on the master; it listens there from now on
		{Network, r.network},        // each node calls each other one
		{SSH, r.ssh},                // from the first to the others
		{Paths, r.paths},            // data and output
		{Collective, r.collectives}, // all sum
	} {
		if slices.Contains(opt.Skip, p.kind) || p.kind == SSH && !opt.SSH {
			continue
		}
		p.do(ctx)
		if ctx.Err() != nil || len(r.live()) == 0 {
			break
		}
	}
	for _, kind := range opt.Skip {
		r.note(kind, "left out by --skip")
	}
	return r.report()
}

// note says that something was not checked.
func (r *run) note(kind Kind, format string, args ...any) {
	r.notes = append(r.notes, Note{kind, ui.OneLine(fmt.Sprintf(format, args...))})
}

// close ends the programs on the nodes, all at once, and the connections.
func (r *run) close() {
	fanout.Run(context.Background(), r.members, fanout.Options{Forks: len(r.members)}, func(_ context.Context, m *member) (struct{}, error) {
		if m.agent != nil {
			m.agent.end()
		}
		if m.conn != nil {
			m.conn.Close() //nolint:errcheck // nothing runs there any more
		}
		return struct{}{}, nil
	})
	if c, ok := r.opt.Dialer.(io.Closer); ok {
		c.Close() //nolint:errcheck // likewise
	}
}

// live are the nodes that answer.
func (r *run) live() []*member {
	return slices.DeleteFunc(slices.Clone(r.members), func(m *member) bool { return m.agent == nil || m.status != OK })
}

// first is the node where all meet.
func (r *run) first() *member { return r.members[0] }

// master is how the others call it.
func (r *run) master() string {
	if r.opt.Master != "" {
		return r.opt.Master
	}
	return r.first().host.Address
}

// reach connects to all nodes, learns the facts and starts the program on each.
func (r *run) reach(ctx context.Context) {
	bar := r.opt.Reporter.Bar("reaching", int64(len(r.members)))
	defer bar.Close()
	opt := fanout.Options{Forks: r.opt.Forks}
	if r.opt.ConnectWait > 0 { // connecting can be a wait in a queue
		opt.Forks = len(r.members)
	}
	results := fanout.Run(ctx, r.members, opt, func(ctx context.Context, m *member) (struct{}, error) {
		defer bar.Add(1)
		begin := time.Now()
		err := r.open(ctx, m)
		m.seconds = time.Since(begin).Seconds()
		return struct{}{}, err
	})
	for i, result := range results {
		m := r.members[i]
		if m.err = result.Err; m.err == nil {
			m.status = OK
			continue
		}
		if ctx.Err() != nil || !result.Started {
			continue // nothing was wrong with the node
		}
		if m.status != Failed {
			m.status = Unreachable
		}
		m.find(Connect, Error, hint.Of(m.err), "%v", m.err)
	}
}

// open is the way to one node.
func (r *run) open(ctx context.Context, m *member) error {
	target, err := hosts.Target(m.host, r.opt.KnownHosts)
	if err != nil {
		return err
	}
	limit := connectLimit + r.opt.ConnectWait
	if r.opt.Asks {
		limit = 0
	}
	err = within(ctx, limit, func(ctx context.Context) error {
		m.conn, err = r.opt.Dialer.Dial(ctx, target)
		return err
	})
	if err != nil {
		if errors.Is(err, remote.ErrSudo) {
			m.status = Failed // it was reached
		}
		return err
	}
	m.runner = hosts.WithEnv(hosts.Runner(m.conn, m.host), map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}) // nothing is left there
	err = within(ctx, probeLimit, func(ctx context.Context) error {
		facts, err := node.Probe(ctx, m.runner, node.ProbeOptions{Python: m.host.Python})
		m.facts = &facts
		return err
	})
	if err != nil {
		m.facts = nil
		return failedUnlessLost(m, err)
	}
	if i := slices.IndexFunc(m.facts.Missing, func(s string) bool { return strings.HasPrefix(s, "python") }); i >= 0 {
		m.status = Failed
		return hint.With(fmt.Errorf("no Python that can be asked: missing %s", m.facts.Missing[i]), "what is at %s? The inventory says which Python: key python", m.host.Python)
	}
	req := agentRequest{
		LimitS: lookLimit.Seconds(), Run: r.id, Word: m.word, First: m == r.first(), Master: r.master(),
		Devices: !slices.Contains(r.opt.Skip, Devices), Data: r.wanted(r.opt.Data), Output: r.wanted(r.opt.Output),
	}
	m.agent = startAgent(ctx, m.runner, m.host.Python, req, func(e event) {
		e.from = m
		r.hear(e)
	})
	err = within(ctx, lookLimit+askLimit, func(ctx context.Context) error { return m.agent.first(ctx, &m.seen) })
	if err != nil {
		return failedUnlessLost(m, fmt.Errorf("dsbuild's program there: %w", err))
	}
	return nil
}

// failedUnlessLost says that a node was reached, unless the connection broke.
func failedUnlessLost(m *member, err error) error {
	if !errors.Is(err, remote.ErrLost) {
		m.status = Failed
	}
	return err
}

// wanted are paths to look at; none where that is left out.
func (r *run) wanted(paths []string) []string {
	if slices.Contains(r.opt.Skip, Paths) {
		return []string{}
	}
	return append([]string{}, paths...) // not null
}

// hear takes what processes of collectives tell. Nobody may be waiting.
func (r *run) hear(e event) {
	select {
	case r.events <- e:
	default:
	}
}

// all has a function of every one of these nodes done at once. One whose answer does
// not come has failed, and is asked nothing more.
func (r *run) all(ctx context.Context, kind Kind, members []*member, limit time.Duration, do func(context.Context, *member) error) {
	results := fanout.Run(ctx, members, fanout.Options{Forks: max(len(members), 1)}, func(ctx context.Context, m *member) (struct{}, error) {
		return struct{}{}, within(ctx, limit, func(ctx context.Context) error { return do(ctx, m) })
	})
	for i, result := range results {
		if result.Err != nil && ctx.Err() == nil {
			members[i].status = Failed
			members[i].find(kind, Error, hint.Of(result.Err), "%v", result.Err)
		}
	}
}

// within does something with a limit; 0 is none.
func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	if limit == 0 {
		return do(ctx)
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, hint.With(fmt.Errorf("no answer within %s", ui.Duration(limit)), "what is slow there, its network or its disk?"))
	defer cancel()
	err := do(limited)
	if err != nil && ctx.Err() == nil && errors.Is(err, limited.Err()) {
		err = context.Cause(limited)
	}
	return err
}
