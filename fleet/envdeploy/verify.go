package envdeploy

import (
	"context"
	"errors"
	"strings"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// Verify compares the environments of nodes with the lock and with each other, to the last file.
// It changes nothing on any node.
func Verify(ctx context.Context, opt Options) (*report.Report, error) {
	d := New(opt)
	d.onlyVerify = true
	defer d.Close()
	var nodeSteps []fleet.NodeSteps
	for _, u := range d.nodes {
		nodeSteps = append(nodeSteps, fleet.NodeSteps{Node: u.Node, End: u.endVerify, Steps: []fleet.Step{
			{Name: "probe", Limit: d.Fleet.Limit(change.ProbeLimit), Do: u.Probe, ReadOnly: true},
			{Name: "verify", Limit: d.Fleet.Limit(change.VerifyLimit), Do: u.inspect, ReadOnly: true},
		}})
	}
	d.Fleet.ConnectAndRun(ctx, "verifying", nodeSteps, d.Fleet.StopWhen(0))
	return d.Report(), nil
}

// inspect finds the differences of a node from the lock.
func (u *nodeRun) inspect(ctx context.Context) error {
	set, err := u.run.opt.Lock.For(*u.facts)
	switch {
	case u.facts.MissingPython() != "" && u.brought == nil:
		return errors.New("no usable Python: " + u.facts.MissingPython() + " is missing")
	case err != nil:
		u.differs = []string{err.Error()}
		return nil
	}
	u.plan.Set = set
	if u.now == nil {
		u.differs = []string{"it has no environment " + u.run.opt.Lock.Name}
		return nil
	}
	if err := u.check(ctx); err != nil {
		return err
	}
	if u.now.Digest != set.Digest {
		u.differs = append(u.differs, "its environment is "+report.ShortSum(node.PlainVersion(u.now.Digest))+", not "+report.ShortSum(set.Digest))
	}
	if u.differs = append(u.differs, u.differences()...); len(u.differs) > 0 {
		return nil
	}
	return u.prove(ctx, u.now.Python)
}

// endVerify sets the status of a node.
func (u *nodeRun) endVerify(_ context.Context, err error) {
	defer u.HangUp()
	switch {
	case err != nil:
	case len(u.differs) > 0:
		u.Status = report.Differs
		u.Err = fault.WithHint(errors.New(strings.Join(u.differs, "; ")), "dsbuild env deploy makes it that of the lock; with --force also where it has the digest already")
	default:
		u.Status = report.OK
	}
}
