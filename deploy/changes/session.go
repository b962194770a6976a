package changes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
)

// lockWait is how long an agent waits for the lock. It covers an agent that still cleans up
// after a killed driver.
const lockWait = 20 * time.Second

// LockWait returns how long an agent waits for the lock, in seconds. With again set, another session
// has been lost: its agent may not know yet that its connection is gone.
func LockWait(again bool) float64 {
	if again {
		return (lockWait + agent.Silence).Seconds()
	}
	return lockWait.Seconds()
}

// Session is the session with an agent that holds the lock of what it changes on a node.
type Session struct {
	agent *agent.Session
	node  *fleet.Node
}

// Start starts an agent, waits until it holds the lock and decodes its first answer into into. The
// agent outlives ctx, so that the driver can still ask it to undo; at its End it undoes a change that
// is not recorded.
func Start(ctx context.Context, n *fleet.Node, script node.Script, into any) (*Session, error) {
	s, err := agent.Start(ctx, n.Runner, agent.Options{Script: script, Event: ignoreOutput, Asked: n.Log.Order}, into)
	if err != nil {
		return nil, withAdvice(err, n)
	}
	return &Session{s, n}, nil
}

// Ask sends an order, waits for the answer and decodes it into into, unless into is nil.
func (s *Session) Ask(ctx context.Context, order agent.Order, into any) error {
	return withAdvice(s.agent.Ask(ctx, order, into), s.node)
}

// End ends the agent. A nil *Session has none.
func (s *Session) End() {
	if s != nil {
		s.agent.End()
	}
}

// withAdvice adds the hint to the failure of an order.
func withAdvice(err error, n *fleet.Node) error {
	var f *agent.Failure
	if !errors.As(err, &f) {
		return err
	}
	return verify.WithAdvice(f, f.Advice, n.Host)
}

// AskKept lets a policy judge the version that an agent would bring back, and returns the digest of the
// files that it has accepted, which the agent compares again: "" if there is no policy.
func (s *Session) AskKept(ctx context.Context, p *signing.Policy) (digest string, err error) {
	if p == nil {
		return "", nil
	}
	var kept struct {
		signing.Kept
		Signed [][]byte `json:"signed"` // the node's file, in pieces; none: there is no file
		Digest string   `json:"digest"`
	}
	if err := s.Ask(ctx, agent.Order{"do": "kept"}, &kept); err != nil {
		return "", err
	}
	if json.Unmarshal(slices.Concat(kept.Signed...), &kept.Kept.Signed) != nil {
		kept.Kept.Signed = nil // it counts as none
	}
	return kept.Digest, p.CheckKept(kept.Kept, time.Now())
}
