package envdeploy_test

import (
	"archive/zip"
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// signDeepSpeed puts a statement and signatures of it beside a wheel.
func signDeepSpeed(t *testing.T, k signingtest.Keys, file string, names ...string) {
	t.Helper()
	sum, size, err := wheel.HashFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := wheel.ReadManifest(file)
	if err != nil {
		t.Fatal(err)
	}
	m.Name, m.SHA256, m.Size, m.Builder = filepath.Base(file), sum, size, "test"
	record, err := wheel.RecordSum(file)
	if err != nil {
		t.Fatal(err)
	}
	statement, err := wheel.Provenance(m, wheel.Build{Record: record}, time.Now(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write(t, file+wheel.ProvenanceSuffix, string(statement))
	for i, name := range names {
		write(t, wheel.SignatureFile(file, string("0123456789"[i])), k.Sign(t, name, string(statement)))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// untouched is a dialer that no run may use.
type untouched struct{ t *testing.T }

func (d untouched) Dial(context.Context, remote.Target) (remote.Conn, error) {
	d.t.Error("a node was asked, though the policy refuses a wheel")
	return nil, remote.ErrLost
}

func (untouched) Close() error { return nil }

// mustRefuse expects that no node is asked about an environment whose wheels the policy refuses.
func mustRefuse(t *testing.T, opt envdeploy.Options, want string) {
	t.Helper()
	opt.Dialer = untouched{t}
	d := envdeploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// Each wheel with files in DeepSpeed's folder is judged before a node is asked.
func TestRefusedEnvironmentAsksNoNode(t *testing.T) {
	t.Parallel()
	k, s := signingtest.NewKeys(t), newSite(t)
	name := s.deepspeed(t, "0.19.8", nil)
	signDeepSpeed(t, k, filepath.Join(s.dir, name), "a")
	l, files := s.lock(t, small[:len(small)-1]+"\ndeepspeed: "+name+"\n")
	opt := options(t, l, files, nil)
	opt.Policy = k.Policy(t, "signers: [{name: b, key: $b}]")
	mustRefuse(t, opt, "is not trusted by the policy")
	opt.Policy = k.Policy(t, "signers: [{name: a, key: $a}]\nminimum: 0.20")
	mustRefuse(t, opt, "older than 0.20")
}

// A wheel that would write what belongs to DeepSpeed, torch, the interpreter, the environment or another wheel
// is refused before any node is asked.
func TestWheelsWriteTheirOwnFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, files := s.lock(t, small)
	var companion environment.File
	for _, f := range l.Sets[0].Files {
		if f.Name == "alpha" {
			companion = f
		}
	}
	for inside, want := range map[string]string{
		"deepspeed/version/__init__.py":                                   "belongs to DeepSpeed",
		"alpha-1.0.data/purelib/deepspeed/x.py":                           "belongs to DeepSpeed",
		"alpha-1.0.data/data/lib/python3.11/site-packages/deepspeed/x.py": "belongs to DeepSpeed",
		"alpha-1.0.data/data/pyvenv.cfg":                                  "belongs to the environment",
		"alpha-1.0.data/scripts/activate":                                 "belongs to the environment",
		"alpha-1.0.data/data/lib/python3.11/os.py":                        "belongs to the environment",
		"torch/version.py":                                                "belongs to torch",
		"nvidia/cudnn/lib/libstdc++.so.6":                                 "belongs to NVIDIA's packages",
		"usercustomize/__init__.py":                                       "belongs to the interpreter",
		"plug.egg-info/entry_points.txt":                                  "belongs to plug",
	} {
		paths := maps.Clone(files.Paths)
		paths[companion.SHA256] = withFile(t, files.Paths[companion.SHA256], inside)
		if _, err := envdeploy.OpenFiles(t.Context(), l, paths); err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v (exit code %d), want that it %s", inside, err, exitCode(err), want)
		}
	}
	s.Add(t, wheelindex.Wheel{Name: "beta", Version: "1", Files: map[string]string{"alpha/__init__.py": "other = True\n"}})
	s.Add(t, wheelindex.Wheel{Name: "gamma", Version: "1", Files: map[string]string{"gamma-1.dist-info/entry_points.txt": "[console_scripts]\nalpha-run = gamma:main\n"}})
	s.Add(t, wheelindex.Wheel{Name: "delta", Version: "1", Files: map[string]string{"delta-1.data/platlib/alpha/native.py": "fast = True\n"}})
	for name, want := range map[string]string{"beta": "site-packages/alpha/__init__.py", "gamma": "bin/alpha-run", "delta": ""} {
		l, paths := s.lockOnly(t, "name: train\npython: 3.11\nrequirements: [alpha, "+name+"]\n")
		_, err := envdeploy.OpenFiles(t.Context(), l, paths)
		if (err == nil) != (want == "") || err != nil && (exitCode(err) != 2 || !strings.HasSuffix(err.Error(), "both install "+want)) {
			t.Errorf("%s: %v, want that two wheels write %q", name, err, want)
		}
	}
}

// withFile returns a copy of a wheel that has one more file, of which its RECORD says nothing.
func withFile(t *testing.T, file, name string) string {
	t.Helper()
	from, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	var out bytes.Buffer
	to := zip.NewWriter(&out)
	for _, f := range from.File {
		if err := to.Copy(f); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = to.Create(name); err == nil {
		err = to.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(file))
	write(t, copied, out.String())
	return copied
}

// The wheel of DeepSpeed is judged before an environment is made of it, and its files again before a rollback
// switches back to one.
func TestPolicyOfEnvironments(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	k, s := signingtest.NewKeys(t), newSite(t)
	lock := func(version, signer string) envdeploy.Options {
		t.Helper()
		name := s.deepspeed(t, version, nil)
		signDeepSpeed(t, k, filepath.Join(s.dir, name), signer)
		l, files := s.lock(t, small[:len(small)-1]+"\ndeepspeed: "+name+"\n")
		return envdeploy.Options{Lock: l, Files: files}
	}
	old, newer := lock("0.19.7", "a"), lock("0.19.8", "b")
	h, server := host(t, "gpu1", sshtest.Options{})
	opt := options(t, old.Lock, old.Files, []*sshtest.Server{server}, h)
	const both = "signers: [{name: a, key: $a}, {name: b, key: $b}]"
	opt.Policy = k.Policy(t, both)
	for _, next := range []envdeploy.Options{old, newer} {
		opt.Lock, opt.Files = next.Lock, next.Files
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	refuses := func(name, policy, want string) {
		t.Helper()
		before, _ := os.Readlink(filepath.Join(place(server), "current"))
		opt.Policy = k.Policy(t, policy)
		n := back(t, opt).Nodes[0]
		after, _ := os.Readlink(filepath.Join(place(server), "current"))
		if n.Status != report.Failed || n.Changed || before != after || !strings.Contains(n.Error, want) {
			t.Errorf("%s: %+v, %q is current", name, n, after)
		}
	}
	refuses("the key was revoked since", "signers: [{name: b, key: $b}]\nrevoked: ['@a']", "is revoked")
	stored := filepath.Join(place(server), "../.dsbuild/signed", old.Lock.Sets[0].File("deepspeed").SHA256+".json")
	found, err := filepath.Glob(filepath.Join(place(server), "previous", "lib", "python3*", "site-packages", "deepspeed", "version.py"))
	if err != nil || len(found) != 1 {
		t.Fatal(err, found)
	}
	for name, c := range map[string]struct {
		path   string
		change func(string) string // nil: the file is removed
		want   string
	}{
		"another list of files":   {stored, func(s string) string { return strings.Replace(s, "deepspeed/version.py,", "deepspeed/versiom.py,", 1) }, "file list does not match"},
		"the signatures are gone": {stored, nil, "its signatures are missing"},
		"a module was edited":     {found[0], func(s string) string { return s + "evil = True\n" }, "version.py differs from the signed file"},
	} {
		text, err := os.ReadFile(c.path)
		if err == nil {
			err = os.Remove(c.path) // it may be a link of uv's cache
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.change != nil {
			write(t, c.path, c.change(string(text)))
		}
		refuses(name, both, c.want)
		if c.change != nil {
			err = os.Remove(c.path)
		}
		if err != nil {
			t.Fatal(err)
		}
		write(t, c.path, string(text))
	}
	opt.Policy = k.Policy(t, both)
	if r := back(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
}
