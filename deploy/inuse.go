package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// InUse says what becomes of a node that is to be changed while processes use
// its environment: a training job that loads a file after it was replaced dies.
// The zero value refuses the node.
type InUse struct {
	Ignore bool          // change it all the same
	Wait   time.Duration // until they are gone, or else refuse it
}

// ParseInUse reads the value of --in-use: refuse, wait=30m or ignore.
func ParseInUse(s string) (InUse, error) {
	wait, waits := strings.CutPrefix(s, "wait=")
	switch {
	case waits:
		d, err := time.ParseDuration(wait)
		if err != nil || d <= 0 {
			return InUse{}, fmt.Errorf("%s: a duration such as wait=90s, wait=30m or wait=2h", s)
		}
		return InUse{Wait: d}, nil
	case s == "refuse":
		return InUse{}, nil
	case s == "ignore":
		return InUse{Ignore: true}, nil
	}
	return InUse{}, fmt.Errorf("%s: refuse, wait=DURATION or ignore", s)
}

// inUseHint is what to try where an environment is in use.
const inUseHint = "wait until that has ended, or give --in-use wait=30m; --in-use ignore changes the environment all the same"

// InUseError is an environment that is used by processes, and therefore left as it is.
type InUseError struct{ what string }

func (e *InUseError) Error() string { return e.what }

// Hint says how to wait.
func (e *InUseError) Hint() string { return inUseHint }

// usedBy names processes, the first of them in full.
func usedBy(all []node.Process, more int) string {
	const most = 3
	var names []string
	for _, p := range all[:min(len(all), most)] {
		who := p.User
		if p.Job != "" {
			who += ", " + p.Job
		}
		names = append(names, fmt.Sprintf("pid %d (%s): %s", p.PID, who, p.Command))
	}
	if more += len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, "; ")
}

// Respect holds a plan for nodes against the processes that use the environments
// which it changes. A node with such is refused, or waits, or is changed with a
// remark; of nodes that share an environment all count.
func (p Plan) Respect(nodes []Known, policy InUse) {
	plans := p.Nodes
	for leader := range plans {
		if plans[leader].Action != Install && plans[leader].Action != Return {
			continue
		}
		members := membersOf(plans, leader)
		for _, i := range members {
			if at := slices.IndexFunc(nodes[i].Facts.Missing, func(m string) bool { return strings.HasPrefix(m, "in_use") }); at >= 0 {
				plans[i].Remarks = append(plans[i].Remarks, "not known whether it is in use: "+nodes[i].Facts.Missing[at])
			}
		}
		for _, i := range members {
			if f := nodes[i].Facts; len(f.InUse) > 0 {
				heed(plans, members, i, usedBy(f.InUse, f.InUseMore), policy)
				break
			}
		}
	}
}

// membersOf are the places of a node that is changed and of those that follow it.
func membersOf(plans []NodePlan, leader int) []int {
	members := []int{leader}
	for i, p := range plans {
		if p.Action == Follow && p.Leader == leader {
			members = append(members, i)
		}
	}
	return members
}

// heed does as the policy says with the members of an environment that is used on one of them.
func heed(plans []NodePlan, members []int, on int, users string, policy InUse) {
	for _, i := range members {
		p, what := &plans[i], "its environment is used by "+users
		if i != on {
			what = fmt.Sprintf("shares its environment with %s, where it is used by %s", plans[on].Name, users)
		}
		switch {
		case policy.Ignore:
			p.Remarks = append(p.Remarks, what)
		case policy.Wait > 0:
			p.Remarks = append(p.Remarks, fmt.Sprintf("waits up to %s: %s", ui.Duration(policy.Wait), what))
			p.waits = true
		default:
			p.Action, p.Reasons, p.Hint = Refuse, []string{what}, inUseHint
		}
	}
}

// free returns once no process uses the environment of a node, or of one that
// shares it. It asks anew: the survey may be long ago.
func (d *Deployment) free(ctx context.Context, u *unit) error {
	if d.opt.InUse.Ignore {
		if f := u.facts; len(f.InUse) > 0 {
			d.watch.warn(u, "its environment is used by %s; it is changed all the same", usedBy(f.InUse, f.InUseMore))
		}
		return nil
	}
	told := ""
	for {
		users, err := d.usersOf(ctx, u)
		switch {
		case err != nil:
			return err
		case users == "":
			return nil
		case !time.Now().Before(u.until):
			return &InUseError{users}
		case users != told:
			told = users
			d.watch.note(u, "%s; waiting until %s", users, u.until.Format(time.TimeOnly))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(maxPoll, max(minPoll, d.opt.InUse.Wait/20))):
		}
	}
}

// How often a node is asked whether its environment is still in use.
const (
	minPoll = 200 * time.Millisecond
	maxPoll = 10 * time.Second
)

// usersOf says who uses the environment of a node now, on it or on another that
// shares it; "" if nobody does.
func (d *Deployment) usersOf(ctx context.Context, u *unit) (string, error) {
	members := []*unit{u}
	for _, other := range d.units {
		if other.plan.Action == Follow && d.units[other.plan.Leader] == u {
			members = append(members, other)
		}
	}
	results := fanout.Run(ctx, members, fanout.Options{Forks: d.opt.Forks}, func(ctx context.Context, member *unit) (node.Uses, error) {
		return member.users(ctx)
	})
	for i, member := range members {
		got, err := results[i].Value, results[i].Err
		switch {
		case err != nil && member != u:
			return "", fmt.Errorf("whether its environment is in use on %s, which shares it, is not known: %w", member.host.Name, err)
		case err != nil:
			return "", fmt.Errorf("whether its environment is in use is not known: %w", err)
		case len(got.InUse) == 0:
		case member != u:
			return fmt.Sprintf("shares its environment with %s, where it is used by %s", member.host.Name, usedBy(got.InUse, got.More)), nil
		default:
			return "its environment is used by " + usedBy(got.InUse, got.More), nil
		}
	}
	return "", nil
}

// users asks the agent that is at work on a node, or else a program of its own.
func (u *unit) users(ctx context.Context) (node.Uses, error) {
	if u.change != nil {
		return u.change.users(ctx)
	}
	return node.Users(ctx, u.runner, u.facts.Executable)
}

// isInUse reports whether a node was left as it is because it is in use.
func isInUse(err error) bool {
	var busy *InUseError
	return errors.As(err, &busy)
}
