package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Sum is one all_reduce over nodes.
type Sum struct {
	Backend   string   `json:"backend"` // gloo or nccl by torch; jax (on CPUs) or jax-gpu
	ZeRO      bool     `json:"-"`       // with a step of ZeRO
	OK        bool     `json:"ok"`      // all processes got the right sums
	Nodes     []string `json:"nodes"`
	Without   []string `json:"without"` // nodes excluded because of earlier findings
	Processes int      `json:"processes"`
	Bytes     int64    `json:"bytes"`
	Seconds   float64  `json:"seconds"`          // of one sum of Bytes, on the slowest process
	Latency   float64  `json:"latency"`          // of one sum of one number, on the slowest process
	Bandwidth float64  `json:"bytes_per_second"` // bus bandwidth as in nccl-tests (busbw)
	Error     string   `json:"error"`
}

// Sizes of the summed buffers. They fit all processes of a node at the same time.
const (
	glooBytes = 16 << 20
	ncclBytes = 64 << 20
)

// stages are the stages of a process of a collective, in order, each with the message
// for a process that does not reach it.
func stages(jax, zero bool) []stage {
	if jax {
		return []stage{
			{"imported", "JAX was not imported", "run python -c 'import jax' on the node, to check that JAX is installed and how long the import takes"},
			{"met", "cannot reach the coordinator's port", "open the master's port to all nodes in firewalls"},
			{"grouped", "did not receive its devices or the other nodes' devices", "run python -c 'import jax; print(jax.devices())' on the node"},
			{"joined", "did not complete the first all-reduce", "check the network for lost packets; on GPUs, set NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME"},
			{"summed", "did not complete an all-reduce", "check for lost packets, different MTUs and hanging GPUs: dmesg on the node, NCCL_DEBUG=INFO"},
			{"ended", "did not disconnect from the other nodes", "check the other nodes"},
		}
	}
	all := []stage{
		{"imported", "torch was not imported", "run python -c 'import torch' on the node, to see how long it takes"},
		{"met", "cannot reach the master's port", "open the master's port to all nodes in firewalls"},
		{
			"grouped", "did not connect to the other nodes", "check the interface: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; " +
				"for more output, set TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO",
		},
		{"joined", "did not complete the first all-reduce", "check the network for lost packets; for more output, set NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL"},
		{"summed", "did not complete an all-reduce", "check for lost packets, different MTUs and hanging GPUs: dmesg on the node, NCCL_DEBUG=INFO"},
		{"stepped", "did not complete a ZeRO step", "run ds_report on the node"},
		{"ended", "did not disconnect from the other nodes", "check the other nodes"},
	}
	if !zero {
		all = slices.DeleteFunc(all, func(s stage) bool { return s.name == "stepped" })
	}
	return all
}

type stage struct{ name, lack, try string }

// checkCollectives runs an all_reduce over the nodes: first by gloo with one process on
// each, then, if all have GPUs, by NCCL with one process per GPU. For a JAX job both use
// JAX. Nodes with blocking errors are excluded and listed.
func (r *run) checkCollectives(ctx context.Context) {
	onCPU, onGPU := "gloo", "nccl"
	if r.opt.JAX {
		onCPU, onGPU = "jax", "jax-gpu"
	}
	for _, m := range r.liveMembers() {
		if m.facts.Torch == "" && !r.opt.JAX {
			m.addFinding(Collective, Error, "install torch on the node, or skip this check: --skip collective",
				"torch is not installed, but required for all-reduce")
		}
	}
	team := r.eligibleMembers()
	if len(team) == 0 || r.hasPeers() && len(team) < 2 {
		r.addNotChecked(Collective, "fewer than two nodes have no blocking errors")
		return
	}
	gpus := func(m *member) int {
		n := len(m.facts.GPUs)
		if v := m.visibleGPUs(); v >= 0 {
			n = min(n, v)
		}
		return n
	}
	withGPUs := func() []*member {
		return slices.DeleteFunc(r.eligibleMembers(), func(m *member) bool {
			return gpus(m) == 0 || m.facts.GPUsHidden || m.facts.TorchCUDA == "" && !r.opt.JAX ||
				m.hasError(Devices) || len(m.busyProcesses()) > 0
		})
	}
	// ZeRO takes its step on GPUs if all nodes have them.
	onlyCPU := Sum{Backend: onCPU, ZeRO: r.opt.ZeRO && len(withGPUs()) < len(team), Bytes: glooBytes}
	right := r.runCollective(ctx, onlyCPU, team, func(*member) int { return 1 })
	if !right || ctx.Err() != nil {
		return
	}
	with := withGPUs()
	switch {
	case len(with) == 0:
	case slices.ContainsFunc(with, (*member).hasMIG):
		r.addNotChecked(Collective, "%s: MIG divides GPUs of a node", onGPU)
	case len(with) < len(team):
		r.addNotChecked(Collective, "%s: not all nodes have idle GPUs without errors", onGPU)
	default:
		r.runCollective(ctx, Sum{Backend: onGPU, ZeRO: r.opt.ZeRO, Bytes: ncclBytes}, with, gpus)
	}
}

// eligibleMembers returns the nodes without blocking errors, which would make all others hang.
func (r *run) eligibleMembers() []*member {
	return slices.DeleteFunc(r.liveMembers(), func(m *member) bool {
		return m.hasError(Connect, Versions, Names, Interface, Network, Collective) || m.route == nil && r.hasNetwork()
	})
}

// runCollective runs the all_reduce s, with local(m) processes on each node. It reports
// whether all sums were right.
func (r *run) runCollective(ctx context.Context, s Sum, team []*member, local func(*member) int) bool {
	s.Without = []string{}
	for _, m := range r.members {
		if !slices.Contains(team, m) {
			s.Without = append(s.Without, m.Host.Name)
		}
	}
	t := &teamwork{run: r, team: team, step: stageLimit, zero: s.ZeRO}
	if r.opt.StageTimeout > 0 {
		t.step = r.opt.StageTimeout
	}
	for _, m := range team {
		s.Nodes = append(s.Nodes, m.Host.Name)
		t.base = append(t.base, t.world)
		t.world += local(m)
		for range local(m) {
			t.owner = append(t.owner, m)
		}
	}
	t.reached, t.failed = make([]int, t.world), make([]string, t.world)
	s.Processes = t.world
	what := "all-reduce"
	if s.ZeRO {
		what = "all-reduce and ZeRO step"
	}
	work := r.opt.Reporter.Step(fmt.Sprintf("%s with %s, %s on %s",
		what, s.Backend, ui.Count(t.world, "process"), ui.Count(len(team), "node")))
	err := t.runStages(ctx, local, &s)
	if err != nil {
		s.Error = ui.OneLine(err.Error())
		work.End(ui.Failed, "")
	} else {
		s.OK = true
		work.End(ui.Done, "")
	}
	r.sums = append(r.sums, s)
	return err == nil
}

// eventQueue keeps the events of a collective until they are read. It drops events only of a node
// that sends more than all its processes can.
type eventQueue struct {
	mutex  sync.Mutex
	events []event
	sent   map[*member]int
	filled chan struct{} // holds a value while there are events
}

// eventsOfNode is far above the events of a node with a process on each of 16 GPUs.
const eventsOfNode = 1000

func newEventQueue() *eventQueue {
	return &eventQueue{sent: map[*member]int{}, filled: make(chan struct{}, 1)}
}

func (q *eventQueue) add(e event) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.sent[e.from] == eventsOfNode {
		return
	}
	q.sent[e.from]++
	q.events = append(q.events, e)
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take returns the queued events.
func (q *eventQueue) take() []event {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	events := q.events
	q.events = nil
	return events
}

func (q *eventQueue) clear() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.events = nil
	clear(q.sent)
}

// teamwork is one running collective.
type teamwork struct {
	*run
	team    []*member
	step    time.Duration // time limit of each stage
	zero    bool          // with a step of ZeRO
	world   int
	base    []int     // the first rank of each of team
	owner   []*member // the node of each rank
	reached []int     // by rank: the number of stages
	failed  []string  // by rank: the reason
	results []event
}

// stages returns the stages of this collective.
func (t *teamwork) stages() []stage { return stages(t.opt.JAX, t.zero) }

// runStages runs the stages on all processes.
func (t *teamwork) runStages(ctx context.Context, local func(*member) int, s *Sum) error {
	t.events.clear() // of an earlier collective
	port, err := t.choosePort(ctx)
	if err != nil {
		return err
	}
	// End the remaining processes, also after the end of ctx.
	defer t.askTeam(context.WithoutCancel(ctx), func(int, *member) agent.Request { return agent.Request{"do": "stop"} })
	master := t.team[0]
	address := t.masterAddress()
	if master != t.firstMember() || t.firstMember().hasError(Port) {
		address = "127.0.0.1"
		if master.route != nil {
			address = master.route.Address
		}
	}
	t.askTeam(ctx, func(i int, m *member) agent.Request {
		return agent.Request{
			"do": "collect", "backend": s.Backend, "zero": s.ZeRO, "rank": t.base[i], "local": local(m), "world": t.world,
			"master": address, "port": port, "limit_s": t.step.Seconds(), "bytes": s.Bytes,
		}
	})
	for at, stage := range t.stages() {
		if err := t.awaitStage(ctx, at+1, stage); err != nil {
			return err
		}
		if stage.name == "imported" || stage.name == "ended" {
			t.askTeam(ctx, func(int, *member) agent.Request { return agent.Request{"do": "go"} })
		}
	}
	t.measure(s)
	return nil
}

// Limits on the duration of a sum that a node may report. They keep the report short and its numbers
// finite, as JSON requires.
const (
	longestSum  = 24 * 3600.0
	shortestSum = 1e-9
)

// measure takes the times of the slowest processes, and computes the bandwidth.
func (t *teamwork) measure(s *Sum) {
	for _, e := range t.results {
		s.Seconds, s.Latency = max(s.Seconds, min(e.Seconds, longestSum)), max(s.Latency, min(e.Latency, longestSum))
	}
	if s.Seconds > shortestSum && t.world > 1 {
		s.Bandwidth = 2 * float64(t.world-1) / float64(t.world) * float64(s.Bytes) / s.Seconds
	}
}

// choosePort finds the port of the rendezvous: the job's port, unless it is taken or the
// master does not take part.
func (t *teamwork) choosePort(ctx context.Context) (int, error) {
	m := t.team[0]
	err := m.agent.Call(ctx, agent.Request{"do": "close", "port": t.opt.Port}, nil)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", m.Host.Name, err)
	}
	if m == t.firstMember() && !m.hasError(Port) {
		return t.opt.Port, nil
	}
	var got listening
	if err := m.agent.Call(ctx, agent.Request{"do": "port", "port": 0}, &got); err != nil {
		return 0, fmt.Errorf("%s: %w", m.Host.Name, err)
	}
	err = m.agent.Call(ctx, agent.Request{"do": "close", "port": got.Port}, nil)
	return got.Port, err
}

// askTeam sends a request to the whole team.
func (t *teamwork) askTeam(ctx context.Context, order func(int, *member) agent.Request) {
	t.askAll(ctx, Collective, t.team, askLimit, func(ctx context.Context, m *member) error {
		return m.agent.Call(ctx, order(slices.Index(t.team, m), m), nil)
	})
}

// awaitStage waits until every process has finished a stage.
func (t *teamwork) awaitStage(ctx context.Context, through int, s stage) error {
	limit := t.step
	if s.name == "imported" && t.opt.StageTimeout == 0 {
		limit = importLimit // many nodes may import from one file server
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for slices.Min(t.reached) < through {
		select {
		case <-t.events.filled:
			if t.handleEvents() {
				t.collectFailures(ctx)
				return t.findCulprits(through, s, 0)
			}
		case <-tick.C: // a node may be lost with its processes
			if slices.ContainsFunc(t.team, func(m *member) bool { return m.agent.Err() != nil || m.Status != report.OK }) {
				return t.findCulprits(through, s, 0)
			}
		case <-late.C:
			t.accuseSilent(ctx)
			return t.findCulprits(through, s, limit)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// importLimit is the time limit of the import of torch or JAX.
const importLimit = 5 * time.Minute

// quietTime is the wait for further failures after the first: a failed process makes
// others fail, and their reports may arrive first.
const quietTime = 2 * time.Second

func (t *teamwork) collectFailures(ctx context.Context) {
	end := time.NewTimer(quietTime)
	defer end.Stop()
	for {
		select {
		case <-t.events.filled:
			t.handleEvents()
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// handleEvents records the queued events. It reports whether a process failed.
func (t *teamwork) handleEvents() (failed bool) {
	for _, e := range t.events.take() {
		failed = t.handleEvent(e) || failed
	}
	return failed
}

// handleEvent records an event of a process. It reports whether the process failed. It
// ignores a node's events about processes of another node.
func (t *teamwork) handleEvent(e event) (failed bool) {
	if e.Rank < 0 || e.Rank >= t.world || t.owner[e.Rank] != e.from {
		return false
	}
	at := slices.IndexFunc(t.stages(), func(s stage) bool { return s.name == e.Stage })
	switch {
	case at >= 0:
		t.reached[e.Rank] = max(t.reached[e.Rank], at+1)
		if e.Stage == "summed" {
			t.results = append(t.results, e)
		}
		return false
	case t.failed[e.Rank] == "":
		t.failed[e.Rank] = "process exited"
		if e.Error != "" {
			t.failed[e.Rank] = node.NewNodeError(e.Error).Error()
		}
	}
	return true
}

// findCulprits reports the nodes that block the others: lost nodes, nodes whose processes
// failed at the earliest stage, or the slowest nodes.
func (t *teamwork) findCulprits(through int, s stage, waited time.Duration) error {
	named := []string{}
	accuse := func(m *member, tip, format string, args ...any) {
		if !slices.Contains(named, m.Host.Name) {
			m.addFinding(Collective, Error, tip, format, args...)
			named = append(named, m.Host.Name)
		}
	}
	for _, m := range t.team {
		switch {
		case m.hasError(Collective): // accused before
			named = append(named, m.Host.Name)
		case m.Status != report.OK: // its missing answer is a finding already
			named = append(named, m.Host.Name)
		case m.agent.Err() != nil:
			m.Status = report.Failed
			accuse(m, fault.Hint(m.agent.Err()), "lost during the all-reduce: %v", m.agent.Err())
		}
	}
	if len(named) == 0 {
		t.accuseFailed(accuse)
	}
	if len(named) == 0 {
		least := slices.Min(t.reached)
		for rank, reached := range t.reached {
			if reached == least && least < through {
				st := t.stages()[least]
				accuse(t.owner[rank], st.try, "%s within %s", st.lack, ui.Duration(waited))
			}
		}
	}
	if len(named) == len(t.team) && len(named) > 1 {
		return fmt.Errorf("every node: %s", s.lack)
	}
	return fmt.Errorf("waiting for %s", foldNames(named))
}

// silentAfter is the limit, in seconds, without a heartbeat from a process, which
// sends one every second.
const silentAfter = 5.0

// accuseSilent reports the nodes with hanging processes. The processes that wait for them
// still send heartbeats.
func (t *teamwork) accuseSilent(ctx context.Context) {
	t.askAll(ctx, Collective, t.team, askLimit, func(ctx context.Context, m *member) error {
		var silent [][2]float64
		if err := m.agent.Call(ctx, agent.Request{"do": "silent"}, &silent); err != nil {
			return err
		}
		for _, s := range silent {
			rank := int(s[0])
			own := rank >= 0 && rank < t.world && t.owner[rank] == m
			if own && s[1] > silentAfter && !m.hasError(Collective) {
				m.addFinding(Collective, Error,
					"run ps -o pid,stat,wchan:20,cmd on the node, to see whether the process is stopped, out of memory, or waiting for a disk or GPU",
					"process is hanging: no heartbeat for %s",
					nodeerr.Own(ui.Duration(time.Duration(s[1]*float64(time.Second)))))
			}
		}
		return nil
	})
}

// accuseFailed reports the nodes whose processes failed at the earliest stage. Later
// failures are consequences.
func (t *teamwork) accuseFailed(accuse func(*member, string, string, ...any)) {
	least := -1
	for rank, why := range t.failed {
		if why != "" && (least < 0 || t.reached[rank] < least) {
			least = t.reached[rank]
		}
	}
	for rank, why := range t.failed {
		if why != "" && t.reached[rank] == least {
			st := t.stages()[min(least, len(t.stages())-1)]
			accuse(t.owner[rank], st.try, "%s: %s", st.lack, why)
		}
	}
}
