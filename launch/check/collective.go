package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// Sum is one all_reduce over nodes.
type Sum struct {
	Backend   string   `json:"backend"` // gloo or nccl by torch; jax (on CPUs) or jax-gpu
	OK        bool     `json:"ok"`      // each process got the right sums
	Nodes     []string `json:"nodes"`
	Without   []string `json:"without"` // nodes that could not take part, for what was found before
	Processes int      `json:"processes"`
	Bytes     int64    `json:"bytes"`
	Seconds   float64  `json:"seconds"`          // of one sum of so many bytes, on the slowest
	Latency   float64  `json:"latency"`          // of one sum of one number, on the slowest
	Bandwidth float64  `json:"bytes_per_second"` // on each node's wire, as nccl-tests count it (busbw)
	Error     string   `json:"error"`
}

// What is summed. All processes of a job can do so at the same time.
const (
	glooBytes = 16 << 20
	ncclBytes = 64 << 20
)

// stages are how far a process of a collective comes, in this order. What each of them
// waits for is what a process that gets no further lacks.
func stages(jax bool) []stage {
	if jax {
		return []stage{
			{"imported", "it does not get JAX imported", "python -c 'import jax' there: is it installed, and how long does it take?"},
			{"met", "it does not reach the coordinator's port", "a firewall? The port of the master must be open to all"},
			{"grouped", "it does not get its devices, or not those of the others", "python -c 'import jax; print(jax.devices())' there"},
			{"joined", "it does not get through a first sum", "a network that loses packets? On GPUs: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME"},
			{"summed", "it does not come to the end of a sum", "a network that loses packets, another MTU, a GPU that hangs: dmesg there, NCCL_DEBUG=INFO"},
			{"ended", "it does not part from the others", "what is wrong with the others?"},
		}
	}
	return []stage{
		{"imported", "it does not get torch imported", "python -c 'import torch' there: how long does it take?"},
		{"met", "it does not reach the master's port", "a firewall? The port of the master must be open to all"},
		{"grouped", "it does not get connected with the others", "is it by the right interface? NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; what gloo or NCCL says: TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO"},
		{"joined", "it does not get through a first sum", "a network that loses packets? NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL"},
		{"summed", "it does not come to the end of a sum", "a network that loses packets, another MTU, a GPU that hangs: dmesg there, NCCL_DEBUG=INFO"},
		{"ended", "it does not part from the others", "what is wrong with the others?"},
	}
}

type stage struct{ name, lack, try string }

// hinders are what would make a node hang all others.
func hinders() []Kind {
	return []Kind{Connect, Versions, Names, Interface, Network, Collective}
}

// collectives has the nodes sum: by gloo, one process on each, and then, where all have
// GPUs, by NCCL, one process for each GPU; for a JAX job both by JAX. Nodes of which is
// known that they would hold up the others are left out, and named.
func (r *run) collectives(ctx context.Context) {
	onCPU, onGPU := "gloo", "nccl"
	if r.opt.JAX {
		onCPU, onGPU = "jax", "jax-gpu"
	}
	for _, m := range r.live() {
		if m.facts.Torch == "" && !r.opt.JAX {
			m.find(Collective, Error, "install torch there, or leave this out: --skip collective", "it has no torch to sum with")
		}
	}
	team := r.team()
	if len(team) == 0 || r.several() && len(team) < 2 {
		r.note(Collective, "fewer than two nodes are left of which nothing was found before that would hold up the others")
		return
	}
	right := r.sum(ctx, onCPU, team, func(*member) int { return 1 }, glooBytes)
	if !right || ctx.Err() != nil {
		return
	}
	gpus := func(m *member) int {
		n := len(m.facts.GPUs)
		if v := m.visible(); v >= 0 {
			n = min(n, v)
		}
		return n
	}
	with := slices.DeleteFunc(r.team(), func(m *member) bool {
		return gpus(m) == 0 || m.facts.GPUsWithheld || m.facts.TorchCUDA == "" && !r.opt.JAX || m.has(Devices) || len(m.busy()) > 0
	})
	switch {
	case len(with) == 0:
	case len(with) < len(team):
		r.note(Collective, "%s: not all nodes have GPUs that are free and without errors", onGPU)
	default:
		r.sum(ctx, onGPU, with, gpus, ncclBytes)
	}
}

// team are the nodes that can take part.
func (r *run) team() []*member {
	return slices.DeleteFunc(r.live(), func(m *member) bool { return m.has(hinders()...) || m.route == nil && r.several() })
}

// outside are the nodes that are not among these.
func (r *run) outside(team []*member) []string {
	names := []string{}
	for _, m := range r.members {
		if !slices.Contains(team, m) {
			names = append(names, m.host.Name)
		}
	}
	return names
}

// sum has nodes sum, each by so many processes; whether all went well.
func (r *run) sum(ctx context.Context, backend string, team []*member, local func(*member) int, bytes int64) bool {
	s := Sum{Backend: backend, Without: r.outside(team), Bytes: bytes}
	t := &teamwork{run: r, team: team, step: stageLimit}
	if r.opt.Timeout > 0 {
		t.step = r.opt.Timeout
	}
	for _, m := range team {
		s.Nodes = append(s.Nodes, m.host.Name)
		t.base = append(t.base, t.world)
		t.world += local(m)
		for range local(m) {
			t.owner = append(t.owner, m)
		}
	}
	t.reached, t.failed = make([]int, t.world), make([]string, t.world)
	s.Processes = t.world
	work := r.opt.Reporter.Step(fmt.Sprintf("all_reduce by %s, %s on %s", backend, countOf(t.world, "process", "processes"), count(len(team), "node")))
	err := t.work(ctx, backend, local, &s)
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

func countOf(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// teamwork is one collective under way.
type teamwork struct {
	*run
	team    []*member
	step    time.Duration // how long each stage may take
	world   int
	base    []int     // the first rank of each of team
	owner   []*member // by rank
	reached []int     // by rank: how many stages
	failed  []string  // by rank: why
	results []event
}

// stages are those of this collective.
func (t *teamwork) stages() []stage { return stages(t.opt.JAX) }

// work takes all processes through the stages.
func (t *teamwork) work(ctx context.Context, backend string, local func(*member) int, s *Sum) error {
	for len(t.events) > 0 { // of one before
		<-t.events
	}
	port, err := t.prepare(ctx)
	if err != nil {
		return err
	}
	defer t.stop(ctx)
	master := t.team[0]
	address := t.master()
	if master != t.first() || t.first().has(Port) {
		address = master.seenAddress()
	}
	t.tell(ctx, "collect", func(i int, m *member) map[string]any {
		return map[string]any{
			"backend": backend, "rank": t.base[i], "local": local(m), "world": t.world, "master": address, "port": port,
			"limit_s": t.step.Seconds(), "bytes": s.Bytes,
		}
	})
	for at, stage := range t.stages() {
		if err := t.await(ctx, at+1, stage); err != nil {
			return err
		}
		if stage.name == "imported" || stage.name == "ended" {
			t.tell(ctx, "go", func(int, *member) map[string]any { return nil })
		}
	}
	for _, e := range t.results {
		s.Seconds, s.Latency = max(s.Seconds, e.Seconds), max(s.Latency, e.Latency)
	}
	if s.Seconds > 0 && t.world > 1 {
		s.Bandwidth = 2 * float64(t.world-1) / float64(t.world) * float64(s.Bytes) / s.Seconds
	}
	return nil
}

// seenAddress is by which others reach a node.
func (m *member) seenAddress() string {
	if m.route != nil {
		return m.route.Address
	}
	return "127.0.0.1"
}

// prepare finds the port where processes meet: that of a job, unless it is taken or
// another node than the master is the first that takes part.
func (t *teamwork) prepare(ctx context.Context) (int, error) {
	m := t.team[0]
	_, _, err := m.agent.ask(ctx, "close", map[string]any{"port": t.opt.Port}, nil)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", m.host.Name, err)
	}
	if m == t.first() && !m.has(Port) {
		return t.opt.Port, nil
	}
	var got listening
	if _, _, err := m.agent.ask(ctx, "port", map[string]any{"port": 0}, &got); err != nil {
		return 0, fmt.Errorf("%s: %w", m.host.Name, err)
	}
	_, _, err = m.agent.ask(ctx, "close", map[string]any{"port": got.Port}, nil)
	return got.Port, err
}

// tell gives all of the team an order.
func (t *teamwork) tell(ctx context.Context, do string, more func(int, *member) map[string]any) {
	t.all(ctx, Collective, t.team, askLimit, func(ctx context.Context, m *member) error {
		_, _, err := m.agent.ask(ctx, do, more(slices.Index(t.team, m), m), nil)
		return err
	})
}

// stop ends what is left of the processes, also when ctx has ended.
func (t *teamwork) stop(ctx context.Context) {
	t.tell(context.WithoutCancel(ctx), "stop", func(int, *member) map[string]any { return nil })
}

// await waits until every process has come through a stage.
func (t *teamwork) await(ctx context.Context, through int, s stage) error {
	limit := t.step
	if s.name == "imported" && t.opt.Timeout == 0 {
		limit = importLimit // from a file server, by many at once
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for t.behind(through) > 0 {
		select {
		case e := <-t.events:
			if t.hears(e) {
				t.settle(ctx)
				return t.blame(through, s, 0)
			}
		case <-tick.C: // a node may be gone, with its processes
			if slices.ContainsFunc(t.team, func(m *member) bool { return m.agent.gone() || m.status != OK }) {
				return t.blame(through, s, 0)
			}
		case <-late.C:
			t.accuseSilent(ctx)
			return t.blame(through, s, limit)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// importLimit is how long torch or JAX may take to be imported.
const importLimit = 5 * time.Minute

// settleTime is how long after the first failure others are listened to: a process
// that fails takes others along, which may be heard first.
const settleTime = 2 * time.Second

func (t *teamwork) settle(ctx context.Context) {
	end := time.NewTimer(settleTime)
	defer end.Stop()
	for {
		select {
		case e := <-t.events:
			t.hears(e)
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// behind counts the processes that are not through a stage.
func (t *teamwork) behind(through int) int {
	n := 0
	for _, reached := range t.reached {
		if reached < through {
			n++
		}
	}
	return n
}

// hears takes what a process told; whether it was of a failure. What a node tells of the
// processes of another does not count.
func (t *teamwork) hears(e event) (failed bool) {
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
		t.failed[e.Rank] = "it ended"
		if e.Error != "" {
			t.failed[e.Rank] = node.Words(e.Error).Error()
		}
	}
	return true
}

// blame names who holds up the others: nodes that are gone, whose processes failed
// at the earliest stage, or that have not come as far as others.
func (t *teamwork) blame(through int, s stage, waited time.Duration) error {
	named := []string{}
	accuse := func(m *member, tip, format string, args ...any) {
		if !slices.Contains(named, m.host.Name) {
			m.find(Collective, Error, tip, format, args...)
			named = append(named, m.host.Name)
		}
	}
	for _, m := range t.team {
		switch {
		case m.has(Collective): // it was accused before
			named = append(named, m.host.Name)
		case m.status != OK: // its answer did not come: that was told
			named = append(named, m.host.Name)
		case m.agent.gone():
			m.status = Failed
			accuse(m, hint.Of(m.agent.err), "it was lost while all summed: %v", m.agent.err)
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
				accuse(t.owner[rank], st.try, "%s, within %s", st.lack, ui.Duration(waited))
			}
		}
	}
	if len(named) == len(t.team) && len(named) > 1 {
		return fmt.Errorf("none of the nodes gets further: %s", strings.Replace(s.lack, "it ", "each ", 1))
	}
	return fmt.Errorf("held up by %s", foldNames(named))
}

// silentAfter is how long nothing may be heard of a process that tells every second.
const silentAfter = 5.0

// accuseSilent names the nodes whose processes do nothing at all any more: others
// wait for them, and say so.
func (t *teamwork) accuseSilent(ctx context.Context) {
	t.all(ctx, Collective, t.team, askLimit, func(ctx context.Context, m *member) error {
		var silent [][2]float64
		if _, _, err := m.agent.ask(ctx, "silent", nil, &silent); err != nil {
			return err
		}
		for _, s := range silent {
			if rank := int(s[0]); rank >= 0 && rank < t.world && t.owner[rank] == m && s[1] > silentAfter && !m.has(Collective) {
				m.find(Collective, Error, "ps -o pid,stat,wchan:20,cmd there: is it stopped, waiting for a disk or a GPU, without memory?", "its process hangs: nothing was heard of it for %s", ui.Duration(time.Duration(s[1]*float64(time.Second))))
			}
		}
		return nil
	})
}

// accuseFailed names the nodes whose processes failed at the earliest stage: others
// fail for they are gone.
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

// gone reports whether an agent has ended.
func (a *agent) gone() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}
