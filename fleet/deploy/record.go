package deploy

import (
	"context"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
)

// journalEntry is a line in the node's journal.
type journalEntry struct {
	change.JournalEntry
	Wheel       string          `json:"wheel"`
	SHA256      string          `json:"sha256"`
	ExtraWheels []string        `json:"extra_wheels,omitempty"` // wheels installed with it
	Before      *report.Version `json:"before"`
	Verify      verify.Level    `json:"verify"`
}

// record makes the change final and writes the journal.
func (n *nodeState) record(ctx context.Context) error {
	m, e := n.plan.Wheel.Manifest, n.run.NewEntry(n.Node, "deploy")
	return n.finish(ctx, agent.Request{
		"do": "record", "forget": false,
		"installed": map[string]any{
			"wheel": m.Name, "sha256": m.SHA256, "version": n.after.Version, "record": n.recordSHA256,
			"at": e.At, "run": e.Run,
		},
		"journal": journalEntry{e, m.Name, m.SHA256, extraWheelNames(n.plan.ExtraWheels), n.before, n.run.opt.Verify},
	})
}

// finish sends the request record. The agent replies where it keeps files that dsbuild did not install.
func (n *nodeState) finish(ctx context.Context, order agent.Request) error {
	var done struct {
		Kept string `json:"kept"` // the directory of files that dsbuild did not install, if any
	}
	err := change.Call(ctx, n.Node, order, &done)
	if done.Kept != "" {
		n.kept = "files that dsbuild did not install are kept in " + node.QuotePath(done.Kept)
		n.Note("%s", n.kept)
	}
	return err
}
