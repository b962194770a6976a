package check

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Options are the resolved settings of a check.
type Options struct {
	fleet.Options // Hosts has each node once

	Master  string   // address of the first node for the others, by default from the inventory
	Port    int      // of the first node
	JAX     bool     // the job uses JAX, and so does the collective
	ZeRO    bool     // after the all-reduce, a step of DeepSpeed's ZeRO
	Data    []string // folders and files that all nodes must see
	Output  []string // folders that all nodes must write to
	MinFree int64    // bytes
	Skip    []Check
	// Here checks only this machine, a node of a cluster.
	Here bool
	// Tables has the drivers that CUDA versions need. If it is nil, drivers are not checked.
	Tables *compat.Tables
	// StageTimeout limits each stage of a collective. Zero means the default.
	StageTimeout time.Duration
}

// Time limits.
const (
	probeLimit = 2 * time.Minute
	lookLimit  = 20 * time.Second // the survey: disks, name server, nvidia-smi
	hereLimit  = 12 * time.Second // the survey, with Here
	askLimit   = time.Minute      // a short order
	stageLimit = 2 * time.Minute  // each stage of a collective
)

// run is one check.
type run struct {
	opt        Options
	fleet      *fleet.Fleet
	id         string
	members    []*member
	pairs      Pairs
	sums       []Sum
	notChecked []NotChecked // skipped checks with reasons
	events     *eventQueue
}

// member is one node of a check.
type member struct {
	*fleet.Node
	run    *run
	index  int
	token  string // that its callers must send
	agent  *agent.Session
	facts  *node.Facts
	survey survey
	route  *routed

	findings []Finding
}

// addFinding adds a finding about a node.
func (m *member) addFinding(kind Check, level Level, tip, format string, args ...any) {
	said := nodeerr.Messagef(format, args...)
	text := ui.OneLine(said.Text) // a node's text must not imitate dsbuild's lines
	m.findings = append(m.findings, Finding{kind, level, text, ui.Clean(tip), said.Common})
}

// setHint sets the last finding's hint to text of dsbuild, which may contain commands. The hints of addFinding may
// contain a node's text, which must not imitate a command.
func (m *member) setHint(hint string) { m.findings[len(m.findings)-1].Hint = hint }

// hasError reports whether the node has an error of one of these kinds.
func (m *member) hasError(kinds ...Check) bool {
	return slices.ContainsFunc(m.findings, func(f Finding) bool {
		return f.Level == Error && slices.Contains(kinds, f.Check)
	})
}

// Run checks the nodes. If ctx ends early, the report covers the finished checks.
func Run(ctx context.Context, opt Options) *Report {
	opt.SlowHint = "check the network and disk of the node"
	r := &run{opt: opt, fleet: fleet.New(opt.Options), id: strings.ToLower(rand.Text()[:12]), events: newEventQueue()}
	for i, n := range r.fleet.Nodes {
		token := strings.ToLower(rand.Text() + rand.Text())[:32]
		r.members = append(r.members, &member{Node: n, run: r, index: i, token: token})
	}
	defer r.closeAll()
	for _, p := range []struct {
		kind Check
		do   func(context.Context)
	}{
		{Connect, r.connectAll},          // connection, facts, program, survey
		{Versions, r.checkVersions},      //
		{Variables, r.checkVariables},    //
		{Devices, r.checkDevices},        // count, health
		{Disk, r.checkDisks},             //
		{Names, r.checkNames},            // the master's address, the node's own name
		{Interface, r.checkInterfaces},   // towards the master
		{Port, r.checkPort},              // free on the master; the agent listens there from now on
		{Network, r.checkNetwork},        // each node calls every other one
		{Paths, r.checkPaths},            // data and output
		{Collective, r.checkCollectives}, // all-reduce
	} {
		if slices.Contains(opt.Skip, p.kind) {
			continue
		}
		p.do(ctx)
		if ctx.Err() != nil || len(r.liveMembers()) == 0 {
			break
		}
	}
	for _, kind := range opt.Skip {
		if opt.Here && slices.Contains(SkippedHere(), kind) {
			r.addNotChecked(kind, "needs other nodes")
		} else {
			r.addNotChecked(kind, "skipped by --skip")
		}
	}
	return r.buildReport()
}

// addNotChecked records a check that was not made.
func (r *run) addNotChecked(kind Check, format string, args ...any) {
	r.notChecked = append(r.notChecked, NotChecked{kind, ui.OneLine(fmt.Sprintf(format, args...))})
}

// closeAll ends the programs on all nodes in parallel and closes the connections.
func (r *run) closeAll() {
	all := fanout.Options{Forks: len(r.members)}
	fanout.Run(context.Background(), r.members, all, func(_ context.Context, m *member) (struct{}, error) {
		if m.agent != nil {
			m.agent.End()
		}
		return struct{}{}, nil
	})
	r.fleet.Close()
}

// liveMembers are the nodes that still answer.
func (r *run) liveMembers() []*member {
	return slices.DeleteFunc(slices.Clone(r.members), func(m *member) bool {
		return m.agent == nil || m.Status != report.OK
	})
}

// firstMember is the master.
func (r *run) firstMember() *member { return r.members[0] }

// masterAddress is the master's address for the others.
func (r *run) masterAddress() string {
	return cmp.Or(r.opt.Master, r.firstMember().Host.Address)
}

// hasPeers reports whether there is more than one node.
func (r *run) hasPeers() bool { return len(r.members) > 1 }

// inCluster reports whether other nodes may use the same directories.
func (r *run) inCluster() bool { return r.hasPeers() || r.opt.Here }

// hasNetwork reports whether nodes reach each other over a network. If all have literal loopback addresses and the
// same port in the inventory, all are this machine. Different ports belong to tunnels.
func (r *run) hasNetwork() bool {
	return r.hasPeers() && slices.ContainsFunc(r.members, func(m *member) bool {
		return !isLoopback(m.Host.Address) || m.Host.ProxyJump != "" || m.Host.Port != r.firstMember().Host.Port
	})
}

// connectAll connects to all nodes, probes them and starts the agent on each.
func (r *run) connectAll(ctx context.Context) {
	tasks := make([]fleet.Task, len(r.members))
	for i, m := range r.members {
		end := func(_ context.Context, err error) {
			switch {
			case err == nil:
				m.Status = report.OK
			case m.Status != report.Skipped: // a skipped node has no fault
				m.addFinding(Connect, Error, "", "%v", err)
				m.setHint(fault.Hint(err))
			}
		}
		tasks[i] = fleet.Task{Node: m.Node, End: end, Steps: []fleet.Step{
			{Name: "probe", Limit: probeLimit, Do: m.probe, ReadOnly: true},
			{Name: "start", Limit: lookLimit + askLimit, Do: m.startAgent, ReadOnly: true},
		}}
	}
	r.fleet.ConnectAndRun(ctx, "reaching", tasks, nil)
}

// probe gathers the node's facts.
func (m *member) probe(ctx context.Context) error {
	m.Runner = connect.WithEnv(m.Runner, map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}) // leaves no files there
	facts, err := node.Probe(ctx, m.Runner, node.ProbeOptions{Python: m.Host.Python})
	if err != nil {
		return err
	}
	m.facts = &facts
	if facts.MissingPython() != "" {
		return fault.WithHint(errors.New(facts.NoPython()),
			"%s", fault.Set("python", "the absolute path of the environment's interpreter"))
	}
	return nil
}

// startAgent starts the agent, whose first answer is the survey of the node.
func (m *member) startAgent(ctx context.Context) error {
	opt, limit := m.run.opt, lookLimit
	if opt.Here {
		limit = hereLimit
	}
	req := agentRequest{
		LimitS: limit.Seconds(), Run: m.run.id, Token: m.token,
		First: m == m.run.firstMember(), Master: m.run.masterAddress(),
		Devices: !slices.Contains(opt.Skip, Devices),
		Data:    pathsToCheck(opt.Skip, opt.Data), Output: pathsToCheck(opt.Skip, opt.Output),
	}
	var err error
	m.agent, err = startAgent(ctx, m.Runner, m.Host.Python, req, func(e event) {
		e.from = m
		m.run.events.add(e)
	}, &m.survey)
	if err != nil {
		return fmt.Errorf("node survey: %w", err)
	}
	return nil
}

// pathsToCheck returns the paths, or none if --skip excludes them.
func pathsToCheck(skip []Check, paths []string) []string {
	if slices.Contains(skip, Paths) {
		return []string{}
	}
	return append([]string{}, paths...) // not null
}

// askAll calls do for all these nodes in parallel. A node without an answer has failed and
// gets no more requests.
func (r *run) askAll(
	ctx context.Context, kind Check, members []*member, limit time.Duration,
	do func(context.Context, *member) error,
) {
	all := fanout.Options{Forks: max(len(members), 1)}
	results := fanout.Run(ctx, members, all, func(ctx context.Context, m *member) (struct{}, error) {
		noAnswer := fault.WithHint(fmt.Errorf("timed out after %s", ui.Duration(limit)),
			"check the network and disk of the node")
		limited, cancel := context.WithTimeoutCause(ctx, limit, noAnswer)
		defer cancel()
		err := do(limited, m)
		if err != nil && ctx.Err() == nil && errors.Is(err, limited.Err()) {
			err = context.Cause(limited)
		}
		return struct{}{}, err
	})
	for i, result := range results {
		if result.Err != nil && ctx.Err() == nil {
			members[i].Status = report.Failed
			members[i].addFinding(kind, Error, "", "%v", result.Err)
			members[i].setHint(fault.Hint(result.Err))
		}
	}
}
