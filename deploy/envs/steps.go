package envs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/environment"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// The time limits of the steps.
const (
	probeLimit   = 2 * time.Minute
	putLimit     = 30 * time.Minute
	installLimit = 15 * time.Minute
	verifyLimit  = 15 * time.Minute
	recordLimit  = 5 * time.Minute
	undoLimit    = 2 * time.Minute
	programGrace = 30 * time.Second // time for the node to stop a hanging uv and report it
)

// steps returns the steps of a node in Apply. If one fails, end removes the new environment.
func (u *nodeRun) steps() []fleet.Step {
	limit, wait := u.run.fleet.Limit, u.run.opt.InUse.Wait
	waits := u.run.opt.InUse.AwaitStep(u.run.fleet, u.awaitFree, u.plan.waits)
	holdsLock := func() bool { return u.session != nil }
	switch u.plan.Action {
	case deploy.Install:
		return []fleet.Step{
			waits,
			{Name: "python", Limit: limit(putLimit), Do: pythonBringer{u}.bringPython, Needed: func() bool { return u.plan.Python }}, // a Python that comes along, beside the others
			{Name: "put", Limit: limit(putLimit), Do: u.put},                                                 // takes the lock, sends the files that the node lacks
			{Name: "install", Limit: limit(installLimit) + programGrace, Do: u.install, Needed: holdsLock},   // makes the environment beside the current one
			{Name: "verify", Limit: limit(verifyLimit), Do: u.verify},                                        // compares every package, loads every op
			{Name: "record", Limit: wait + limit(probeLimit) + recordLimit, Do: u.record, Needed: holdsLock}, // switches to it by one rename
		}
	case deploy.Rollback:
		return []fleet.Step{
			waits,
			{Name: "rollback", Limit: wait + limit(installLimit), Do: u.rollBack}, // switches back, after a look at every file
		}
	case deploy.UpToDate:
		left := func() bool { return u.look.Leftovers }
		return []fleet.Step{
			{Name: "put", Limit: limit(putLimit), Do: u.tidy, Needed: left}, // removes the files of an interrupted run
			{Name: "verify", Limit: limit(verifyLimit), Do: u.verifyCurrent},
		}
	}
	return nil
}

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

// restart ends the agent and replaces the connection.
func (u *nodeRun) restart(ctx context.Context) error {
	u.endSession()
	return u.Reconnect(ctx)
}

// awaitFree waits until no process uses the current environment.
func (u *nodeRun) awaitFree(ctx context.Context) error {
	if u.run.opt.InUse.Ignore || u.look.Current == nil {
		return nil
	}
	return u.run.opt.InUse.Await(ctx, u.Node, u.waitUntil, func(ctx context.Context) (cause.Message, error) {
		got, err := node.FindProcesses(ctx, u.Runner, u.look.Current.Python)
		if err != nil {
			return cause.Message{}, fmt.Errorf("dsbuild does not know whether its environment is in use: %w", err)
		}
		return deploy.DescribeProcesses(got), nil
	})
}

// put sends the files to the node. If the connection breaks, it tries again; files that have arrived stay.
func (u *nodeRun) put(ctx context.Context) error {
	return changes.PutAll(ctx, u.Node, u.putAll, u.restart)
}

// putAll starts the agent and sends the files that the node lacks.
func (u *nodeRun) putAll(ctx context.Context, again bool) error {
	b, err := u.start(ctx, refs(u.plan.Set), again, false)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Current.Digest == u.plan.Set.Digest && !u.run.opt.Force {
		u.endSession() // another node that shares the folder has switched meanwhile, or another run
		return nil
	}
	for _, f := range u.plan.Send {
		local := wheels.File{Path: u.run.opt.Files.Paths[f.SHA256], SHA256: f.SHA256, Size: f.Size}
		stored := slices.Contains(b.Have, f.SHA256)
		if stored || slices.Contains(b.Arrived, path.Base(local.Path)) {
			u.AddSent(f.Size)
			u.run.transfer.Relay.Skip(f.SHA256, u.Node)
		} else if err := u.inbox.Put(ctx, local); err != nil {
			return err
		}
		if stored {
			continue
		}
		if err := u.store(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// largeFile is the size in bytes from which a node installs a wheel at once.
const largeFile = 16 << 20

// store lets the node store a file that has arrived. The node installs a large wheel at once, while
// the next files arrive.
func (u *nodeRun) store(ctx context.Context, f environment.File) error {
	set := u.plan.Set
	return u.session.Ask(ctx, agent.Order{
		"do": "store", "file": refTo(f), "early": f.Size >= largeFile && f.SHA256 != set.Installer.SHA256,
		"digest": set.Digest, "installer": refTo(set.Installer), "limit_s": u.run.fleet.Limit(installLimit).Seconds(),
	}, nil)
}

// tidy removes the files of an interrupted run from a node that needs no other change.
func (u *nodeRun) tidy(ctx context.Context) error {
	_, err := u.start(ctx, nil, false, false)
	if errors.As(err, new(*agent.Failure)) {
		return nil // another deploy is running, and the files are its own
	}
	u.endSession()
	return err
}

// start starts the agent, which takes the lock and repairs the remains of an interrupted run. files
// are those that the node is to have.
func (u *nodeRun) start(ctx context.Context, files []fileRef, again, look bool) (beginReply, error) {
	req := sessionRequest{environmentRef: u.run.where(), Run: u.run.fleet.Run, Label: deploy.FileLabel(u.Host.Name), By: u.run.opt.By, Files: files, StatusOnly: look, LockS: changes.LockWait(again)}
	if req.Files == nil {
		req.Files = []fileRef{} // not null
	}
	if u.plan.Action == deploy.Install {
		req.Python = refOf(u.plan.Set)
	}
	var b beginReply
	s, err := changes.Start(ctx, u.Node, node.Script{Python: u.interpreter(), Program: agentProgram, Request: req}, &b)
	if err != nil {
		return beginReply{}, err
	}
	u.now, u.unseen = b.Current, false
	if look {
		s.End()
		return b, nil
	}
	u.session = s
	u.inbox = changes.Inbox{Transfer: u.run.transfer, Node: u.Node, Session: s, Python: u.interpreter(), Folder: b.Inbox, Received: &u.sent}
	if b.Repaired {
		u.Warn("an earlier run was interrupted; the node has cleaned up after it")
	}
	return b, nil
}

// install lets the node make the environment of the files.
func (u *nodeRun) install(ctx context.Context) error {
	all := refs(u.plan.Set)
	accepted := map[string]signing.Signed{}
	if ds := u.plan.Set.File("deepspeed"); ds != nil {
		accepted[ds.SHA256] = u.run.accepted[ds.SHA256]
	}
	var made environmentFiles
	err := u.session.Ask(ctx, agent.Order{
		"do": "install", "digest": u.plan.Set.Digest, "ready": u.plan.Ready, "files": all, "installer": all[0],
		"limit_s": u.run.fleet.Limit(installLimit).Seconds(), "accepted": accepted,
	}, &made)
	if err != nil {
		return err
	}
	u.files = &made
	return nil
}

// verify proves that the environment has the very files of the lock, and that its ops load.
func (u *nodeRun) verify(ctx context.Context) error {
	if u.session == nil { // the environment was there when the lock was taken
		return u.verifyCurrent(ctx)
	}
	if err := u.compareWithLock(); err != nil {
		return err
	}
	return u.prove(ctx, u.files.Python)
}

// verifyCurrent is verify for the environment that is current already.
func (u *nodeRun) verifyCurrent(ctx context.Context) error {
	if err := u.check(ctx); err != nil {
		return err
	}
	if err := u.compareWithLock(); err != nil {
		return fault.AddHint(err, "make it anew: dsbuild env deploy with --force")
	}
	return u.prove(ctx, u.now.Python)
}

// check compares every file of the current environment with RECORD, on the node.
func (u *nodeRun) check(ctx context.Context) error {
	var answer struct {
		Checked *environmentFiles `json:"checked"`
		Unsafe  string            `json:"unsafe"`
	}
	script := node.Script{Python: u.interpreter(), Program: checkProgram, Request: u.run.where()}
	if err := script.Run(ctx, u.Runner, func(m json.RawMessage) error { return node.Decode(m, &answer) }); err != nil {
		return err
	}
	if answer.Unsafe != "" {
		return u.refuseUnsafe(answer.Unsafe)
	}
	if answer.Checked == nil || u.now == nil {
		return fault.WithHint(errors.New("the environment is gone"), "deploy it again")
	}
	u.files = answer.Checked
	return nil
}

// compareWithLock compares the packages on the node with those of the lock, file by file.
func (u *nodeRun) compareWithLock() error {
	differs := u.differences()
	if len(differs) == 0 {
		return nil
	}
	const most = 8
	if len(differs) > most {
		differs = append(differs[:most:most], fmt.Sprintf("and %d more", len(differs)-most))
	}
	return errors.New("the environment is not that of the lock: " + strings.Join(differs, "; "))
}

// differences lists the differences between the node's environment and the lock. If dsbuild does not
// have a wheel of the lock here, only the node compares its files, with RECORD.
func (u *nodeRun) differences() []string {
	out := slices.Clone(u.files.Wrong)
	if u.files.More > 0 {
		out = append(out, fmt.Sprintf("%d more files", u.files.More))
	}
	if ref := refOf(u.plan.Set); ref != nil && u.files.Tree != ref.Tree {
		out = append(out, "its Python is not that of "+u.plan.Set.Python.File)
	}
	known := map[string]bool{}
	for _, f := range u.plan.Set.Files {
		known[f.Name] = true
		p, ok := u.files.Packages[f.Name]
		var want string
		if u.run.opt.Files != nil {
			want = u.run.opt.Files.Digests[f.SHA256]
		}
		switch {
		case !ok:
			out = append(out, f.Name+" is missing")
		case want != "" && p.Digest != want:
			out = append(out, fmt.Sprintf("the files of %s are not those of %s", f.Name, f.File))
		case wheel.CompareVersions(p.Version, f.Version) != 0 && normalVersion(p.Version) != normalVersion(f.Version):
			out = append(out, fmt.Sprintf("%s is %s, not %s", f.Name, node.PlainVersion(p.Version), f.Version))
		}
	}
	for name := range u.files.Packages {
		if !known[name] {
			out = append(out, name+" is not in the lock")
		}
	}
	slices.Sort(out)
	return out
}

// normalVersion is a version as file names and METADATA may spell it alike.
func normalVersion(v string) string {
	return strings.NewReplacer("_", ".", "-", ".").Replace(strings.ToLower(v))
}

// prove loads every op, as a training job of this user would, and gathers the facts of the
// environment.
func (u *nodeRun) prove(ctx context.Context, python string) error {
	inside, err := node.Probe(ctx, u.Runner, node.ProbeOptions{Python: python})
	if err != nil {
		return err
	}
	if part := inside.MissingPython(); part != "" {
		return errors.New("the environment's Python does not run: " + part + " is missing")
	}
	u.inside = &inside
	if u.plan.Set == nil || u.run.opt.Verify != verify.LevelLoad {
		return nil
	}
	ds := u.plan.Set.File("deepspeed")
	switch {
	case ds == nil:
		return nil
	case inside.DeepSpeed == nil:
		return errors.New("the environment has no DeepSpeed")
	}
	// Without the wheel here, its own build record says which ops it has.
	m, version := wheel.Manifest{CUDA: inside.TorchCUDA, Ops: inside.DeepSpeed.Ops}, inside.DeepSpeed.Version
	if u.run.opt.Files != nil && u.run.opt.Files.Wheels[ds.SHA256] != nil {
		w := u.run.opt.Files.Wheels[ds.SHA256]
		m, version = w.Manifest, w.Version
	}
	return verify.Prove(ctx, u.Node, inside, m, verify.Request{Level: verify.LevelLoad, Version: version, Record: inside.DeepSpeed.Record, Ops: m.Ops})
}

// environmentNote is the note in an environment that is whole.
type environmentNote struct {
	Name      string                    `json:"name"`
	Digest    string                    `json:"digest"`
	Files     []string                  `json:"files"` // sha256 of its wheels and of the installer
	Python    *pythonRef                `json:"python,omitempty"`
	Packages  map[string]packageOnANode `json:"packages"`
	DeepSpeed *report.Version           `json:"deepspeed"`
	At        string                    `json:"at"`
	Run       string                    `json:"run"`
	By        string                    `json:"by"`
}

// journalEntry is a line in the journal of an environment.
type journalEntry struct {
	Do     string `json:"do"` // env deploy or env rollback
	Run    string `json:"run"`
	At     string `json:"at"`
	By     string `json:"by"`
	Node   string `json:"node"`
	Digest string `json:"digest"`
	Before string `json:"before"`
}

// newEntry describes a change to the environment with this digest, for the journal.
func newEntry(u *nodeRun, digest string) journalEntry {
	return journalEntry{u.run.opt.Command, u.run.fleet.Run, time.Now().UTC().Format(time.RFC3339), u.run.opt.By, u.Host.Name, digest, u.environment()}
}

// record switches to the environment.
func (u *nodeRun) record(ctx context.Context) error {
	if err := u.awaitFree(ctx); err != nil { // a job may have started since
		return err
	}
	set := u.plan.Set
	m := environmentNote{Name: u.run.opt.Lock.Name, Digest: set.Digest, Python: refOf(set), Packages: u.files.Packages, Run: u.run.fleet.Run, By: u.run.opt.By, At: time.Now().UTC().Format(time.RFC3339)}
	for _, f := range refs(set) {
		m.Files = append(m.Files, f.SHA256)
	}
	if w := u.wheel(); w != nil {
		m.DeepSpeed = &report.Version{Version: w.Version, SHA256: w.SHA256}
		if u.inside != nil && u.inside.DeepSpeed != nil {
			m.DeepSpeed.Version = u.inside.DeepSpeed.Version
		}
	}
	var done struct {
		Python string `json:"python"`
	}
	if err := u.session.Ask(ctx, agent.Order{"do": "record", "digest": set.Digest, "mark": m, "journal": newEntry(u, set.Digest)}, &done); err != nil {
		return err
	}
	u.changed, u.now = true, &InstalledEnvironment{Name: u.files.Name, Digest: set.Digest, Python: done.Python, DeepSpeed: m.DeepSpeed}
	return nil
}

// rollBack switches back to the environment before.
func (u *nodeRun) rollBack(ctx context.Context) error {
	if err := u.awaitFree(ctx); err != nil {
		return err
	}
	b, err := u.start(ctx, refs(u.plan.Set), false, false)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Run == u.run.fleet.Run && b.Current.Digest == u.look.Previous.Digest {
		u.endSession() // another node that shares the folder has switched back meanwhile
		u.now = b.Current
		return u.prove(ctx, b.Current.Python)
	}
	if planned := u.look.Previous; b.Previous == nil || b.Previous.Digest != planned.Digest {
		return fault.WithHint(errors.New("another change was made since the survey"), "check with --dry-run, then roll back again")
	}
	accepted, err := u.session.AskKept(ctx, u.run.opt.Policy)
	if err != nil {
		return err
	}
	var done struct {
		Python string `json:"python"`
	}
	if err := u.session.Ask(ctx, agent.Order{"do": "roll_back", "journal": newEntry(u, b.Previous.Digest), "accepted": accepted}, &done); err != nil {
		return err
	}
	now := *b.Previous
	now.Python = done.Python
	u.changed, u.now = true, &now
	return u.prove(ctx, done.Python)
}

// undo removes the environment that a failed run made, even after ctx has ended, and finds out which
// one is current.
func (u *nodeRun) undo(ctx context.Context) {
	if u.session == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	var is undoReply
	err := u.session.Ask(limited, agent.Order{"do": "undo"}, &is)
	u.endSession()
	if err != nil {
		is, err = inspectAgain(limited, u, err)
	}
	u.describe(is, err)
}

// inspectAgain finds out which environment is current after the agent was lost. It starts another
// agent, over a new connection if needed.
func inspectAgain(ctx context.Context, u *nodeRun, lost error) (undoReply, error) {
	if errors.Is(lost, remote.ErrLost) {
		if err := u.Reconnect(ctx); err != nil {
			return undoReply{}, err
		}
	}
	b, err := u.start(ctx, refs(u.plan.Set), true, true)
	if err != nil {
		return undoReply{}, err
	}
	return undoReply{Current: b.Current, Recorded: b.Run == u.run.fleet.Run, Finished: true}, nil
}

// describe adds to the node's error which environment it has now.
func (u *nodeRun) describe(is undoReply, err error) {
	var after error
	switch {
	case err != nil:
		after, u.unseen, u.now = errors.New("the node has the old environment or the new one, whole; dsbuild could not find out which"), true, nil
	case is.Recorded:
		u.changed, u.now = true, is.Current
		after = errors.New("the new environment is current and stays")
	case is.Current == nil:
		u.now, after = nil, errors.New("no environment is current, as before")
	default:
		u.now, after = is.Current, fmt.Errorf("the environment %s stays current", report.ShortSum(node.PlainVersion(is.Current.Digest)))
	}
	u.Log.Line("", after.Error())
	u.Err = fault.AddHint(fmt.Errorf("%w; %w", u.Err, after), fault.Hint(u.Err))
}
