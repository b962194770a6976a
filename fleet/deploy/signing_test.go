package deploy_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// signedWheel is a wheel with its statement, beside which tests put signatures.
type signedWheel struct {
	file, statement string
	loaded          []wheel.Loaded
}

func newSignedWheel(t *testing.T, opt wheelOptions) signedWheel {
	t.Helper()
	file, _, statement := wheeltest.Built(t, t.TempDir(), testWheel(t, opt))
	return signedWheel{file, string(statement), load(t, file)}
}

// put writes what lies beside the wheel.
func (w signedWheel) put(t *testing.T, s signing.Signed) {
	t.Helper()
	old, err := wheel.SignatureFiles(w.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(old, w.file+wheel.ProvenanceSuffix) {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
	if s.Statement != "" {
		put(t, w.file+wheel.ProvenanceSuffix, s.Statement)
	}
	for i, text := range s.Signatures {
		put(t, wheel.SignatureFile(w.file, string("0123456789abcdef"[i])), text)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sign puts signatures of the statement beside the wheel.
func (w signedWheel) sign(t *testing.T, k signingtest.Keys, names ...string) {
	t.Helper()
	s := signing.Signed{Statement: w.statement}
	for _, name := range names {
		s.Signatures = append(s.Signatures, k.Sign(t, name, w.statement))
	}
	w.put(t, s)
}

// untouched is a dialer that no run may use.
type untouched struct{ t *testing.T }

func (d untouched) Dial(context.Context, remote.Target) (remote.Conn, error) {
	d.t.Error("a node was asked, though the policy accepts no wheel")
	return nil, remote.ErrLost
}

func (untouched) Close() error { return nil }

// mustRefuse expects that no node is asked about a wheel that the policy refuses.
func mustRefuse(t *testing.T, opt deploy.Options, name, want string) {
	t.Helper()
	opt.Dialer = untouched{t}
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

// mustFail expects that a node which was to change is as it was.
func mustFail(t *testing.T, e environment, was map[string]string, n report.Node, name, want string) {
	t.Helper()
	if n.Status != report.Failed && n.Status != report.Refused || n.Changed || !strings.Contains(n.Error, want) {
		t.Errorf("%s: %s at %s, changed %v: %q, want %q", name, n.Status, n.Step, n.Changed, n.Error, want)
	}
	e.mustBe(t, was)
}

const trustA, trustBoth = "signers: [{name: a, key: $a}]", "signers: [{name: a, key: $a}, {name: b, key: $b}]"

// A wheel that the policy refuses is judged before a node is asked.
func TestRefusedWheelAsksNoNode(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	h, s := host(t, "gpu1", environment{}, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	for _, a := range signingtest.Attacks(t, k, filepath.Base(w.file), w.statement) {
		w.put(t, a.Signed)
		opt.Policy = a.Policy
		mustRefuse(t, opt, a.Name, a.Want)
	}
	opt.Policy = k.Policy(t, trustA)
	signature, statement := wheel.SignatureFile(w.file, "0"), w.file+wheel.ProvenanceSuffix
	for name, change := range map[string]func(){
		"a link to a signature": func() { link(t, signature) },
		"a link to a statement": func() { link(t, statement) },
		"a huge signature":      func() { put(t, signature, strings.Repeat("A", 65<<10)) },
		"a huge statement":      func() { put(t, statement, strings.Repeat("A", 5<<20)) },
		"too many signatures": func() {
			for i := range 33 {
				put(t, wheel.SignatureFile(w.file, strings.Repeat("a", i+1)), "x")
			}
		},
	} {
		w.sign(t, k, "a")
		change()
		mustRefuse(t, opt, name, "")
	}
}

// link replaces a file by a link to it.
func link(t *testing.T, path string) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "target")
	if err := os.Rename(path, target); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// From several wheels dsbuild takes those that the policy accepts.
func TestRefusedWheelsAreLeftOut(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	good, bad := newSignedWheel(t, wheelOptions{}), newSignedWheel(t, wheelOptions{version: "0.19.9"})
	good.sign(t, k, "a")
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, slices.Concat(bad.loaded, good.loaded), []*sshtest.Server{s}, h)
	opt.Verify, opt.Policy = verify.LevelFiles, k.Policy(t, trustA)
	if n := run(t, t.Context(), opt).Nodes[0]; !n.Changed || n.After.SHA256 != good.loaded[0].Manifest.SHA256 {
		t.Errorf("%+v", n)
	}
}

// A wheel that is swapped here after it was judged comes to no environment.
func TestWheelSwappedAfterTheJudgement(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	evil, err := os.ReadFile(makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/evil.py": "evil = True\n"}}))
	if err != nil {
		t.Fatal(err)
	}
	e := newEnvironment(t, "2.15.0")
	was := e.snapshot(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Policy = k.Policy(t, trustA)
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, w.file, string(evil))
	mustFail(t, e, was, d.Apply(t.Context()).Nodes[0], "swapped", "")
}

// A file that is exchanged on the node during the installation does not stay, with a policy and without one.
func TestFilesExchangedDuringTheInstallation(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	evil := makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/evil.py": "evil = True\n"}})
	edited := makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/ops/__init__.py": "evil = True\n"}})
	e := newEnvironment(t, "2.15.0").withPip(t, realPip)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	inbox := e.own("inbox", filepath.Base(w.file))
	was := e.snapshot(t)
	for name, c := range map[string]struct{ code, want string }{
		"a wheel with a module more": {"import shutil; shutil.copyfile('" + evil + "', '" + inbox + "')", "evil.py is not in the accepted wheel"},
		"a wheel with another module": {
			"import shutil; shutil.copy('" + edited + "', '" + inbox + ".x'); os.rename('" + inbox + ".x', '" + inbox + "')",
			"deepspeed/ops/__init__.py does not match the accepted wheel",
		},
		"a link in place of a module": {
			"import atexit; atexit.register(lambda: (os.remove('" + e.site + "/deepspeed/version.py'), os.symlink('/etc/hostname', '" + e.site + "/deepspeed/version.py')))",
			"deepspeed/version.py does not match the accepted wheel",
		},
	} {
		started, remove := e.hook(t, c.code)
		for _, p := range []*signing.Policy{k.Policy(t, trustA), nil} {
			opt.Policy = p
			mustFail(t, e, was, run(t, t.Context(), opt).Nodes[0], name, c.want)
		}
		if !exists(started)() {
			t.Errorf("%s: pip was never started", name)
		}
		remove()
	}
	opt.Policy = k.Policy(t, trustA)
	if r := run(t, t.Context(), opt); r.Err() != nil || !r.Nodes[0].Changed {
		t.Errorf("after all attacks the signed wheel is refused: %+v", r.Nodes[0])
	}
}

// Requirements that nobody has signed come along only if the policy accepts them; else nothing is sent.
func TestPolicyRefusesUnsignedCompanions(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{require: []string{"newcomer"}})
	w.sign(t, k, "a")
	e := newEnvironment(t, "2.15.0")
	was := e.snapshot(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer, opt.Bundle = count, wheelhouse(t, small{name: "newcomer", version: "1.0"})
	opt.Policy = k.Policy(t, trustA)
	n := run(t, t.Context(), opt).Nodes[0]
	if mustFail(t, e, was, n, "unsigned companion", "would install unsigned wheels"); n.Step != "fit" || count.Puts.Load() != 0 {
		t.Errorf("refused at %s after %d files", n.Step, count.Puts.Load())
	}
	opt = options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Bundle, opt.Policy = wheelhouse(t, small{name: "newcomer", version: "1.0"}), k.Policy(t, trustA+"\ncompanions: accept")
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
}

// replaced is a node on which one signed version was deployed after another.
type replaced struct {
	environment
	opt        deploy.Options
	old, newer signedWheel
	was        map[string]string
}

func replacedVersion(t *testing.T, k signingtest.Keys, between func(environment)) replaced {
	t.Helper()
	r := replaced{environment: newEnvironment(t, "2.15.0"), old: newSignedWheel(t, wheelOptions{version: "0.19.7"}), newer: newSignedWheel(t, wheelOptions{})}
	r.old.sign(t, k, "a")
	r.newer.sign(t, k, "b")
	h, s := host(t, "gpu1", r.environment, sshtest.Options{})
	r.opt = options(t, r.old.loaded, []*sshtest.Server{s}, h)
	r.opt.Verify, r.opt.Policy = verify.LevelFiles, k.Policy(t, trustBoth)
	if deployed := run(t, t.Context(), r.opt); deployed.Err() != nil {
		t.Fatal(deployed.Err())
	}
	between(r.environment)
	r.opt.Wheels = r.newer.loaded
	if deployed := run(t, t.Context(), r.opt); deployed.Err() != nil {
		t.Fatal(deployed.Err())
	}
	r.was = r.snapshot(t)
	return r
}

// refuses expects that a rollback under a policy is refused and changes nothing.
func (r replaced) refuses(t *testing.T, k signingtest.Keys, name, policy, want string) {
	t.Helper()
	r.opt.Policy = k.Policy(t, policy)
	mustFail(t, r.environment, r.was, back(t, r.opt).Nodes[0], name, want)
}

// find returns the path of a kept file.
func (r replaced) find(t *testing.T, is func(path string, text []byte) bool) (found string) {
	t.Helper()
	err := filepath.WalkDir(r.own("previous"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if text, _ := os.ReadFile(path); is(path, text) {
			found = path
		}
		return nil
	})
	if err != nil || found == "" {
		t.Fatal(err, found)
	}
	return found
}

func TestRollbackJudgesTheKeptFiles(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	k := signingtest.NewKeys(t)
	r := replacedVersion(t, k, func(environment) {})
	r.refuses(t, k, "the key was revoked since", "signers: [{name: b, key: $b}]\nrevoked: ['@a']", "is revoked")
	r.refuses(t, k, "the version is too old now", trustBoth+"\nminimum: 0.19.8", "older than 0.19.8")
	stored := r.own("signed", r.old.loaded[0].Manifest.SHA256+".json")
	module := r.find(t, func(path string, _ []byte) bool { return filepath.Base(path) == "version.py" })
	script := r.find(t, func(_ string, text []byte) bool {
		return bytes.HasPrefix(text, []byte("#!")) && bytes.Contains(text, []byte("print('report')"))
	})
	add := func(text string) func(string) string { return func(s string) string { return s + text } }
	for name, c := range map[string]struct {
		path   string
		change func(string) string // nil: the file is removed
		want   string
	}{
		"the signatures are gone": {stored, nil, "its signatures are missing"},
		"another list of files":   {stored, func(s string) string { return strings.Replace(s, "deepspeed/version.py,", "deepspeed/versiom.py,", 1) }, "file list does not match"},
		"a module was edited":     {module, add("evil = True\n"), "version.py differs from the signed file"},
		"a module is gone":        {module, nil, "version.py differs from the signed file"},
		"a command was edited":    {script, add("evil = True\n"), "ds_report differs from the signed file"},
		"another interpreter":     {script, func(s string) string { return "#!/tmp/evil" + s[strings.Index(s, "\n"):] }, "ds_report differs from the signed file"},
	} {
		text, err := os.ReadFile(c.path)
		if err == nil {
			err = os.Remove(c.path)
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.change != nil {
			put(t, c.path, c.change(string(text)))
		}
		r.refuses(t, k, name, trustBoth, c.want)
		put(t, c.path, string(text))
	}
	for name, target := range map[string]string{"a linked module": module, "a linked command": script} {
		text, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		link(t, target)
		r.refuses(t, k, name, trustBoth, "differs from the signed file")
		if err := os.Remove(target); err != nil {
			t.Fatal(err)
		}
		put(t, target, string(text))
	}
	more := filepath.Join(filepath.Dir(module), "more.py")
	put(t, more, "evil = True\n")
	r.refuses(t, k, "a module more", trustBoth, "is not in a signed wheel")
	if err := os.Remove(more); err != nil {
		t.Fatal(err)
	}
	r.opt.Policy = k.Policy(t, trustBoth)
	if report := back(t, r.opt); report.Err() != nil || report.Nodes[0].After.SHA256 != r.old.loaded[0].Manifest.SHA256 {
		t.Errorf("%+v", report.Nodes[0])
	}
	if left, _ := os.ReadDir(filepath.Dir(stored)); len(left) != 1 {
		t.Errorf("signatures that are kept: %d", len(left))
	}
}

// Byte code that a job has changed, with the time and the size of its module, does not run after a rollback.
func TestRollbackBringsNoTamperedByteCodeBack(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	k := signingtest.NewKeys(t)
	r := replacedVersion(t, k, func(e environment) {
		changeByteCode(t, cached(t, e, "deepspeed/version.py"), "0.19.7+", "6.66.6+")
		if v := e.version(t); !strings.HasPrefix(v, "6.66.6") {
			t.Fatalf("the test's own byte code does not run: %s", v)
		}
	})
	report := back(t, r.opt)
	if report.Err() != nil {
		t.Errorf("%+v", report.Nodes[0])
	}
	if v := r.version(t); !strings.HasPrefix(v, "0.19.7") {
		t.Errorf("after the rollback %s runs", v)
	}
}

// A version that was installed without signatures does not come back under a policy.
func TestRollbackToAnUnsignedWheelIsRefused(t *testing.T) {
	t.Parallel()
	e, opt, _ := withOld(t)
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	opt.Wheels, opt.Policy = w.loaded, k.Policy(t, trustA)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	was := e.snapshot(t)
	mustFail(t, e, was, back(t, opt).Nodes[0], "unsigned", "previous version is unsigned")
}
