package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// InUse is the policy for environments in use: a training job may crash if it loads a file that dsbuild has replaced.
// The zero value refuses the node.
type InUse struct {
	Ignore bool          // change the environment anyway
	Wait   time.Duration // how long to wait for the processes to end before refusing the node
}

// ParseInUse parses the value of --in-use: refuse, wait=DURATION or ignore. Its error lists the valid values.
func ParseInUse(s string) (InUse, error) {
	wait, waits := strings.CutPrefix(s, "wait=")
	switch {
	case waits:
		d, err := time.ParseDuration(wait)
		if err != nil || d <= 0 {
			return InUse{}, errors.New("want a duration such as wait=90s, wait=30m or wait=2h")
		}
		return InUse{Wait: d}, nil
	case s == "refuse":
		return InUse{}, nil
	case s == "ignore":
		return InUse{Ignore: true}, nil
	}
	return InUse{}, errors.New("want refuse, wait=DURATION or ignore")
}

// InUseHint is the hint for an environment in use.
const InUseHint = "wait for these processes to exit, or pass --in-use wait=30m; " +
	"--in-use ignore proceeds anyway"

// CannotTell is said of an environment whose processes cannot be found.
const CannotTell = "cannot determine whether the environment is in use"

// InUseError reports that an environment was left unchanged because processes use it.
type InUseError struct{ What nodeerr.Message }

func (e *InUseError) Error() string { return e.What.Text }

// Common returns the message without the node's own details.
func (e *InUseError) Common() string { return e.What.Common }

// Refused marks the node as refused: it was not changed.
func (e *InUseError) Refused() {}

// Hint returns InUseHint.
func (e *InUseError) Hint() string { return InUseHint }

// DescribeProcesses describes the processes that use an environment: the first three in full, the others as a
// count. It is empty if there are none.
func DescribeProcesses(got node.Processes) nodeerr.Message {
	if len(got.InUse) == 0 {
		return nodeerr.Message{}
	}
	const most = 3
	var texts, causes []string
	for _, p := range got.InUse[:min(len(got.InUse), most)] {
		who := p.User
		if p.Job != "" {
			who += ", " + p.Job
		}
		texts = append(texts, fmt.Sprintf("pid %d (%s): %s", p.PID, who, p.Command))
		causes = append(causes, p.User+": "+p.Command)
	}
	if more := got.More + len(got.InUse) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return nodeerr.Messagef("environment in use by %s", nodeerr.Message{
		Text:   strings.Join(texts, "; "),
		Common: strings.Join(causes, "; "),
	})
}

// sharedUse describes processes on another node, which shares the environment.
func sharedUse(other string, what nodeerr.Message) nodeerr.Message {
	return nodeerr.Messagef("shares an environment with %s: %s", nodeerr.Own(other), what)
}

// ApplyInUse applies the policy to the nodes to be changed whose environment is in use: each is refused, waits, or is
// changed with a note. Processes on any node that shares the environment are considered.
func (p Decisions) ApplyInUse(users []node.Processes, policy InUse) {
	for leader, n := range p {
		if n.Action != Install && n.Action != Rollback {
			continue
		}
		members := p.membersOf(leader)
		if on := slices.IndexFunc(members, func(i int) bool { return len(users[i].InUse) > 0 }); on >= 0 {
			on = members[on]
			what := DescribeProcesses(users[on])
			p[on].ApplyInUse(what, policy)
			for _, i := range members {
				if i != on {
					p[i].ApplyInUse(sharedUse(p[on].Name, what), policy)
				}
			}
			continue
		}
		if what := n.UseOutside(); what.Text != "" {
			for _, i := range members {
				p[i].ApplyInUse(what, policy)
			}
		}
	}
}

// UseOutside describes processes on a node outside the run that use the environment; empty if there are none.
func (p *Decision) UseOutside() nodeerr.Message {
	for _, o := range p.outside {
		if what := DescribeProcesses(o.Users); what.Text != "" {
			return sharedUse(o.Node.Host.Name, what)
		}
	}
	return nodeerr.Message{}
}

// ApplyInUse applies the policy to one node, whose environment is in use as described by what.
func (p *Decision) ApplyInUse(what nodeerr.Message, policy InUse) {
	switch {
	case policy.Ignore:
		p.usedBy, p.Notes = what, append(p.Notes, p.TextOf(what))
	case policy.Wait > 0:
		waits := nodeerr.Messagef("waits up to %s: %s", ui.Duration(policy.Wait), what)
		p.Notes, p.WaitsForIdle = append(p.Notes, p.TextOf(waits)), true
	default:
		p.SetRefused(InUseHint, what)
	}
}

// The shortest and longest pause between two questions whether an environment is still in use.
const (
	minPoll = 200 * time.Millisecond
	maxPoll = 10 * time.Second
)

// AwaitStep returns the step that waits until no process uses a node's environment, before any file is sent.
func (r *Run) AwaitStep(n *fleet.Node, p *Decision) fleet.Step {
	return fleet.Step{
		Name: "fit", Limit: r.Rules.InUse.Wait + r.Fleet.Limit(ProbeLimit), ReadOnly: true,
		Needed: func() bool { return p.WaitsForIdle },
		Do:     func(ctx context.Context) error { return r.AwaitFree(ctx, n, p) },
	}
}

// AwaitFree waits until no process uses the environment, on the node or on nodes that share it. It queries the nodes
// again, because the survey may be out of date, and reports the processes that it waits for. After the deadline it
// returns an *InUseError.
func (r *Run) AwaitFree(ctx context.Context, n *fleet.Node, p *Decision) error {
	policy := r.Rules.InUse
	if policy.Ignore {
		if p.usedBy.Text != "" {
			n.Warn("%s; changing it anyway", p.usedBy)
		}
		return nil
	}
	told := nodeerr.Message{}
	for {
		now, err := r.jobsNow(ctx, n, p.sharing)
		switch {
		case err != nil:
			return err
		case now.Text == "":
			return nil
		case !time.Now().Before(p.deadline):
			return &InUseError{now}
		case now != told:
			told = now
			n.Note("%s; waiting until %s", now, nodeerr.Own(p.deadline.Format(time.TimeOnly)))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(maxPoll, max(minPoll, policy.Wait/20))):
		}
	}
}

// jobsNow describes the processes that use the environment of a node now, on it or on another that shares it;
// empty if there are none.
func (r *Run) jobsNow(ctx context.Context, n *fleet.Node, sharing []*fleet.Node) (nodeerr.Message, error) {
	nodes := append([]*fleet.Node{n}, sharing...)
	results := fanout.Run(ctx, nodes, fanout.Options{Forks: r.Fleet.Forks()}, r.jobsOf)
	for i, on := range nodes {
		what, err := DescribeProcesses(results[i].Value), results[i].Err
		switch {
		case err != nil && on != n:
			return nodeerr.Message{}, nodeerr.Errorf(CannotTell+" on %s, which shares it: %w", nodeerr.Own(on.Host.Name), err)
		case err != nil:
			return nodeerr.Message{}, fmt.Errorf(CannotTell+": %w", err)
		case what.Text == "":
		case on != n:
			return sharedUse(on.Host.Name, what), nil
		default:
			return what, nil
		}
	}
	return nodeerr.Message{}, nil
}

// jobsOf finds the processes that use the environment of a node.
func (r *Run) jobsOf(ctx context.Context, n *fleet.Node) (node.Processes, error) {
	switch {
	case n.JobsOf == "":
		return node.Processes{}, nil
	case r.AgentFindsJobs && n.Agent != nil:
		var got node.Processes
		err := Call(ctx, n, agent.Request{"do": "users"}, &got)
		return got, err
	}
	return node.FindProcesses(ctx, n.Runner, n.JobsOf)
}
