package fleet

import (
	"context"
	"time"

	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/inventory"
)

// Visitor returns a node with another connection that is no part of the run: it has no log and no report.
// Connecting to it prompts for nothing.
func (f *Fleet) Visitor(h inventory.Host) *Node {
	return &Node{Host: h, Log: newLogFolder(Options{}, f.Run).newLog(h), fleet: f, quiet: true}
}

// Outside returns the nodes of the inventory that are not in the run, except further environments of its nodes.
// Close disconnects them.
func (f *Fleet) Outside() []*Node {
	inside := map[string]bool{}
	for _, n := range f.Nodes {
		inside[n.Host.Node] = true
	}
	f.outside = nil
	for _, h := range f.opt.Outside {
		if !inside[h.Node] {
			f.outside = append(f.outside, f.Visitor(h))
		}
	}
	return f.outside
}

// Ask connects to nodes outside the run, several in parallel, and calls ask with the index of each. It returns an
// error for each, also for those that did not answer within limit.
func (f *Fleet) Ask(
	ctx context.Context, nodes []*Node, limit time.Duration, ask func(ctx context.Context, i int) error,
) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, f.TimeoutError(limit))
	defer cancel()
	all := make([]int, len(nodes))
	for i := range all {
		all[i] = i
	}
	errs := make([]error, len(nodes))
	opt := fanout.Options{Forks: min(len(nodes), maxWide)}
	for i, r := range fanout.Run(ctx, all, opt, func(ctx context.Context, i int) (struct{}, error) {
		if err := nodes[i].Connect(ctx); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, ask(ctx, i)
	}) {
		errs[i] = r.Err
	}
	return errs
}
