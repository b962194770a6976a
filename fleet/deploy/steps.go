package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

// Steps implements change.Kind.
func (u *nodeRun) Steps() []fleet.Step {
	limit, wait := u.run.Fleet.Limit, u.run.opt.InUse.Wait
	verify := fleet.Step{Name: "verify", Limit: limit(change.VerifyLimit), Do: u.verify} // proves that an import finds the wheel
	switch u.plan.Action {
	case change.Install:
		return []fleet.Step{
			u.AwaitStep(),
			u.PutStep("put", u.put), // takes the lock, sends the files
			{Name: "install", Limit: wait + limit(change.InstallLimit) + change.ProgramGrace, Do: u.install, Needed: u.HoldsLock}, // moves the old version aside, runs pip
			verify,
			{Name: "record", Limit: change.RecordLimit, Do: u.record, Needed: u.HoldsLock}, // makes the change final, writes the journal
		}
	case change.Rollback:
		return []fleet.Step{
			u.AwaitStep(),
			{Name: "rollback", Limit: wait + limit(change.InstallLimit), Do: u.exchange}, // takes the lock, exchanges the versions
			// The agent compares the files of the restored version with the digests that the deploy noted. It needs no RECORD and
			// loads no op: what is wrong now was wrong before the deploy, too.
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: func(ctx context.Context) error {
				return u.Ask(ctx, agent.Order{"do": "verify_back"}, nil)
			}},
			{Name: "record", Limit: change.RecordLimit, Do: u.recordBack, Needed: u.HoldsLock},
		}
	case change.Shared:
		installs := func() bool { return u.plan.Wheel != nil } // else it follows a rollback
		return []fleet.Step{
			{Name: "install", Limit: limit(change.ProbeLimit), Do: u.findSharedInstallation}, // finds the version that the other node installed
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: u.verifySharing, Needed: installs},
		}
	case change.UpToDate:
		return []fleet.Step{u.TidyStep(func() bool { return u.facts.Leftovers }), verify}
	}
	return nil
}

// put starts the agent and sends the files that have not arrived yet.
func (u *nodeRun) put(ctx context.Context, again bool) error {
	files := u.Uploads()
	b, err := u.startAgent(ctx, files, again)
	if err != nil {
		return err
	}
	m := u.plan.Wheel.Manifest
	if b.Now != nil && b.Now.Intact && b.Now.SHA256 == m.SHA256 && !u.run.opt.Force && len(u.plan.Extra) == 0 {
		// Another deploy has installed this wheel meanwhile. Installing it again would only
		// replace the version in previous/ that a rollback should bring back.
		u.Release()
		return nil
	}
	u.byteCode = false
	for _, f := range files {
		if err := u.PutFile(ctx, f.LocalFile, false, b); err != nil {
			return err
		}
		u.byteCode = u.byteCode || u.plan.Wheel.ByteCode != nil && f.LocalFile == fleet.LocalFile(*u.plan.Wheel.ByteCode)
	}
	return nil
}

// Uploads returns the files to send to a node that installs.
func (u *nodeRun) Uploads() []change.Upload {
	m := u.plan.Wheel.Manifest
	files := []change.Upload{{LocalFile: fleet.LocalFile{Path: u.plan.Wheel.Path, SHA256: m.SHA256, Size: m.Size}}}
	if code := u.plan.Wheel.ByteCode; code != nil && len(u.plan.Extra) == 0 {
		files = append(files, change.Upload{LocalFile: fleet.LocalFile(*code)})
	}
	for _, a := range u.plan.Extra {
		files = append(files, change.Upload{LocalFile: fleet.LocalFile{Path: a.Path, SHA256: a.SHA256, Size: a.Size}})
	}
	if pip, ok := u.run.pips[wheel.Minor(u.facts.Python)]; ok && u.facts.Pip == "" && u.facts.PipWheel == "" {
		files = append(files, change.Upload{LocalFile: pip})
	}
	return files
}

// startAgent starts the agent, which expects files.
func (u *nodeRun) startAgent(ctx context.Context, files []change.Upload, again bool) (change.Begun, error) {
	var expected []change.Expected
	for _, f := range files {
		expected = append(expected, change.Expected{Name: filepath.Base(f.Path), SHA256: f.SHA256})
	}
	b, err := u.Begin(ctx, expected, again, false)
	u.Unseen = u.Unseen || err != nil && u.facts.Unfinished // a repair may have changed the state that the probe saw
	return b, err
}

// Script implements change.Kind.
func (u *nodeRun) Script(req change.Request) node.Script {
	return node.Script{Python: u.facts.Executable, Program: agentProgram, Request: req}
}

// Found implements change.Kind.
func (u *nodeRun) Found(b change.Begun) { u.setInstalled(b.Now) }

// Users asks the agent on the node for the processes. Without an agent it runs a program of its own there.
func (u *nodeRun) Users(ctx context.Context) (node.Processes, error) {
	if u.Session != nil {
		var got node.Processes
		err := u.Ask(ctx, agent.Order{"do": "users"}, &got)
		return got, err
	}
	return node.FindProcesses(ctx, u.Runner, u.facts.Executable)
}

// install tells the agent to install the wheel and its companions.
func (u *nodeRun) install(ctx context.Context) error {
	m := u.plan.Wheel.Manifest
	pip := ""
	if u.facts.Pip == "" {
		pip = u.facts.PipWheel
		if brought, ok := u.run.pips[wheel.Minor(u.facts.Python)]; ok && pip == "" {
			pip = u.InboxPath(brought.Path)
		}
	}
	files := []map[string]string{{"name": "deepspeed", "file": u.InboxPath(u.plan.Wheel.Path), "sha256": m.SHA256}}
	for _, a := range u.plan.Extra {
		files = append(files, map[string]string{"name": a.Name, "file": u.InboxPath(a.File), "sha256": a.SHA256})
	}
	if err := u.AwaitFree(ctx); err != nil {
		return err
	}
	order := agent.Order{"do": "install", "wheels": files, "pip": pip, "limit_s": u.run.Fleet.Limit(change.InstallLimit).Seconds(), "accepted": u.run.Accepted[m.SHA256]}
	if u.byteCode {
		order["bytecode"] = map[string]any{"file": u.InboxPath(u.plan.Wheel.ByteCode.Path), "magic": m.ByteCode.Magic, "sha256": m.ByteCode.SHA256}
	}
	var done struct {
		Version string `json:"version"`
		Record  string `json:"record"`
	}
	if err := u.Ask(ctx, order, &done); err != nil {
		return err
	}
	u.Changed, u.after, u.recordSHA256 = true, &report.Version{Version: done.Version, SHA256: m.SHA256}, done.Record
	return nil
}

// verifySharing verifies a node that shares its environment with a node that has already
// recorded the change: it is too late to undo the change.
func (u *nodeRun) verifySharing(ctx context.Context) error {
	err := u.verify(ctx)
	if err == nil || !u.Changed {
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
	if u.plan.Action == change.UpToDate {
		level = cmp.Or(u.run.opt.VerifyUnchanged, level)
	}
	versions := map[string]string{}
	for _, a := range u.plan.Extra {
		versions[a.Name] = a.Version
	}
	request := verify.Request{Level: level, Version: w.Version, Record: u.recordSHA256, Ops: w.Manifest.Ops, ExtraWheels: versions}
	// The agent can compare files itself; ops are loaded by a program of its own, as a training job would.
	if u.Session != nil && request.Level == verify.LevelFiles {
		return u.Ask(ctx, agent.Order{"do": "verify", "request": request}, new(verify.Reply))
	}
	return verify.Prove(ctx, u.Node, *u.facts, w.Manifest, request)
}

// journalEntry is a line in the node's journal.
type journalEntry struct {
	change.JournalEntry
	Wheel       string          `json:"wheel"`
	SHA256      string          `json:"sha256"`
	ExtraWheels []string        `json:"along,omitempty"` // wheels installed with it
	Before      *report.Version `json:"before"`
	Verify      verify.Level    `json:"verify"`
}

// record makes the change final and writes the journal.
func (u *nodeRun) record(ctx context.Context) error {
	m, e := u.plan.Wheel.Manifest, u.NewEntry("deploy")
	return u.Ask(ctx, agent.Order{
		"do": "record", "forget": false,
		"installed": map[string]any{"wheel": m.Name, "sha256": m.SHA256, "version": u.after.Version, "record": u.recordSHA256, "at": e.At, "run": e.Run},
		"journal":   journalEntry{e, m.Name, m.SHA256, extraWheelNames(u.plan.Extra), u.before, u.run.opt.Verify},
	}, nil)
}

// Undone adds the result of the undo to the node's error.
func (u *nodeRun) Undone(is change.Undone, err error) error {
	switch {
	case err != nil:
		u.after = nil
		return describeUnseen(u, err)
	case is.Recorded && is.Finished:
		u.Changed = true
		return errors.New(u.after.String() + " is installed and recorded")
	case is.Recorded:
		u.Changed = true
		return errors.New(u.after.String() + " is installed and stays; the next run finishes recording it")
	case is.Before == nil:
		u.Changed, u.after = false, nil
		return errors.New("put back: no DeepSpeed, as before")
	}
	u.Changed, u.after = false, is.Before
	return cause.Errorf("put back: DeepSpeed %s, as before", cause.Own(is.Before.Version))
}

// describeUnseen describes the state of a node whose undo failed or gave no answer.
func describeUnseen(u *nodeRun, err error) error {
	var refused *agent.Failure
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("its environment was not put back: %w; the next deploy puts it back first", err)
	case u.Step == "record":
		return errors.New("it may run either version; deploy again")
	case errors.Is(err, remote.ErrLost):
		return errors.New("the node puts its environment back by itself; dsbuild could not confirm it")
	}
	if u.Err.Error() == err.Error() {
		return errors.New("the state of its environment is unknown; the next deploy repairs it")
	}
	return fmt.Errorf("the state of its environment is unknown (%w); the next deploy repairs it", err)
}
