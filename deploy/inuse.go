package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// InUse is the policy for changing an environment while processes use it: a training job dies if
// it loads a file after dsbuild replaced it. The zero value refuses the node.
type InUse struct {
	Ignore bool          // change the environment nevertheless
	Wait   time.Duration // how long to wait for the processes to end before refusing the node
}

// ParseInUse reads the value of --in-use: refuse, wait=30m or ignore.
func ParseInUse(s string) (InUse, error) {
	wait, waits := strings.CutPrefix(s, "wait=")
	switch {
	case waits:
		d, err := time.ParseDuration(wait)
		if err != nil || d <= 0 {
			return InUse{}, fmt.Errorf("%s: must be a duration such as wait=90s, wait=30m or wait=2h", s)
		}
		return InUse{Wait: d}, nil
	case s == "refuse":
		return InUse{}, nil
	case s == "ignore":
		return InUse{Ignore: true}, nil
	}
	return InUse{}, fmt.Errorf("%s: must be refuse, wait=DURATION or ignore", s)
}

// InUseHint is the hint for an environment in use.
const InUseHint = "wait until these processes have ended, or give --in-use wait=30m; --in-use ignore changes the environment anyway"

// InUseError reports that processes use an environment, so dsbuild left it as it is.
type InUseError struct{ what cause.Message }

func (e *InUseError) Error() string { return e.what.Text }

// Cause returns the message without the parts that only one node has.
func (e *InUseError) Cause() string { return e.what.Cause }

// Refused marks the node as refused: dsbuild changed nothing on it.
func (e *InUseError) Refused() {}

// Hint tells the user how to wait.
func (e *InUseError) Hint() string { return InUseHint }

// listProcesses describes processes: the first three in full, the others as a count. more is the number
// of processes beyond those in all.
func listProcesses(all []node.Process, more int) cause.Message {
	const most = 3
	var texts, causes []string
	for _, p := range all[:min(len(all), most)] {
		who := p.User
		if p.Job != "" {
			who += ", " + p.Job
		}
		texts = append(texts, fmt.Sprintf("pid %d (%s): %s", p.PID, who, p.Command))
		causes = append(causes, p.User+": "+p.Command)
	}
	if more += len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return cause.Message{Text: strings.Join(texts, "; "), Cause: strings.Join(causes, "; ")}
}

// ApplyInUse applies the policy to nodes of a plan whose environment is to be changed while
// processes use it. Such a node is refused, waits, or is changed with a remark. If nodes share an
// environment, processes on any of them count.
func (p Plan) ApplyInUse(nodes []ProbeResult, policy InUse) {
	plans := p.Nodes
	for leader := range plans {
		if plans[leader].Action != Install && plans[leader].Action != Rollback {
			continue
		}
		members := membersOf(plans, leader)
		for _, i := range members {
			if at := slices.IndexFunc(nodes[i].Facts.Missing, func(m string) bool { return strings.HasPrefix(m, "in_use") }); at >= 0 {
				plans[i].Remarks = append(plans[i].Remarks, "dsbuild cannot see whether it is in use: "+nodes[i].Facts.Missing[at])
			}
		}
		for _, i := range members {
			if f := nodes[i].Facts; len(f.InUse) > 0 {
				applyInUseToMembers(plans, members, i, listProcesses(f.InUse, f.InUseMore), policy)
				break
			}
		}
	}
}

// membersOf returns the indexes of a node to be changed and of the nodes that follow it.
func membersOf(plans []NodePlan, leader int) []int {
	members := []int{leader}
	for i, p := range plans {
		if p.Action == Shared && p.Leader == leader {
			members = append(members, i)
		}
	}
	return members
}

// applyInUseToMembers applies the policy to the members of an environment that processes use on the member with
// index on.
func applyInUseToMembers(plans []NodePlan, members []int, on int, users cause.Message, policy InUse) {
	for _, i := range members {
		p, what := &plans[i], cause.Messagef("its environment is used by %s", users)
		if i != on {
			what = cause.Messagef("shares its environment with %s, where it is used by %s", cause.Own(plans[on].Name), users)
		}
		switch {
		case policy.Ignore:
			p.Remarks = append(p.Remarks, p.noteCause(what))
		case policy.Wait > 0:
			p.Remarks = append(p.Remarks, p.noteCause(cause.Messagef("waits up to %s: %s", ui.Duration(policy.Wait), what)))
			p.waits = true
		default:
			p.Action, p.Reasons, p.Hint = Refuse, []string{p.noteCause(what)}, InUseHint
		}
	}
}

// awaitFree returns once no process uses the environment, on the node or on one that shares it. It
// asks the nodes again, because the survey may be long ago.
func (u *nodeRun) awaitFree(ctx context.Context) error {
	if u.run.opt.InUse.Ignore {
		if f := u.facts; len(f.InUse) > 0 {
			u.Warn("its environment is used by %s; dsbuild changes it anyway", listProcesses(f.InUse, f.InUseMore))
		}
		return nil
	}
	return u.run.opt.InUse.Await(ctx, u.Node, u.waitUntil, u.describeProcessesNow)
}

// Await returns once users describes no processes. After the deadline until, it returns an
// *InUseError. While it waits, it names the processes to the user.
func (p InUse) Await(ctx context.Context, n *fleet.Node, until time.Time, users func(context.Context) (cause.Message, error)) error {
	told := cause.Message{}
	for {
		now, err := users(ctx)
		switch {
		case err != nil:
			return err
		case now.Text == "":
			return nil
		case !time.Now().Before(until):
			return &InUseError{now}
		case now != told:
			told = now
			n.Note("%s; waiting until %s", now, cause.Own(until.Format(time.TimeOnly)))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(maxPoll, max(minPoll, p.Wait/20))):
		}
	}
}

// AwaitStep is the step in which a node waits until no process uses its environment, before dsbuild
// sends a byte.
func (p InUse) AwaitStep(f *fleet.Fleet, awaitFree func(context.Context) error, waits bool) fleet.Step {
	return fleet.Step{Name: "fit", Limit: p.Wait + f.Limit(probeLimit), Do: awaitFree, ReadOnly: true, Needed: func() bool { return waits }}
}

// DescribeProcesses describes the processes that use an environment; empty if there are none.
func DescribeProcesses(got node.Processes) cause.Message {
	if len(got.InUse) == 0 {
		return cause.Message{}
	}
	return cause.Messagef("its environment is used by %s", listProcesses(got.InUse, got.More))
}

// The shortest and longest pause between two questions whether an environment is still in use.
const (
	minPoll = 200 * time.Millisecond
	maxPoll = 10 * time.Second
)

// describeProcessesNow describes the processes that use the environment of a node now, on it or on another
// that shares it; empty if there are none.
func (u *nodeRun) describeProcessesNow(ctx context.Context) (cause.Message, error) {
	members := []*nodeRun{u}
	for _, other := range u.run.nodes {
		if other.plan.Action == Shared && u.run.nodes[other.plan.Leader] == u {
			members = append(members, other)
		}
	}
	results := fanout.Run(ctx, members, fanout.Options{Forks: u.run.opt.Forks}, func(ctx context.Context, member *nodeRun) (node.Processes, error) {
		return member.askProcesses(ctx)
	})
	for i, member := range members {
		got, err := results[i].Value, results[i].Err
		switch {
		case err != nil && member != u:
			return cause.Message{}, cause.Errorf("dsbuild does not know whether its environment is in use on %s, which shares it: %w", cause.Own(member.Host.Name), err)
		case err != nil:
			return cause.Message{}, fmt.Errorf("dsbuild does not know whether its environment is in use: %w", err)
		case len(got.InUse) == 0:
		case member != u:
			return cause.Messagef("shares its environment with %s, where it is used by %s", cause.Own(member.Host.Name), listProcesses(got.InUse, got.More)), nil
		default:
			return DescribeProcesses(got), nil
		}
	}
	return cause.Message{}, nil
}

// askProcesses asks the agent on the node for the processes. Without an agent it runs a program of its
// own there.
func (u *nodeRun) askProcesses(ctx context.Context) (node.Processes, error) {
	if u.session != nil {
		var got node.Processes
		err := u.session.Ask(ctx, agent.Order{"do": "users"}, &got)
		return got, err
	}
	return node.FindProcesses(ctx, u.Runner, u.facts.Executable)
}
