package deploy_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// signedWheel is a wheel with its statement, beside which tests put signatures.
type signedWheel struct {
	file, statement string
	loaded          []wheels.Wheel
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
		path := wheel.SignatureFile(w.file, string("0123456789abcdef"[i]))
		if strings.HasPrefix(text, "{") {
			path = wheel.BundleFile(w.file, string("0123456789abcdef"[i]))
		}
		put(t, path, text)
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

// mustRefuse deploys and expects that the node refuses, and is as it was.
func mustRefuse(t *testing.T, e environment, opt deploy.Options, name, want string) {
	t.Helper()
	was := e.snapshot(t)
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(context.Background()); err != nil {
		t.Fatal(err)
	}
	n := d.Apply(context.Background()).Nodes[0]
	if n.Status != report.Failed || n.Step != "install" || n.Changed || !strings.Contains(n.Error, want) {
		t.Errorf("%s: %s at %s: %q, want %q", name, n.Status, n.Step, n.Error, want)
	}
	e.mustBe(t, was)
	if _, err := os.Stat(filepath.Join(e.dir, ".dsbuild", "previous")); err == nil {
		t.Errorf("%s: something was moved aside", name)
	}
}

// Every attack is refused by the node itself, before a file of the environment changes: the driver
// of these tests judges nothing.
func TestNodeRefusesAttacks(t *testing.T) {
	long(t)
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Verify = verify.LevelFiles
	attacks := signingtest.Attacks(t, k, filepath.Base(w.file), w.statement)
	for _, a := range attacks {
		w.put(t, a.Signed)
		opt.Policy = a.Policy
		mustRefuse(t, e, opt, a.Name, a.Want)
	}
	t.Logf("result: %d attacks refused", len(attacks))

	one := k.Policy(t, "signers: [{name: a, key: $a}]")
	opt.Policy = one
	w.sign(t, k, "a")
	for name, change := range map[string]func() (undo func()){
		"symlink to a signature": func() func() {
			path := wheel.SignatureFile(w.file, "0")
			target := filepath.Join(t.TempDir(), "signature")
			if err := os.Rename(path, target); err != nil {
				t.Fatal(err)
			}
			return link(t, target, path)
		},
		"symlink to a statement": func() func() {
			path := w.file + wheel.ProvenanceSuffix
			target := filepath.Join(t.TempDir(), "statement")
			put(t, target, w.statement)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			return link(t, target, path)
		},
		"huge signature": func() func() {
			put(t, wheel.SignatureFile(w.file, "0"), strings.Repeat("A", 65<<10))
			return func() {}
		},
		"huge statement": func() func() {
			put(t, w.file+wheel.ProvenanceSuffix, strings.Repeat("A", 5<<20))
			return func() {}
		},
		"too many signatures": func() func() {
			for i := range 33 {
				put(t, wheel.SignatureFile(w.file, strings.Repeat("a", i+1)), "x")
			}
			return func() {}
		},
	} {
		undo := change()
		mustRefuse(t, e, opt, name, "")
		undo()
		w.sign(t, k, "a")
	}

	// The node's own policy holds for every driver.
	own := filepath.Join(e.dir, ".dsbuild", "policy.json")
	text, err := json.Marshal(k.Policy(t, "signers: [{name: b, key: $b}]").ForNodes())
	if err != nil {
		t.Fatal(err)
	}
	put(t, own, string(text))
	mustRefuse(t, e, opt, "policy edited on the driver", "does not trust the key")
	opt.Policy = nil
	mustRefuse(t, e, opt, "policy left out by the driver", "does not trust the key")
	for name, text := range map[string]string{"garbage": "{", "nobody": strings.Replace(string(text), `"signers":[`, `"signers":[],"was":[`, 1), "a later version": strings.Replace(string(text), `"version":1`, `"version":3`, 1)} {
		put(t, own, text)
		mustRefuse(t, e, opt, "the node's own policy is "+name, "polic")
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	opt.Policy = one
	if r := run(t, context.Background(), opt); r.Err() != nil || !r.Nodes[0].Changed {
		t.Errorf("after all attacks the signed wheel is refused: %+v", r.Nodes[0])
	}
}

func link(t *testing.T, target, path string) (undo func()) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Requirements that nobody has signed come along only if the policy accepts them.
func TestPolicyRefusesUnsignedCompanions(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{require: []string{"newcomer"}})
	w.sign(t, k, "a")
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Bundle = wheelhouse(t, small{name: "newcomer", version: "1.0"})
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}]")
	mustRefuse(t, e, opt, "unsigned companion", "nobody has signed these")
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}]\ncompanions: accept")
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
}

// A wheel that is exchanged after the node has judged it does not stay.
func TestWheelExchangedAfterTheJudgement(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	evil := makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/evil.py": "evil = True\n"}})
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}]")
	inbox := filepath.Join(e.dir, ".dsbuild", "inbox", filepath.Base(w.file))
	for name, code := range map[string]string{
		"renamed over it": "import shutil; shutil.copy('" + evil + "', '" + inbox + ".x'); os.rename('" + inbox + ".x', '" + inbox + "')",
		"written into it, with the old time": "st = os.stat('" + inbox + "'); import shutil; shutil.copyfile('" + evil + "', '" + inbox + "'); " +
			"os.utime('" + inbox + "', ns=(st.st_atime_ns, st.st_mtime_ns))",
	} {
		started, remove := e.hook(t, code)
		mustRefuse(t, e, opt, name, "was changed while it was installed")
		if !exists(started)() {
			t.Errorf("%s: pip was never started", name)
		}
		remove()
	}
}

func TestRollbackJudgesTheStoredWheelAgain(t *testing.T) {
	long(t)
	t.Parallel()
	k := signingtest.NewKeys(t)
	old, newer := newSignedWheel(t, wheelOptions{version: "0.19.7"}), newSignedWheel(t, wheelOptions{})
	old.sign(t, k, "a")
	newer.sign(t, k, "b")
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, old.loaded, []*sshtest.Server{s}, h)
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}, {name: b, key: $b}]")
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Wheels = newer.loaded
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	home := filepath.Join(e.dir, ".dsbuild")
	stored := filepath.Join(home, "signed", old.loaded[0].Manifest.SHA256+".json")
	was := e.snapshot(t)
	refuses := func(name, policy, want string) {
		t.Helper()
		opt.Policy = k.Policy(t, policy)
		n := back(t, opt).Nodes[0]
		if n.Status != report.Failed || n.Changed || !strings.Contains(n.Error, want) {
			t.Errorf("%s: %+v", name, n)
		}
		e.mustBe(t, was)
	}
	both := "signers: [{name: a, key: $a}, {name: b, key: $b}]"
	refuses("the key was revoked since", "signers: [{name: b, key: $b}]\nrevoked: ['@a']", "is revoked")
	refuses("the version is too old now", both+"\nminimum: 0.19.8", "older than 0.19.8")
	changed := func(name, want, path string, change func(string) string) {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if change == nil {
			err = os.Remove(path)
		} else {
			put(t, path, change(string(text)))
		}
		if err != nil {
			t.Fatal(err)
		}
		refuses(name, both, want)
		put(t, path, string(text))
	}
	changed("the signatures are gone", "its signatures are gone", stored, nil)
	changed("another list of files", "list of its files", stored, func(s string) string { return strings.Replace(s, "deepspeed/version.py,", "deepspeed/versiom.py,", 1) })
	var module, script string
	err := filepath.WalkDir(filepath.Join(home, "previous"), func(path string, d os.DirEntry, err error) error {
		if filepath.Base(path) == "version.py" {
			module = path
		}
		if text, _ := os.ReadFile(path); strings.HasPrefix(string(text), "#!") && strings.Contains(string(text), "print('report')") {
			script = path
		}
		return err
	})
	if err != nil || module == "" || script == "" {
		t.Fatal(err, module, script)
	}
	changed("a module was altered", "version.py is not as it was signed", module, func(s string) string { return s + "evil = True\n" })
	changed("a module is gone", "version.py is not as it was signed", module, nil)
	changed("a command was altered", "ds_report is not as it was signed", script, func(s string) string { return s + "evil = True\n" })
	more := filepath.Join(filepath.Dir(module), "more.py")
	put(t, more, "evil = True\n")
	refuses("a module more", both, "in no signed wheel")
	if err := os.Remove(more); err != nil {
		t.Fatal(err)
	}
	if r := back(t, opt); r.Err() != nil || r.Nodes[0].After.SHA256 != old.loaded[0].Manifest.SHA256 {
		t.Errorf("%+v", r.Nodes[0])
	}
	if left, _ := os.ReadDir(filepath.Join(home, "signed")); len(left) != 1 {
		t.Errorf("signatures that are kept: %d", len(left))
	}
}

// A version that was installed without signatures does not come back under a policy.
func TestRollbackToAnUnsignedWheelIsRefused(t *testing.T) {
	t.Parallel()
	e, opt, _ := withOld(t)
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	opt.Wheels, opt.Policy = w.loaded, k.Policy(t, "signers: [{name: a, key: $a}]")
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	was := e.snapshot(t)
	if n := back(t, opt).Nodes[0]; n.Status != report.Failed || !strings.Contains(n.Error, "was not signed") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
}

// A node of RHEL 8 judges by dsbuild's own verifier, and the report says so.
func TestNodeWithAnOldSSHKeygen(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ssh-keygen"), []byte("#!/bin/sh\necho 'unknown option -- Y' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.Env = map[string]string{"PATH": bin + ":" + os.Getenv("PATH")}
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}]")
	w.sign(t, k, "other")
	mustRefuse(t, e, opt, "other key", "does not trust the key")
	w.sign(t, k, "a")
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; r.Err() != nil || !strings.Contains(strings.Join(n.Remarks, " "), signing.VerifierDigest()) {
		t.Errorf("%+v", n)
	}
}
