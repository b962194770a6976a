package envdeploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

var checkProgram = node.NewProgram("check_environment")

// environmentFiles is the state of an environment's files.
type environmentFiles struct {
	Name     string                      `json:"name"`
	Python   string                      `json:"python"`
	Digest   string                      `json:"digest"`      // of all files that belong to packages
	Tree     string                      `json:"python_tree"` // of its Python, if one came along
	Packages map[string]installedPackage `json:"packages"`
	Replaced []string                    `json:"replaced"` // packages with other files than after the deploy
	Wrong    []string                    `json:"wrong"`    // files that are not as RECORD says
	More     int                         `json:"more"`     // how many more there are
}

type installedPackage struct {
	Version string `json:"version"`
	Digest  string `json:"digest"`
}

// verify proves that the environment has the very files of the lock, and that its ops load.
func (n *nodeState) verify(ctx context.Context) error {
	if !n.HoldsLock() { // the environment was there when the lock was taken
		return n.verifyCurrent(ctx)
	}
	if err := n.compareWithLock(); err != nil {
		return err
	}
	return n.prove(ctx, n.files.Python)
}

// verifyCurrent is verify for the environment that is current already.
func (n *nodeState) verifyCurrent(ctx context.Context) error {
	if err := n.check(ctx); err != nil {
		return err
	}
	if err := n.compareWithLock(); err != nil {
		return fault.WithHint(err, "%s", recreateHint())
	}
	return n.prove(ctx, n.now.Python)
}

// check compares every file of the current environment with RECORD, on the node.
func (n *nodeState) check(ctx context.Context) error {
	var answer struct {
		Checked *environmentFiles `json:"checked"`
		Unsafe  string            `json:"unsafe"`
	}
	script := node.Script{Python: n.interpreter(), Program: checkProgram, Request: n.run.where()}
	if err := script.Run(ctx, n.Runner, func(m json.RawMessage) error { return node.Decode(m, &answer) }); err != nil {
		return err
	}
	if answer.Unsafe != "" {
		return n.refuseUnsafe(answer.Unsafe)
	}
	if answer.Checked == nil || n.now == nil {
		return fault.WithHint(errors.New("environment no longer exists"), "deploy it again: %s", fault.Deploy())
	}
	n.files = answer.Checked
	return nil
}

// compareWithLock compares the packages on the node with the lock, file by file.
func (n *nodeState) compareWithLock() error {
	differs := n.differences()
	if len(differs) == 0 {
		return nil
	}
	const most = 8
	if len(differs) > most {
		differs = append(differs[:most:most], fmt.Sprintf("and %d more", len(differs)-most))
	}
	return errors.New("environment does not match the lockfile: " + strings.Join(differs, "; "))
}

// recreateHint is the hint for an environment whose files have changed. A deploy leaves one with the wanted digest as it
// is, except with --force.
func recreateHint() string {
	return "recreate it, also after an update of its Python: " + fault.Deploy("--force").String()
}

// differences lists the differences between the node's environment and the lock. If dsbuild does not
// have a wheel of the lock here, only the node compares its files: with RECORD, and with those that were deployed.
func (n *nodeState) differences() []string {
	out := slices.Clone(n.files.Wrong)
	if n.files.More > 0 {
		out = append(out, fmt.Sprintf("%d more files", n.files.More))
	}
	if ref := refOf(n.plan.Set); ref != nil && n.files.Tree != ref.Tree {
		out = append(out, "Python does not match "+n.plan.Set.Python.File)
	}
	known := map[string]bool{}
	for _, f := range n.plan.Set.Files {
		known[f.Name] = true
		p, ok := n.files.Packages[f.Name]
		var want string
		if n.run.opt.Files != nil {
			want = n.run.opt.Files.Digests[f.SHA256]
		}
		switch {
		case !ok:
			out = append(out, f.Name+" is missing")
		case want != "" && p.Digest != want:
			out = append(out, fmt.Sprintf("files of %s do not match %s", f.Name, f.File))
		case wheel.CompareVersions(p.Version, f.Version) != 0 && normalVersion(p.Version) != normalVersion(f.Version):
			out = append(out, fmt.Sprintf("%s is %s, not %s", f.Name, node.PlainVersion(p.Version), f.Version))
		case want == "" && slices.Contains(n.files.Replaced, f.Name):
			out = append(out, fmt.Sprintf("%s %s is another build than was deployed", f.Name, f.Version))
		}
	}
	for name := range n.files.Packages {
		if !known[name] {
			out = append(out, name+" is not in the lockfile")
		}
	}
	slices.Sort(out)
	return out
}

// normalVersion is a version as file names and METADATA may spell it alike.
func normalVersion(v string) string {
	return strings.NewReplacer("_", ".", "-", ".").Replace(strings.ToLower(v))
}

// prove loads the machine code of every package, and every op, as a training job of this user would, and gathers the facts of the
// environment.
func (n *nodeState) prove(ctx context.Context, python string) error {
	inside, err := node.Probe(ctx, n.Runner, node.ProbeOptions{Python: python})
	if err != nil {
		return err
	}
	if inside.MissingPython() != "" {
		return errors.New("cannot run the environment's Python: " + inside.NoPython())
	}
	n.inside = &inside
	if n.plan.Set == nil || n.run.opt.Verify != verify.LevelLoad {
		return nil
	}
	files := map[string]string{}
	for _, f := range n.plan.Set.Files {
		files[f.Name] = f.File
	}
	if err := verify.LoadPackages(ctx, n.Node, python, files); err != nil {
		return err
	}
	ds := n.plan.Set.File("deepspeed")
	switch {
	case ds == nil:
		return nil
	case inside.DeepSpeed == nil:
		return errors.New("no DeepSpeed in the environment")
	}
	// Without the wheel here, its own build record says which ops it has.
	m, version := inside.DeepSpeed.Manifest(inside.TorchCUDA), inside.DeepSpeed.Version
	if n.run.opt.Files != nil && n.run.opt.Files.Wheels[ds.SHA256] != nil {
		w := n.run.opt.Files.Wheels[ds.SHA256]
		m, version = w.Manifest, w.Version
	}
	return verify.Check(ctx, n.Node, python, inside, m, verify.Installation{
		Level: verify.LevelLoad, Version: version, Record: inside.DeepSpeed.Record, Ops: m.OpsFor(inside.TorchCUDA),
	})
}

// Verify compares the environments of nodes with the lock and with each other, to the last file.
// It changes nothing on any node.
func Verify(ctx context.Context, opt Options) (*report.Report, error) {
	d := New(opt)
	d.onlyVerify = true
	defer d.Close()
	var tasks []fleet.Task
	for _, n := range d.nodes {
		tasks = append(tasks, fleet.Task{Node: n.Node, End: n.endVerify, Steps: []fleet.Step{
			{Name: "probe", Limit: d.Fleet.Limit(change.ProbeLimit), Do: n.probe, ReadOnly: true},
			{Name: "verify", Limit: d.Fleet.Limit(change.VerifyLimit), Do: n.inspect, ReadOnly: true},
		}})
	}
	d.Fleet.ConnectAndRun(ctx, "verifying", tasks, d.Fleet.StopWhen(0))
	return d.Report(), nil
}

// inspect finds the differences of a node from the lock.
func (n *nodeState) inspect(ctx context.Context) error {
	set, err := n.run.opt.Lock.For(*n.Facts)
	switch {
	case n.Facts.MissingPython() != "" && n.brought == nil:
		return fault.WithHint(errors.New(n.Facts.NoPython()), "%s", pythonHint(n.run.opt.Lock, *n.Facts))
	case err != nil:
		n.differs = []string{err.Error()}
		return nil
	}
	n.plan.Set = set
	if n.now == nil {
		n.differs = []string{"no environment " + n.run.opt.Lock.Name}
		return nil
	}
	if err := n.check(ctx); err != nil {
		return err
	}
	if n.now.Digest != set.Digest {
		n.differs = append(n.differs, fmt.Sprintf("environment is %s, not %s",
			report.ShortSum(node.PlainVersion(n.now.Digest)), report.ShortSum(set.Digest)))
	}
	if n.differs = append(n.differs, n.differences()...); len(n.differs) > 0 {
		return nil
	}
	return n.prove(ctx, n.now.Python)
}

// endVerify sets the status of a node.
func (n *nodeState) endVerify(_ context.Context, err error) {
	defer n.Disconnect()
	switch {
	case err != nil:
	case len(n.differs) > 0:
		n.Status = report.Differs
		try := "deploy it: " + fault.Deploy().String()
		if n.now != nil && n.plan.Set != nil && n.now.Digest == n.plan.Set.Digest {
			try = recreateHint()
		}
		if _, err := n.run.opt.Lock.For(*n.Facts); err != nil { // the lockfile does not cover the node
			try = fault.Hint(err)
		}
		n.Err = fault.WithHint(errors.New(strings.Join(n.differs, "; ")), "%s", try)
	default:
		n.Status = report.OK
	}
}
