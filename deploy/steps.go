package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// The time limits of the steps.
const (
	putLimit     = 30 * time.Minute
	installLimit = 15 * time.Minute
	verifyLimit  = 15 * time.Minute
	recordLimit  = 2 * time.Minute
	undoLimit    = time.Minute
	pipGrace     = 30 * time.Second // time for the node to stop a hanging pip and report it
)

// steps returns the steps of a node in Apply. If one fails, end undoes the change.
func (u *nodeRun) steps() []fleet.Step {
	limit, wait := u.run.fleet.Limit, u.run.opt.InUse.Wait
	verify := fleet.Step{Name: "verify", Limit: limit(verifyLimit), Do: u.verify} // proves that an import finds the wheel
	switch u.plan.Action {
	case Install:
		pips := time.Duration(1)
		if len(u.plan.Fetch) > 0 {
			pips = 3 // fetch runs it twice
		}
		return []fleet.Step{
			u.awaitFreeStep(),
			{Name: "put", Limit: limit(putLimit), Do: u.put},                                                         // takes the lock, sends the files
			{Name: "install", Limit: wait + pips*limit(installLimit) + pipGrace, Do: u.install, Needed: u.holdsLock}, // moves the old version aside, runs pip
			verify,
			{Name: "record", Limit: recordLimit, Do: u.record, Needed: u.holdsLock}, // makes the change final, writes the journal
		}
	case Rollback:
		return rollback{u}.steps()
	case Shared:
		installs := func() bool { return u.plan.Wheel != nil } // else it follows a rollback
		return []fleet.Step{
			{Name: "install", Limit: limit(probeLimit), Do: u.findSharedInstallation}, // finds the version that the other node installed
			{Name: "verify", Limit: limit(verifyLimit), Do: u.verifySharing, Needed: installs},
		}
	case UpToDate:
		tidy := func() bool { return u.facts.Leftovers }
		return []fleet.Step{{Name: "put", Limit: limit(putLimit), Do: u.tidy, Needed: tidy}, verify} // tidy removes the files of an interrupted run
	}
	return nil
}

// awaitFreeStep waits until no process uses the environment, before dsbuild sends a byte.
func (u *nodeRun) awaitFreeStep() fleet.Step {
	return u.run.opt.InUse.AwaitStep(u.run.fleet, u.awaitFree, u.plan.waits)
}

// holdsLock reports whether the agent holds the lock of the environment. Put releases a node that
// already runs the wheel.
func (u *nodeRun) holdsLock() bool { return u.session != nil }

// end is the end of a node's steps: it undoes an unfinished change, ends the agent and closes the
// connection.
func (u *nodeRun) end(ctx context.Context, err error) {
	defer u.HangUp()
	if err != nil {
		u.undo(ctx)
		return
	}
	u.Status = report.OK
	u.endSession()
}

// endSession ends the agent on the node, if there is one.
func (u *nodeRun) endSession() {
	u.session.End()
	u.session = nil
}

// put sends the files to the node. If the connection breaks, it tries again.
func (u *nodeRun) put(ctx context.Context) error {
	return changes.PutAll(ctx, u.Node, u.putAll, u.restart)
}

// restart closes the node's connection and its agent, and connects again.
func (u *nodeRun) restart(ctx context.Context) error {
	u.endSession()
	return u.Reconnect(ctx)
}

// putAll starts the agent and sends the files that have not arrived yet.
func (u *nodeRun) putAll(ctx context.Context, again bool) error {
	files := u.uploads()
	b, err := u.startAgent(ctx, files, again)
	if err != nil {
		return err
	}
	m := u.plan.Wheel.Manifest
	if b.Now != nil && b.Now.Intact && b.Now.SHA256 == m.SHA256 && !u.run.opt.Force && len(u.plan.Extra)+len(u.plan.Fetch) == 0 {
		// Another deploy has installed this wheel meanwhile. Installing it again would only
		// replace the version in previous/ that a rollback should bring back.
		u.endSession()
		return nil
	}
	u.byteCode = false
	for _, f := range files {
		if slices.Contains(b.Arrived, filepath.Base(f.Path)) {
			u.AddSent(f.Size)
			u.run.transfer.Relay.Skip(f.SHA256, u.Node)
		} else if err := u.inbox.Put(ctx, f); err != nil {
			return err
		}
		u.byteCode = u.byteCode || u.plan.Wheel.ByteCode != nil && f == *u.plan.Wheel.ByteCode
	}
	return nil
}

// tidy removes the files of an interrupted run from a node that needs no other change.
func (u *nodeRun) tidy(ctx context.Context) error {
	_, err := u.startAgent(ctx, nil, false)
	if errors.As(err, new(*agent.Failure)) {
		return nil // another deploy is running, and the files are its own
	}
	if err == nil {
		u.endSession()
	}
	return err
}

// uploads returns the files to send to a node that installs.
func (u *nodeRun) uploads() []wheels.File {
	m := u.plan.Wheel.Manifest
	files := []wheels.File{{Path: u.plan.Wheel.Path, SHA256: m.SHA256, Size: m.Size}}
	crowded := u.run.installs > maxWithCode && !u.run.broadcasts()
	if code := u.plan.Wheel.ByteCode; code != nil && !crowded && len(u.plan.Extra)+len(u.plan.Fetch) == 0 {
		files = append(files, *code)
	}
	for _, a := range u.plan.Extra {
		files = append(files, wheels.File{Path: a.Path, SHA256: a.SHA256, Size: a.Size})
	}
	if pip, ok := u.run.pips[wheel.Minor(u.facts.Python)]; ok && u.facts.Pip == "" && u.facts.PipWheel == "" {
		files = append(files, pip)
	}
	return files
}

// maxWithCode is the number of nodes up to which dsbuild sends byte code. Each node compiles
// DeepSpeed's modules in about a second, all nodes at once. Sending the 2.4 MB to more than 64
// nodes over 1 Gbit/s takes longer than that.
const maxWithCode = 64

// startAgent starts the agent, which takes the lock and repairs the environment if an earlier run was
// interrupted. With again set it waits longer for the lock: the agent before it may not know yet
// that its connection is gone.
func (u *nodeRun) startAgent(ctx context.Context, files []wheels.File, again bool) (beginReply, error) {
	expected := []expectedFile{} // not null
	for _, f := range files {
		expected = append(expected, expectedFile{filepath.Base(f.Path), f.SHA256})
	}
	s, b, err := u.startSession(ctx, sessionRequest{Files: expected, LockS: changes.LockWait(again)})
	if err != nil {
		// Another deploy, or a repair, is changing the state that the probe saw.
		if refused := (*agent.Failure)(nil); errors.As(err, &refused) && refused.Busy || u.facts.Unfinished {
			u.change.after, u.change.unseen = nil, true
		}
		return beginReply{}, err
	}
	u.change.unseen = false
	u.session = s
	u.inbox = changes.Inbox{Transfer: u.run.transfer, Node: u.Node, Session: s, Python: u.facts.Executable, Folder: b.Inbox, Received: &u.sent}
	u.setInstalled(b.Now)
	if b.Repaired {
		u.Warn("an earlier change was interrupted; the node has repaired its environment")
	}
	return b, nil
}

// startSession starts the agent and waits until it holds the lock.
func (u *nodeRun) startSession(ctx context.Context, req sessionRequest) (*changes.Session, beginReply, error) {
	var b beginReply
	req.Run, req.Label, req.By = u.run.fleet.Run, FileLabel(u.Host.Name), u.run.opt.By
	s, err := changes.Start(ctx, u.Node, node.Script{Python: u.facts.Executable, Program: agentProgram, Request: req}, &b)
	return s, b, err
}

// install tells the agent to install the wheel and its companions.
func (u *nodeRun) install(ctx context.Context) error {
	m := u.plan.Wheel.Manifest
	pip := ""
	if u.facts.Pip == "" {
		pip = u.facts.PipWheel
		if brought, ok := u.run.pips[wheel.Minor(u.facts.Python)]; ok && pip == "" {
			pip = path.Join(u.inbox.Folder, filepath.Base(brought.Path))
		}
	}
	var done struct {
		Version string `json:"version"`
		Record  string `json:"record"`
	}
	files := []map[string]string{{"name": "deepspeed", "file": path.Join(u.inbox.Folder, filepath.Base(u.plan.Wheel.Path)), "sha256": m.SHA256}}
	for _, a := range u.plan.Extra {
		files = append(files, map[string]string{"name": a.Name, "file": path.Join(u.inbox.Folder, a.File), "sha256": a.SHA256})
	}
	fetched, err := u.fetch(ctx, pip)
	if err != nil {
		return err
	}
	for _, f := range fetched {
		files = append(files, map[string]string{"name": f.Name, "file": f.File, "sha256": f.SHA256})
		u.plan.Extra = append(u.plan.Extra, ExtraWheel{f, "index"})
	}
	if err := u.awaitFree(ctx); err != nil {
		return err
	}
	order := agent.Order{"do": "install", "wheels": files, "pip": pip, "limit_s": u.run.fleet.Limit(installLimit).Seconds(), "accepted": u.run.accepted[m.SHA256]}
	if u.byteCode {
		order["bytecode"] = map[string]any{"file": path.Join(u.inbox.Folder, filepath.Base(u.plan.Wheel.ByteCode.Path)), "magic": m.ByteCode.Magic, "sha256": m.ByteCode.SHA256}
	}
	if err := u.session.Ask(ctx, order, &done); err != nil {
		return err
	}
	u.change.changed, u.change.after, u.change.recordSHA256 = true, &report.Version{Version: done.Version, SHA256: m.SHA256}, done.Record
	return nil
}

// fetch makes the node download the missing requirements from its own index.
func (u *nodeRun) fetch(ctx context.Context, pip string) ([]wheel.BundleWheel, error) {
	if len(u.plan.Fetch) == 0 {
		return nil, nil
	}
	var got struct {
		Wheels []wheel.BundleWheel `json:"wheels"`
	}
	order := agent.Order{"do": "fetch", "needs": u.plan.Fetch, "fixed": installedVersions(*u.facts), "pip": pip, "limit_s": u.run.fleet.Limit(installLimit).Seconds()}
	err := u.session.Ask(ctx, order, &got)
	if err != nil {
		err = fmt.Errorf("downloading the missing requirements from the node's package index: %w", err)
	}
	return got.Wheels, err
}

// verifySharing verifies a node that shares its environment with a node that has already
// recorded the change: it is too late to undo the change.
func (u *nodeRun) verifySharing(ctx context.Context) error {
	err := u.verify(ctx)
	if err == nil || !u.change.changed {
		return err
	}
	leader := cause.Own(u.run.nodes[u.plan.Leader].Host.Name)
	try := strings.TrimPrefix(fault.Hint(err)+"; to go back: dsbuild rollback INVENTORY --limit "+u.run.nodes[u.plan.Leader].Host.Name, "; ")
	return fault.AddHint(cause.Errorf("%w; the environment that it shares with %s keeps the new wheel", err, leader), try)
}

// verify proves that the node has the version that was installed.
func (u *nodeRun) verify(ctx context.Context) error {
	w := u.plan.Wheel
	level := u.run.opt.Verify
	if u.plan.Action == UpToDate {
		level = cmp.Or(u.run.opt.VerifyUnchanged, level)
	}
	request := verify.Request{Level: level, Version: w.Version, Record: u.change.recordSHA256, Ops: w.Manifest.Ops, ExtraWheels: versions(u.plan.Extra)}
	// The agent can compare files itself; ops are loaded by a program of its own, as a training job would.
	if u.session != nil && request.Level == verify.LevelFiles {
		return u.session.Ask(ctx, agent.Order{"do": "verify", "request": request}, new(verify.Reply))
	}
	return verify.Prove(ctx, u.Node, *u.facts, w.Manifest, request)
}

// versions returns the version of each wheel that was installed with DeepSpeed, by name, for the
// verification.
func versions(extra []ExtraWheel) map[string]string {
	out := map[string]string{}
	for _, a := range extra {
		out[a.Name] = a.Version
	}
	return out
}

// journalEntry is a line in the node's journal.
type journalEntry struct {
	Do          string          `json:"do"` // deploy or rollback
	Run         string          `json:"run"`
	At          string          `json:"at"`
	By          string          `json:"by"`
	Node        string          `json:"node"`
	Wheel       string          `json:"wheel"`
	SHA256      string          `json:"sha256"`
	ExtraWheels []string        `json:"along,omitempty"` // wheels installed with it
	Before      *report.Version `json:"before"`
	Verify      verify.Level    `json:"verify"`
}

// record makes the change final and writes the journal.
func (u *nodeRun) record(ctx context.Context) error {
	m := u.plan.Wheel.Manifest
	at := time.Now().UTC().Format(time.RFC3339)
	return u.session.Ask(ctx, agent.Order{
		"do": "record", "forget": false,
		"installed": map[string]any{"wheel": m.Name, "sha256": m.SHA256, "version": u.change.after.Version, "record": u.change.recordSHA256, "at": at, "run": u.run.fleet.Run},
		"journal":   journalEntry{"deploy", u.run.fleet.Run, at, u.run.opt.By, u.Host.Name, m.Name, m.SHA256, extraWheelNames(u.plan.Extra), u.change.before, u.run.opt.Verify},
	}, nil)
}
