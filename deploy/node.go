package deploy

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
)

// nodeRun is one node on its way through a deploy or a rollback.
type nodeRun struct {
	*fleet.Node
	run *Deployment

	facts     *node.Facts
	plan      NodePlan
	session   *changes.Session // nil unless the agent runs there
	inbox     changes.Inbox    // of the agent
	byteCode  bool             // the byte code has arrived
	change    changeState
	sent      int64     // bytes of files sent
	waitUntil time.Time // deadline of the wait for processes to end
}

// changeState is the DeepSpeed of a node before and after the change.
type changeState struct {
	before, after *report.Version
	unseen        bool     // the current version is not known
	changed       bool     // dsbuild changed it
	recordSHA256  string   // of the RECORD that verify expects
	altered       []string // rollback: files of the version put back that differ from its RECORD
	note          any      // rollback: dsbuild's note on the version put back; nil if something else installed it
}

// probe gathers the node's facts.
func (u *nodeRun) probe(ctx context.Context) error {
	facts, err := u.askFacts(ctx)
	if errors.Is(err, remote.ErrLost) && u.facts != nil {
		// The connection was idle for a long time, and has ended since the last command.
		if err = u.Reconnect(ctx); err == nil {
			facts, err = u.askFacts(ctx)
		}
	}
	if err != nil {
		return err
	}
	u.setFacts(facts)
	return nil
}

// setFacts stores the facts that a node reported.
func (u *nodeRun) setFacts(facts node.Facts) {
	u.facts = &facts
	u.setInstalled(facts.DeepSpeed)
}

// askFacts asks the node for its facts.
func (u *nodeRun) askFacts(ctx context.Context) (node.Facts, error) {
	opt := node.ProbeOptions{Python: u.Host.Python, Files: true}
	for _, w := range u.run.opt.Wheels {
		opt.Of = append(opt.Of, w.Manifest.SHA256)
		opt.Commands = append(opt.Commands, w.Commands...)
	}
	return node.Probe(ctx, u.Runner, opt)
}

// setInstalled stores the DeepSpeed that is there before the change; nil if there is none.
func (u *nodeRun) setInstalled(ds *node.Installed) {
	u.change.before, u.change.recordSHA256 = nil, ""
	if ds != nil {
		u.change.before, u.change.recordSHA256 = &report.Version{Version: ds.Version, SHA256: ds.SHA256}, ds.Record
	}
	u.change.after = u.change.before
}

// report is the node's part of the report.
func (u *nodeRun) report() report.Node {
	n := u.Node.Report()
	n.Changed, n.Before, n.After = u.change.changed, u.change.before.Plain(), u.change.after.Plain()
	n.Unseen = u.change.unseen || u.facts == nil
	n.ExtraWheels, n.Facts, n.Sent, n.Unfit = extraWheelNames(u.plan.Extra), u.facts, u.sent, u.plan.Unfit
	n.From = u.run.transfer.Relay.Sources(u.Node, u.sent)
	n.Remarks = append(n.Remarks, u.plan.Chosen...)
	return n
}

// currentFacts returns the node's facts, updated with the changes that dsbuild made.
func (u *nodeRun) currentFacts() node.Facts {
	f := *u.facts
	f.DeepSpeed = nil
	if u.change.after != nil {
		f.DeepSpeed = &node.Installed{Version: u.change.after.Version, SHA256: u.change.after.SHA256}
	}
	if u.change.changed && f.Dists != nil {
		f.Dists = maps.Clone(f.Dists)
		for _, a := range u.plan.Extra {
			f.Dists[a.Name] = a.Version
			if a.Name == "transformers" {
				f.Transformers = a.Version
			}
		}
	}
	return f
}
