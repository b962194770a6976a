package envs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/deploy/envs"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/signing"
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

func TestMain(m *testing.M) {
	signingtest.BeVerifier()
	os.Exit(m.Run())
}

// A bundle of sigstore beside the wheel of DeepSpeed is judged by a verifier that the driver sends,
// before an environment is made, and again before a rollback.
func TestBundlesOfEnvironments(t *testing.T) {
	if testing.Short() {
		t.Skip("short: makes two environments")
	}
	t.Parallel()
	sigstore, folder := sigstoretest.New(t), t.TempDir()
	sigstore.WriteFiles(folder)
	policy := func(subject string) *signing.Policy {
		return signingtest.Keys{}.Policy(t, "signers: [{name: ci, "+signingtest.Identity(subject, filepath.Join(folder, "trusted_root.json"))+"}]")
	}
	s := newSite(t)
	lock := func(version string) envs.Options {
		t.Helper()
		name := s.deepspeed(t, version, nil)
		file := filepath.Join(s.dir, name)
		signDeepSpeed(t, nil, file)
		statement, err := os.ReadFile(file + wheel.ProvenanceSuffix)
		if err != nil {
			t.Fatal(err)
		}
		write(t, wheel.BundleFile(file, "0"), sigstore.Sign(sigstoretest.Issuer, "someone@example.org", string(statement)))
		l, files := s.lock(t, small[:len(small)-1]+"\ndeepspeed: "+name+"\n")
		return envs.Options{Lock: l, Files: files}
	}
	old, newer := lock("0.19.7"), lock("0.19.8")
	h, server := host(t, "gpu1", sshtest.Options{})
	opt := options(t, old.Lock, old.Files, []*sshtest.Server{server}, h)
	opt.Verifier = func(string) (wheels.File, error) {
		path, err := os.Executable()
		if err != nil {
			return wheels.File{}, err
		}
		sum, size, err := wheel.HashFile(path)
		return wheels.File{Path: path, SHA256: sum, Size: size}, err
	}
	refuses := func(subject, want string, do func() *report.Report) {
		t.Helper()
		before, _ := os.Readlink(filepath.Join(place(server), "current"))
		opt.Policy = policy(subject)
		n := do().Nodes[0]
		after, _ := os.Readlink(filepath.Join(place(server), "current"))
		if n.Status != report.Failed || n.Changed || before != after || !strings.Contains(n.Error, want) {
			t.Errorf("%s: %+v, %q is current", subject, n, after)
		}
	}
	deploys := func() *report.Report { return run(t, t.Context(), opt) }
	rollsBack := func() *report.Report { return back(t, opt) }
	refuses("other@example.org", "does not trust the identity", deploys)
	opt.Policy = policy("someone@example.org")
	for _, next := range []envs.Options{old, newer} {
		opt.Lock, opt.Files = next.Lock, next.Files
		if r := deploys(); r.Err() != nil || !strings.Contains(strings.Join(r.Nodes[0].Remarks, " "), "bundles of sigstore verified by") {
			t.Fatalf("%+v", r.Nodes[0])
		}
	}
	refuses("other@example.org", "does not trust the identity", rollsBack)
	opt.Policy = policy("someone@example.org")
	if r := rollsBack(); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
}

// The wheel of DeepSpeed is judged before an environment is made of it, and again before a rollback
// switches back to one.
func TestPolicyOfEnvironments(t *testing.T) {
	if testing.Short() {
		t.Skip("short: makes two environments")
	}
	t.Parallel()
	k, s := signingtest.NewKeys(t), newSite(t)
	lock := func(version string, signers ...string) (opt envs.Options, name string) {
		t.Helper()
		name = s.deepspeed(t, version, nil)
		signDeepSpeed(t, k, filepath.Join(s.dir, name), signers...)
		l, files := s.lock(t, small[:len(small)-1]+"\ndeepspeed: "+name+"\n")
		return envs.Options{Lock: l, Files: files}, name
	}
	old, _ := lock("0.19.7", "a")
	newer, name := lock("0.19.8", "b")
	h, server := host(t, "gpu1", sshtest.Options{})
	opt := options(t, old.Lock, old.Files, []*sshtest.Server{server}, h)
	refuses := func(name, policy, want string, do func(*testing.T, envs.Options) *report.Report) {
		t.Helper()
		before, _ := os.Readlink(filepath.Join(place(server), "current"))
		opt.Policy = k.Policy(t, policy)
		n := do(t, opt).Nodes[0]
		after, _ := os.Readlink(filepath.Join(place(server), "current"))
		if n.Status != report.Failed || n.Changed || before != after || !strings.Contains(n.Error, want) {
			t.Errorf("%s: %+v, %q is current", name, n, after)
		}
	}
	deploys := func(t *testing.T, opt envs.Options) *report.Report { return run(t, t.Context(), opt) }
	both := "signers: [{name: a, key: $a}, {name: b, key: $b}]"
	refuses("other key", "signers: [{name: b, key: $b}]", "does not trust the key", deploys)
	opt.Policy = k.Policy(t, both)
	if r := deploys(t, opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Lock, opt.Files = newer.Lock, newer.Files
	refuses("too old", both+"\nminimum: 0.20", "older than 0.20", deploys)
	text, err := os.ReadFile(filepath.Join(s.dir, name) + wheel.ProvenanceSuffix)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(s.dir, name)+wheel.ProvenanceSuffix, string(text)+" ")
	refuses("edited statement", both, "not of this statement", deploys)
	write(t, filepath.Join(s.dir, name)+wheel.ProvenanceSuffix, string(text))
	opt.Policy = k.Policy(t, both)
	if r := deploys(t, opt); r.Err() != nil {
		t.Fatal(r.Err())
	}

	refuses("the key was revoked since", "signers: [{name: b, key: $b}]\nrevoked: ['@a']", "is revoked", back)
	stored := filepath.Join(place(server), "../.dsbuild/signed", old.Lock.Sets[0].File("deepspeed").SHA256+".json")
	kept, err := os.ReadFile(stored)
	if err != nil {
		t.Fatal(err)
	}
	write(t, stored, strings.Replace(string(kept), "deepspeed/version.py,", "deepspeed/versiom.py,", 1))
	refuses("another list of files", both, "list of its files", back)
	if err := os.Remove(stored); err != nil {
		t.Fatal(err)
	}
	refuses("the signatures are gone", both, "its signatures are gone", back)
	write(t, stored, string(kept))
	own := filepath.Join(place(server), "../.dsbuild/policy.json")
	write(t, own, "{")
	refuses("the node's own policy is garbage", both, "cannot be read", back)
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	opt.Policy = k.Policy(t, both)
	if r := back(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
}
