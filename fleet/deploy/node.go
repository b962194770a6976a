package deploy

import (
	"context"
	"errors"
	"maps"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// The agent obeys these orders (verbs in deploy.py). digest comes from package change.
//
//	order      fields                                              answer
//	users      –                                                   node.Processes
//	digest     file, size (of an upload, its first bytes)          sha256
//	install    wheels (DeepSpeed's first: name, file, sha256),     version, record
//	           pip, limit_s, accepted (signing.Signed),
//	           bytecode (optional: file, magic, sha256)
//	kept       –                                                   signing.Kept, digest (of its files)
//	roll_back  accepted (that digest; "" without a policy)         version, record, altered, noted, wrong_byte_code
//	verify_back – (compares it with what was moved aside)          –
//	verify     request (verify.Request)                            verify.Reply
//	record     installed, journal, forget (the kept version)       –
//	undo       – (it also interrupts an order)                     change.Undone
//
// An order that fails has a Failure of package agent as its answer, with the code of a hint.
var agentProgram = node.NewProgram("deploy")

// nodeRun is one node on its way through a deploy or a rollback.
type nodeRun struct {
	*change.NodeRun
	run *Deployment

	facts    *node.Facts
	plan     *NodePlan // nil before the first phase has ended
	byteCode bool      // the byte code has arrived

	before, after *report.Version // the DeepSpeed before and after the change
	recordSHA256  string          // of the RECORD that verify expects
	altered       []string        // rollback: files of the version put back that differ from its RECORD
	note          any             // rollback: dsbuild's note on the version put back; nil if something else installed it
}

// Probe gathers the node's facts.
func (u *nodeRun) Probe(ctx context.Context) error {
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
	u.facts = &facts
	u.setInstalled(facts.DeepSpeed)
	return nil
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
	u.before, u.recordSHA256 = nil, ""
	if ds != nil {
		u.before, u.recordSHA256 = &report.Version{Version: ds.Version, SHA256: ds.SHA256}, ds.Record
	}
	u.after = u.before
}

// report is the node's part of the report.
func (u *nodeRun) report() report.Node {
	n := u.NodeRun.Report()
	n.Before, n.After, n.Facts = u.before.Plain(), u.after.Plain(), u.facts
	if n.Unseen = n.Unseen || u.facts == nil; n.Unseen {
		n.After = nil
	}
	if u.plan != nil {
		n.ExtraWheels, n.Remarks = extraWheelNames(u.plan.Extra), append(n.Remarks, u.plan.Chosen...)
	}
	return n
}

// currentFacts returns the node's facts, updated with the changes that dsbuild made.
func (u *nodeRun) currentFacts() node.Facts {
	f := *u.facts
	f.DeepSpeed = nil
	if u.after != nil {
		f.DeepSpeed = &node.Installed{Version: u.after.Version, SHA256: u.after.SHA256}
	}
	if u.Changed && f.Dists != nil {
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
