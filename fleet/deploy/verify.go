package deploy

import (
	"cmp"
	"context"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/verify"
)

// verify proves that the node has the version that was installed.
func (n *nodeState) verify(ctx context.Context) error {
	w := n.plan.Wheel
	level := n.run.opt.Verify
	if n.plan.Action == change.UpToDate {
		level = cmp.Or(n.run.opt.VerifyUnchanged, level)
	}
	versions, files := map[string]string{}, map[string]string{}
	for _, a := range n.plan.ExtraWheels {
		versions[a.Name], files[a.Name] = a.Version, a.File
	}
	want := verify.Installation{
		Level: level, Version: w.Version, Record: n.recordSHA256, Ops: w.Manifest.OpsFor(n.Facts.TorchCUDA), ExtraWheels: versions,
	}
	// The agent compares files itself. Ops are loaded by a separate program, as a training job would do it.
	if n.HoldsLock() && want.Level == verify.LevelFiles {
		return change.Call(ctx, n.Node, agent.Request{"do": "verify", "request": want}, new(verify.Reply))
	}
	if err := verify.Check(ctx, n.Node, n.Host.Python, *n.Facts, w.Manifest, want); err != nil || level != verify.LevelLoad {
		return err
	}
	return verify.LoadPackages(ctx, n.Node, n.Host.Python, files)
}
