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

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
)

// Options are the resolved settings of a check.
type Options struct {
	Hosts      []inventory.Host // each node once
	KnownHosts string           // "" means the user's own
	Dialer     remote.Dialer    // closed by Run, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int // nodes connected to at once; 0 means fanout.DefaultForks
	// ConnectWait is the longest time that a node may wait in the dialer's queue.
	ConnectWait time.Duration
	// Asks: the dialer may ask a person, so connecting has no time limit.
	Asks bool

	Master  string   // address of the first node for the others; "" is that of the inventory
	Port    int      // of the first node
	JAX     bool     // the job uses JAX, and so does the collective
	SSH     bool     // the launcher on the first node logs in on the others
	Data    []string // folders and files that all nodes must see
	Output  []string // folders that all nodes must write to
	MinFree int64    // bytes
	Skip    []Kind
	Timeout time.Duration // of each stage of a collective; 0: the default
}

// Time limits.
const (
	connectLimit = 2 * time.Minute
	probeLimit   = 2 * time.Minute
	lookLimit    = 20 * time.Second // the survey: disks, name server, nvidia-smi
	askLimit     = time.Minute      // a short order
	toolsLimit   = 3 * time.Minute  // NVIDIA's own tests
	stageLimit   = 2 * time.Minute  // each stage of a collective
)

// run is one check.
type run struct {
	opt     Options
	id      string
	members []*member
	pairs   Pairs
	sums    []Sum
	notes   []Note // skipped checks with reasons
	events  chan event
}

// member is one node of a check.
type member struct {
	host    inventory.Host
	index   int
	word    string // the password of its callers
	conn    remote.Conn
	runner  remote.Runner
	agent   *agent.Session
	facts   *node.Facts
	seen    survey
	route   *routed
	skew    *Skew
	seconds float64

	status   Status
	err      error
	findings []Finding
}

// addFinding adds a finding about a node.
func (m *member) addFinding(kind Kind, level Level, tip, format string, args ...any) {
	said := cause.Messagef(format, args...)
	text := ui.OneLine(said.Text) // a node's words must not imitate lines of dsbuild
	m.findings = append(m.findings, Finding{kind, level, text, ui.Clean(tip), said.Cause})
}

// hasError reports whether the node has an error of one of these kinds.
func (m *member) hasError(kinds ...Kind) bool {
	return slices.ContainsFunc(m.findings, func(f Finding) bool { return f.Level == Error && slices.Contains(kinds, f.Check) })
}

// Run checks the nodes. If ctx ends early, the report covers the finished checks.
func Run(ctx context.Context, opt Options) *Report {
	r := &run{opt: opt, id: strings.ToLower(rand.Text()[:12]), events: make(chan event, 4096)}
	for i, h := range opt.Hosts {
		r.members = append(r.members, &member{host: h, index: i, word: strings.ToLower(rand.Text() + rand.Text())[:32], status: Skipped})
	}
	defer r.closeAll()
	for _, p := range []struct {
		kind Kind
		do   func(context.Context)
	}{
		{Connect, r.connectAll},                       // connection, facts, program, survey
		{Versions, r.checkVersions},                   //
		{Variables, r.checkVariables},                 //
		{Devices, r.checkDevices},                     // count, health, NVIDIA's own tests
		{Disk, r.checkDisks},                          //
		{Clock, r.checkClocks},                        // against this machine's, within the time of an answer
		{Names, addressChecks{r}.checkNames},          // the master's address, the node's own name
		{Interface, addressChecks{r}.checkInterfaces}, // towards the master
		{Port, networkChecks{r}.checkPort},            // free on the master; the agent listens there from now on
		{Network, networkChecks{r}.checkNetwork},      // each node calls every other one
		{SSH, networkChecks{r}.checkSSH},              // from the first to the others
		{Paths, r.checkPaths},                         // data and output
		{Collective, r.checkCollectives},              // all sum
	} {
		if slices.Contains(opt.Skip, p.kind) || p.kind == SSH && !opt.SSH {
			continue
		}
		p.do(ctx)
		if ctx.Err() != nil || len(r.liveMembers()) == 0 {
			break
		}
	}
	for _, kind := range opt.Skip {
		r.addNote(kind, "left out by --skip")
	}
	return r.buildReport()
}

// addNote records a check that was not made.
func (r *run) addNote(kind Kind, format string, args ...any) {
	r.notes = append(r.notes, Note{kind, ui.OneLine(fmt.Sprintf(format, args...))})
}

// closeAll ends the programs on all nodes at once, and closes the connections.
func (r *run) closeAll() {
	fanout.Run(context.Background(), r.members, fanout.Options{Forks: len(r.members)}, func(_ context.Context, m *member) (struct{}, error) {
		if m.agent != nil {
			m.agent.End()
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

// liveMembers are the nodes that still answer.
func (r *run) liveMembers() []*member {
	return slices.DeleteFunc(slices.Clone(r.members), func(m *member) bool { return m.agent == nil || m.status != OK })
}

// firstMember is the master.
func (r *run) firstMember() *member { return r.members[0] }

// masterAddress is the master's address for the others.
func (r *run) masterAddress() string {
	if r.opt.Master != "" {
		return r.opt.Master
	}
	return r.firstMember().host.Address
}

// hasPeers reports whether there is more than one node.
func (r *run) hasPeers() bool { return len(r.members) > 1 }

// connectAll connects to all nodes, probes them and starts the agent on each.
func (r *run) connectAll(ctx context.Context) {
	bar := r.opt.Reporter.Bar("reaching", int64(len(r.members)))
	defer bar.Close()
	opt := fanout.Options{Forks: r.opt.Forks}
	if r.opt.ConnectWait > 0 { // a connection may wait in a queue
		opt.Forks = len(r.members)
	}
	results := fanout.Run(ctx, r.members, opt, func(ctx context.Context, m *member) (struct{}, error) {
		defer bar.Add(1)
		begin := time.Now()
		err := r.openMember(ctx, m)
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
			continue // the node is not at fault
		}
		if m.status != Failed {
			m.status = Unreachable
		}
		m.addFinding(Connect, Error, hint.Of(m.err), "%v", m.err)
	}
}

// openMember connects to one node, probes it and starts its agent.
func (r *run) openMember(ctx context.Context, m *member) error {
	target, err := hosts.Target(m.host, r.opt.KnownHosts)
	if err != nil {
		return err
	}
	limit := connectLimit + r.opt.ConnectWait
	if r.opt.Asks {
		limit = 0
	}
	err = withTimeout(ctx, limit, func(ctx context.Context) error {
		m.conn, err = r.opt.Dialer.Dial(ctx, target)
		return err
	})
	if err != nil {
		if errors.Is(err, remote.ErrSudo) {
			m.status = Failed // dsbuild reached it
		}
		return err
	}
	m.runner = hosts.WithEnv(hosts.Runner(m.conn, m.host), map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}) // leaves no files there
	err = withTimeout(ctx, probeLimit, func(ctx context.Context) error {
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
		return hint.With(fmt.Errorf("no usable Python: missing %s", m.facts.Missing[i]), "check %s on the node; the inventory's key python names the interpreter", m.host.Python)
	}
	req := agentRequest{
		LimitS: lookLimit.Seconds(), Run: r.id, Word: m.word, First: m == r.firstMember(), Master: r.masterAddress(),
		Devices: !slices.Contains(r.opt.Skip, Devices), Data: r.pathsToCheck(r.opt.Data), Output: r.pathsToCheck(r.opt.Output),
	}
	err = withTimeout(ctx, lookLimit+askLimit, func(ctx context.Context) error {
		m.agent, err = startAgent(ctx, m.runner, m.host.Python, req, func(e event) {
			e.from = m
			r.queueEvent(e)
		}, &m.seen)
		return err
	})
	if err != nil {
		return failedUnlessLost(m, fmt.Errorf("the survey of the node: %w", err))
	}
	return nil
}

// failedUnlessLost marks the node as failed, unless the connection broke.
func failedUnlessLost(m *member, err error) error {
	if !errors.Is(err, remote.ErrLost) {
		m.status = Failed
	}
	return err
}

// pathsToCheck returns the paths, or none if --skip leaves them out.
func (r *run) pathsToCheck(paths []string) []string {
	if slices.Contains(r.opt.Skip, Paths) {
		return []string{}
	}
	return append([]string{}, paths...) // not null
}

// queueEvent queues an event of a collective. It drops the event if nobody reads.
func (r *run) queueEvent(e event) {
	select {
	case r.events <- e:
	default:
	}
}

// askAll calls do for all these nodes at once. A node without an answer has failed, and
// gets no further orders.
func (r *run) askAll(ctx context.Context, kind Kind, members []*member, limit time.Duration, do func(context.Context, *member) error) {
	results := fanout.Run(ctx, members, fanout.Options{Forks: max(len(members), 1)}, func(ctx context.Context, m *member) (struct{}, error) {
		return struct{}{}, withTimeout(ctx, limit, func(ctx context.Context) error { return do(ctx, m) })
	})
	for i, result := range results {
		if result.Err != nil && ctx.Err() == nil {
			members[i].status = Failed
			members[i].addFinding(kind, Error, hint.Of(result.Err), "%v", result.Err)
		}
	}
}

// withTimeout calls do with a time limit; 0 is no limit.
func withTimeout(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	if limit == 0 {
		return do(ctx)
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, hint.With(fmt.Errorf("no answer within %s", ui.Duration(limit)), "check the network and the disk there"))
	defer cancel()
	err := do(limited)
	if err != nil && ctx.Err() == nil && errors.Is(err, limited.Err()) {
		err = context.Cause(limited)
	}
	return err
}
