package envdeploy

import (
	"context"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// environmentNote is the note in an environment that is whole.
type environmentNote struct {
	Name      string                      `json:"name"`
	Digest    string                      `json:"digest"`
	Files     []string                    `json:"files"` // sha256 of its wheels and of the installer
	Python    *pythonRef                  `json:"python,omitempty"`
	Packages  map[string]installedPackage `json:"packages"`
	DeepSpeed *report.Version             `json:"deepspeed"`
	At        string                      `json:"at"`
	Run       string                      `json:"run"`
	By        string                      `json:"by"`
}

// journalEntry is a line in the journal of an environment.
type journalEntry struct {
	change.JournalEntry
	Digest string `json:"digest"`
	Before string `json:"before"`
}

// newEntry describes a change to the environment with this digest, for the journal.
func (n *nodeState) newEntry(digest string) journalEntry {
	return journalEntry{n.run.NewEntry(n.Node, n.run.opt.Command), digest, n.environment()}
}

// record switches to the environment.
func (n *nodeState) record(ctx context.Context) error {
	if err := n.run.AwaitFree(ctx, n.Node, &n.plan.Decision); err != nil { // a job may have started since
		return err
	}
	set := n.plan.Set
	note := environmentNote{
		Name: n.run.opt.Lock.Name, Digest: set.Digest, Python: refOf(set), Packages: n.files.Packages,
		Run: n.run.Fleet.Run, By: n.run.opt.By, At: node.Now(),
	}
	for _, f := range refs(set) {
		note.Files = append(note.Files, f.SHA256)
	}
	if w := n.wheel(); w != nil {
		note.DeepSpeed = &report.Version{Version: w.Version, SHA256: w.SHA256}
		if n.inside != nil && n.inside.DeepSpeed != nil {
			note.DeepSpeed.Version = n.inside.DeepSpeed.Version
		}
	}
	var done struct {
		Python string `json:"python"`
	}
	order := agent.Request{
		"do": "record", "digest": set.Digest, "mark": note, "journal": n.newEntry(set.Digest), "keep": n.usedElsewhere(ctx),
	}
	if err := change.Call(ctx, n.Node, order, &done); err != nil {
		return err
	}
	n.Changed = true
	n.now = &Environment{Name: n.files.Name, Digest: set.Digest, Python: done.Python, DeepSpeed: note.DeepSpeed}
	return nil
}
