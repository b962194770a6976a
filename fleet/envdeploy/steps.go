package envdeploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// Steps implements change.Kind.
func (u *nodeRun) Steps() []fleet.Step {
	limit, wait := u.run.Fleet.Limit, u.run.opt.InUse.Wait
	switch u.plan.Action {
	case change.Install:
		python := u.PutStep("python", u.bringPython) // a Python that comes along, beside the others
		python.Needed = func() bool { return u.plan.Python }
		return []fleet.Step{
			u.AwaitStep(),
			python,
			u.PutStep("put", u.put), // takes the lock, sends the files that the node lacks
			{Name: "install", Limit: limit(change.InstallLimit) + change.ProgramGrace, Do: u.install, Needed: u.HoldsLock},   // makes the environment beside the current one
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: u.verify},                                                 // compares every package, loads every op
			{Name: "record", Limit: wait + limit(change.ProbeLimit) + change.RecordLimit, Do: u.record, Needed: u.HoldsLock}, // switches to it by one rename
		}
	case change.Rollback:
		return []fleet.Step{
			u.AwaitStep(),
			{Name: "rollback", Limit: wait + limit(change.InstallLimit), Do: u.rollBack}, // switches back, after a look at every file
		}
	case change.UpToDate:
		return []fleet.Step{
			u.TidyStep(func() bool { return u.look.Leftovers }),
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: u.verifyCurrent},
		}
	}
	return nil
}

// Users finds the processes that use the current environment.
func (u *nodeRun) Users(ctx context.Context) (node.Processes, error) {
	if u.look.Current == nil {
		return node.Processes{}, nil
	}
	return node.FindProcesses(ctx, u.Runner, u.look.Current.Python)
}

// local is a file of the lock on this machine.
func (d *Deployment) local(f environment.File) fleet.LocalFile {
	return fleet.LocalFile{Path: d.opt.Files.Paths[f.SHA256], SHA256: f.SHA256, Size: f.Size}
}

// Uploads implements change.Kind.
func (u *nodeRun) Uploads() []change.Upload {
	var files []change.Upload
	if u.plan.Python {
		file := u.run.local(environment.File{File: u.plan.Set.Python.File, SHA256: u.plan.Set.Python.SHA256, Size: u.plan.Set.Python.Size})
		// Until it has come, another Python must run the program of a relay. One that is there already may be replaced meanwhile.
		relays := u.brought != nil && u.brought.use != "" && !u.brought.has(refOf(u.plan.Set))
		files = append(files, change.Upload{LocalFile: file, Alone: !relays})
	}
	for _, f := range u.plan.Send {
		files = append(files, change.Upload{LocalFile: u.run.local(f)})
	}
	return files
}

// largeFile is the size in bytes from which a node installs a wheel at once.
const largeFile = 16 << 20

// put starts the agent, and sends the files that the node lacks and that it stores.
func (u *nodeRun) put(ctx context.Context, again bool) error {
	set := u.plan.Set
	b, err := u.Begin(ctx, refs(set), again, false)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Current.Digest == set.Digest && !u.run.opt.Force {
		u.Release() // another node that shares the folder has switched meanwhile, or another run
		return nil
	}
	if b.Current != nil && b.Run == u.run.Fleet.Run && b.Current.Digest != set.Digest {
		return fault.WithHint(errors.New("another node has put another environment into the folder, which it shares"), mixedHint)
	}
	for _, f := range u.plan.Send {
		stored := slices.Contains(b.Have, f.SHA256)
		if err := u.PutFile(ctx, u.run.local(f), stored, b); err != nil {
			return err
		}
		if stored {
			continue
		}
		// The node installs a large wheel at once, while the next files arrive.
		err := u.Ask(ctx, agent.Order{
			"do": "store", "file": refTo(f), "early": f.Size >= largeFile && f.SHA256 != set.Installer.SHA256,
			"digest": set.Digest, "installer": refTo(set.Installer), "limit_s": u.run.Fleet.Limit(change.InstallLimit).Seconds(),
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// Script implements change.Kind.
func (u *nodeRun) Script(req change.Request) node.Script {
	all := request{Request: req, environmentRef: u.run.where()}
	if u.plan.Action == change.Install {
		all.Python = refOf(u.plan.Set)
	}
	return node.Script{Python: u.interpreter(), Program: agentProgram, Request: all}
}

// Found implements change.Kind.
func (u *nodeRun) Found(b change.Begun) { u.now = b.Current }

// install lets the node make the environment of the files.
func (u *nodeRun) install(ctx context.Context) error {
	all := refs(u.plan.Set)
	accepted := map[string]signing.Signed{}
	if ds := u.plan.Set.File("deepspeed"); ds != nil {
		accepted[ds.SHA256] = u.run.Accepted[ds.SHA256]
	}
	var made environmentFiles
	err := u.Ask(ctx, agent.Order{
		"do": "install", "digest": u.plan.Set.Digest, "ready": u.plan.Ready, "files": all, "installer": all[0],
		"limit_s": u.run.Fleet.Limit(change.InstallLimit).Seconds(), "accepted": accepted,
	}, &made)
	if err != nil {
		return err
	}
	u.files = &made
	return nil
}

// verify proves that the environment has the very files of the lock, and that its ops load.
func (u *nodeRun) verify(ctx context.Context) error {
	if u.Session == nil { // the environment was there when the lock was taken
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
	change.JournalEntry
	Digest string `json:"digest"`
	Before string `json:"before"`
}

// newEntry describes a change to the environment with this digest, for the journal.
func (u *nodeRun) newEntry(digest string) journalEntry {
	return journalEntry{u.NewEntry(u.run.opt.Command), digest, u.environment()}
}

// record switches to the environment.
func (u *nodeRun) record(ctx context.Context) error {
	if err := u.AwaitFree(ctx); err != nil { // a job may have started since
		return err
	}
	set := u.plan.Set
	m := environmentNote{Name: u.run.opt.Lock.Name, Digest: set.Digest, Python: refOf(set), Packages: u.files.Packages, Run: u.run.Fleet.Run, By: u.run.opt.By, At: time.Now().UTC().Format(time.RFC3339)}
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
	if err := u.Ask(ctx, agent.Order{"do": "record", "digest": set.Digest, "mark": m, "journal": u.newEntry(set.Digest)}, &done); err != nil {
		return err
	}
	u.Changed, u.now = true, &change.Environment{Name: u.files.Name, Digest: set.Digest, Python: done.Python, DeepSpeed: m.DeepSpeed}
	return nil
}

// rollBack switches back to the environment before.
func (u *nodeRun) rollBack(ctx context.Context) error {
	if err := u.AwaitFree(ctx); err != nil {
		return err
	}
	b, err := u.Begin(ctx, refs(u.plan.Set), false, false)
	if err != nil {
		return err
	}
	if b.Current != nil && b.Run == u.run.Fleet.Run && b.Current.Digest == u.look.Previous.Digest {
		u.Release() // another node that shares the folder has switched back meanwhile
		u.now = b.Current
		return u.prove(ctx, b.Current.Python)
	}
	if planned := u.look.Previous; b.Before == nil || b.Before.Digest != planned.Digest {
		return fault.WithHint(errors.New("another change was made since the survey"), "check with --dry-run, then roll back again")
	}
	accepted, err := u.AskKept(ctx)
	if err != nil {
		return err
	}
	var done struct {
		Python string `json:"python"`
	}
	if err := u.Ask(ctx, agent.Order{"do": "roll_back", "journal": u.newEntry(b.Before.Digest), "accepted": accepted}, &done); err != nil {
		return err
	}
	now := *b.Before
	now.Python = done.Python
	u.Changed, u.now = true, &now
	return u.prove(ctx, done.Python)
}

// Undone notes which environment is current, and describes it.
func (u *nodeRun) Undone(is change.Undone, err error) error {
	switch u.now = is.Current; {
	case err != nil:
		u.now = nil
		return errors.New("the node has the old environment or the new one, whole; dsbuild could not find out which")
	case is.Recorded:
		u.Changed = true
		return errors.New("the new environment is current and stays")
	case is.Current == nil:
		return errors.New("no environment is current, as before")
	}
	return fmt.Errorf("the environment %s stays current", report.ShortSum(node.PlainVersion(is.Current.Digest)))
}
