package deploy

import (
	"context"
	"path/filepath"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/private"
	"github.com/dsbuild/dsbuild/wheel"
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
//	verify     request (verify.Installation)                       verify.Reply
//	record     installed, journal, forget (the kept version)       –
//	undo       – (it also interrupts an order)                     before, recorded, finished
//
// An order that fails has a Failure of package agent as its answer, with the code of a hint.
var agentProgram = node.NewProgram("deploy")

// begun is the first answer of the agent.
type begun struct {
	change.BeginReply
	Now      *node.Installed `json:"now"` // the installed DeepSpeed
	Previous *node.Previous  `json:"previous"`
}

// agent is the program that holds the lock of the environment and changes it.
func (n *nodeState) agent() node.Script {
	return node.Script{
		Python: n.Host.Python, Program: agentProgram, Request: map[string]any{"safe": private.Script()},
	}
}

// lock starts the agent, which expects files.
func (n *nodeState) lock(ctx context.Context, files []change.Upload, again bool) (b begun, err error) {
	var expected []change.Expected
	for _, f := range files {
		expected = append(expected, change.Expected{Name: filepath.Base(f.Path), SHA256: f.SHA256})
	}
	if err = n.run.Lock(ctx, n.Node, n.agent(), expected, again, &b); err != nil {
		n.StateUnknown = n.StateUnknown || n.Facts.Unfinished // a repair may have changed the state that the probe saw
		return b, err
	}
	n.setInstalled(b.Now)
	return b, nil
}

// tidy takes the lock: the agent then removes what an interrupted run has left.
func (n *nodeState) tidy(ctx context.Context) error {
	_, err := n.lock(ctx, nil, false)
	return err
}

// put starts the agent and sends the files that have not arrived yet.
func (n *nodeState) put(ctx context.Context, again bool) error {
	files := n.uploads()
	b, err := n.lock(ctx, files, again)
	if err != nil {
		return err
	}
	m := n.plan.Wheel.Manifest
	if b.Now != nil && b.Now.Intact && b.Now.SHA256 == m.SHA256 && !n.run.opt.Force && len(n.plan.ExtraWheels) == 0 {
		// Another deploy has installed this wheel meanwhile. A second installation would only replace the version
		// in previous/ that a rollback should restore.
		n.Release()
		return nil
	}
	n.byteCode = false
	for _, f := range files {
		if err := n.run.Put(ctx, n.Node, f.LocalFile, false, b.BeginReply); err != nil {
			return err
		}
		n.byteCode = n.byteCode || n.plan.Wheel.ByteCode != nil && f.LocalFile == fleet.LocalFile(*n.plan.Wheel.ByteCode)
	}
	return nil
}

// uploads returns the files to send to a node that installs.
func (n *nodeState) uploads() []change.Upload {
	m := n.plan.Wheel.Manifest
	files := []change.Upload{{LocalFile: fleet.LocalFile{Path: n.plan.Wheel.Path, SHA256: m.SHA256, Size: m.Size}}}
	if code := n.plan.Wheel.ByteCode; code != nil && len(n.plan.ExtraWheels) == 0 {
		files = append(files, change.Upload{LocalFile: fleet.LocalFile(*code)})
	}
	for _, a := range n.plan.ExtraWheels {
		files = append(files, change.Upload{LocalFile: fleet.LocalFile{Path: a.Path, SHA256: a.SHA256, Size: a.Size}})
	}
	if pip, ok := n.run.pips[wheel.Minor(n.Facts.Python)]; ok && n.Facts.Pip == "" && n.Facts.PipWheel == "" {
		files = append(files, change.Upload{LocalFile: pip})
	}
	return files
}

// install makes the agent install the wheel and its companions.
func (n *nodeState) install(ctx context.Context) error {
	m := n.plan.Wheel.Manifest
	pip := ""
	if n.Facts.Pip == "" {
		pip = n.Facts.PipWheel
		if brought, ok := n.run.pips[wheel.Minor(n.Facts.Python)]; ok && pip == "" {
			pip = n.InboxPath(brought.Path)
		}
	}
	files := []map[string]string{{"name": "deepspeed", "file": n.InboxPath(n.plan.Wheel.Path), "sha256": m.SHA256}}
	for _, a := range n.plan.ExtraWheels {
		files = append(files, map[string]string{"name": a.Name, "file": n.InboxPath(a.File), "sha256": a.SHA256})
	}
	if err := n.run.AwaitFree(ctx, n.Node, &n.plan.Decision); err != nil {
		return err
	}
	order := agent.Request{
		"do": "install", "wheels": files, "pip": pip,
		"limit_s": n.run.Fleet.Limit(change.InstallLimit).Seconds(), "accepted": n.run.Accepted[m.SHA256],
	}
	if n.byteCode {
		order["bytecode"] = map[string]any{
			"file": n.InboxPath(n.plan.Wheel.ByteCode.Path), "magic": m.ByteCode.Magic, "sha256": m.ByteCode.SHA256,
		}
	}
	var done struct {
		Version string `json:"version"`
		Record  string `json:"record"`
	}
	if err := change.Call(ctx, n.Node, order, &done); err != nil {
		return err
	}
	n.Changed, n.after, n.recordSHA256 = true, &report.Version{Version: done.Version, SHA256: m.SHA256}, done.Record
	return nil
}
