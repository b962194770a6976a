package change

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/release/signing"
)

// Expected is a file that the agent expects.
type Expected struct {
	Name    string `json:"name"`
	SHA256  string `json:"sha256"`
	Package string `json:"package"` // in an environment; the installer has none
	Version string `json:"version"`
}

// BeginReply is the node's state once the agent holds the lock; it may differ from what the probe saw. Commands embed
// it in their agent's first reply.
type BeginReply struct {
	Inbox    string   `json:"inbox"`   // private directory for uploads
	Arrived  []string `json:"arrived"` // names of files in the inbox that need not be sent again
	Repaired bool     `json:"repaired"`
	Undone   string   `json:"undone"` // the run whose interrupted change the repair undid, if any
	Run      string   `json:"run"`    // the run that made the last recorded change

	python string // runs the agent
}

func (b *BeginReply) beginReply() *BeginReply { return b }

// FirstAnswer is the first reply of an agent: a pointer to a struct that embeds BeginReply.
type FirstAnswer interface{ beginReply() *BeginReply }

// lockWait is how long an agent waits for the lock, unless the rules say otherwise. It covers an agent that still
// cleans up after a killed controller.
const lockWait = 20 * time.Second

// Lock starts the agent, which takes the lock, repairs the environment after an interrupted run, and decodes the first
// reply into into. The request of script holds the fields specific to this agent. The agent expects files, and outlives
// ctx, so that the controller can still request an undo. With again set it waits longer for the lock, because the
// previous agent may not have noticed yet that its connection is lost.
func (r *Run) Lock(
	ctx context.Context, n *fleet.Node, script node.Script, files []Expected, again bool, into FirstAnswer,
) error {
	s, err := r.start(ctx, n, script, files, again, false, into)
	if err != nil {
		return err
	}
	b := into.beginReply()
	b.python = script.Python
	n.Agent, n.Inbox, n.StateUnknown = s, b.Inbox, false
	if b.Repaired {
		n.Warn("repaired the environment after an interrupted run")
	}
	return nil
}

// start starts the agent. With look set, the agent only answers with the state of the node, and ends.
func (r *Run) start(
	ctx context.Context, n *fleet.Node, script node.Script, files []Expected, again, look bool, into FirstAnswer,
) (*agent.Session, error) {
	wait := cmp.Or(r.Rules.LockWait, lockWait)
	if again {
		wait += agent.HeartbeatTimeout
	}
	request, err := node.MergeFields(script.Request, map[string]any{
		"files": append([]Expected{}, files...), "look": look, // files is not null
		"run": r.Fleet.Run, "label": FileLabel(n.Host.Name), "by": r.by, "at": node.Now(),
		"lock_s": wait.Seconds(),
	})
	if err != nil {
		return nil, err
	}
	script.Request = request
	s, err := agent.Start(ctx, n.Runner, agent.Options{Script: script, Event: ignoreOutput, Asked: n.Log.Order}, into)
	if err != nil {
		// Another deploy is changing the state that the probe saw.
		refused := (*agent.Failure)(nil)
		n.StateUnknown = n.StateUnknown || errors.As(err, &refused) && refused.Busy
		return nil, withAdvice(n, err)
	}
	return s, nil
}

// ignoreOutput takes the output of a program on the node, which the agent sends before its
// answer; the log already has it.
func ignoreOutput(m json.RawMessage) error {
	var got struct {
		Pip []string `json:"pip"`
	}
	return node.Decode(m, &got)
}

// Call sends a request to the agent of a node, waits for the reply and decodes it into into, unless into is nil.
func Call(ctx context.Context, n *fleet.Node, order agent.Request, into any) error {
	return withAdvice(n, n.Agent.Call(ctx, order, into))
}

// withAdvice adds the hint to the failure of an order.
func withAdvice(n *fleet.Node, err error) error {
	var f *agent.Failure
	if !errors.As(err, &f) {
		return err
	}
	return node.WithAdvice(f, f.Advice, n.Host.Python, n.Facts)
}

// CheckPrevious checks the version that the agent would restore against the policy. It returns the digest of the
// accepted files, which the agent compares again; without a policy, the digest is empty.
func (r *Run) CheckPrevious(ctx context.Context, n *fleet.Node) (digest string, err error) {
	if r.Rules.Policy == nil {
		return "", nil
	}
	var kept struct {
		signing.Previous
		Signed [][]byte `json:"signed"` // the node's file, in pieces; none: there is no file
		Digest string   `json:"digest"`
	}
	if err := Call(ctx, n, agent.Request{"do": "kept"}, &kept); err != nil {
		return "", err
	}
	if json.Unmarshal(slices.Concat(kept.Signed...), &kept.Previous.Signed) != nil {
		kept.Previous.Signed = nil // treat it as missing
	}
	return kept.Digest, r.Rules.Policy.CheckPrevious(kept.Previous, time.Now())
}

// FileLabel returns a node's name as a part of a file name.
func FileLabel(name string) string {
	s := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	return s[:min(len(s), 64)]
}
