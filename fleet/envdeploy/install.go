package envdeploy

import (
	"context"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/release/signing"
)

// install lets the node make the environment of the files.
func (n *nodeState) install(ctx context.Context) error {
	all := refs(n.plan.Set)
	accepted := map[string]signing.Signed{}
	if ds := n.plan.Set.File("deepspeed"); ds != nil {
		accepted[ds.SHA256] = n.run.Accepted[ds.SHA256]
	}
	var made environmentFiles
	err := change.Call(ctx, n.Node, agent.Request{
		"do": "install", "digest": n.plan.Set.Digest, "ready": n.plan.Ready, "files": all, "installer": all[0],
		"limit_s": n.run.Fleet.Limit(change.InstallLimit).Seconds(), "accepted": accepted,
	}, &made)
	if err != nil {
		return err
	}
	n.files = &made
	return nil
}
