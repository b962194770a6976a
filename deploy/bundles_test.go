package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// testVerifier is this test program, which behaves as the dsbuild that a node runs to verify bundles.
func testVerifier(t *testing.T) wheels.File {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sum, size, err := wheel.HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return wheels.File{Path: path, SHA256: sum, Size: size}
}

// findVerifier is a FindVerifier for nodes of this machine's platform.
func findVerifier(f wheels.File) func(string) (wheels.File, error) {
	return func(platform string) (wheels.File, error) {
		if !strings.HasPrefix(platform, "linux_") {
			return wheels.File{}, errors.New("no verifier for " + platform)
		}
		return f, nil
	}
}

// Every attack with a bundle of sigstore is refused by the node itself, before a file of the
// environment changes: the driver of these tests judges nothing.
func TestNodeRefusesBundles(t *testing.T) {
	long(t)
	t.Parallel()
	w := newSignedWheel(t, wheelOptions{})
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	verifier := testVerifier(t)
	opt.Verify, opt.Verifier = verify.LevelFiles, findVerifier(verifier)
	good, attacks := signingtest.Bundles(t, signingtest.NewKeys(t), filepath.Base(w.file), w.statement)
	for _, a := range attacks {
		w.put(t, a.Signed)
		opt.Policy = a.Policy
		mustRefuse(t, e, opt, a.Name, a.Want)
	}
	t.Logf("result: %d attacks with bundles refused", len(attacks))

	w.put(t, good[0].Signed)
	opt.Policy = good[0].Policy
	opt.Verifier = nil
	mustRefuse(t, e, opt, "a driver that sends no verifier", "has no verifier for their bundles")
	opt.Verifier = func(string) (wheels.File, error) { return wheels.File{}, errors.New("another system") }
	mustRefuse(t, e, opt, "a node of another system", "another system")
	broken := filepath.Join(t.TempDir(), "dsbuild")
	put(t, broken, "#!/bin/sh\necho '{\"name\": \"ci\"}'\n")
	sum, size, err := wheel.HashFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	opt.Verifier = findVerifier(wheels.File{Path: broken, SHA256: sum, Size: size})
	mustRefuse(t, e, opt, "a verifier that is none", "ended with status 0")

	// The node's own policy holds for a driver that has none.
	opt.Verifier = findVerifier(verifier)
	own := filepath.Join(e.dir, ".dsbuild", "policy.json")
	text, err := json.Marshal(attacks[0].Policy.ForNodes())
	if err != nil {
		t.Fatal(err)
	}
	put(t, own, strings.Replace(string(text), signingtest.Workflow, "https://github.com/team/other", 1))
	opt.Policy = nil
	mustRefuse(t, e, opt, "the node's own policy", "does not trust the identity")
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	opt.Policy = good[0].Policy
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || !strings.Contains(strings.Join(n.Remarks, " "), "sent (sha256 "+verifier.SHA256+")") {
		t.Errorf("the bundle is refused: %+v", n)
	}
	if left, err := os.ReadDir(filepath.Join(e.dir, ".dsbuild", "inbox")); err == nil && len(left) > 0 {
		t.Errorf("the node keeps %v", left)
	}
}

// A rollback judges the bundle of the wheel before again, with a verifier that the driver sends.
func TestRollbackJudgesTheStoredBundle(t *testing.T) {
	t.Parallel()
	server, folder := sigstoretest.New(t), t.TempDir()
	server.WriteFiles(folder)
	identity := signingtest.Identity(signingtest.Workflow, filepath.Join(folder, "trusted_root.json"))
	k := signingtest.NewKeys(t)
	old, newer := newSignedWheel(t, wheelOptions{version: "0.19.7"}), newSignedWheel(t, wheelOptions{})
	old.put(t, signing.Signed{Statement: old.statement, Signatures: []string{server.Sign(sigstoretest.Issuer, signingtest.Workflow, old.statement)}})
	newer.sign(t, k, "a")
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, old.loaded, []*sshtest.Server{s}, h)
	opt.Verify, opt.Verifier = verify.LevelFiles, findVerifier(testVerifier(t))
	opt.Policy = k.Policy(t, "signers: [{name: ci, "+identity+"}, {name: a, key: $a}]")
	for _, w := range []signedWheel{old, newer} {
		opt.Wheels = w.loaded
		if r := run(t, context.Background(), opt); r.Err() != nil {
			t.Fatalf("%+v", r.Nodes[0])
		}
	}
	was := e.snapshot(t)
	opt.Policy = k.Policy(t, "signers: [{name: ci, until: 2026-01-01, "+identity+"}, {name: a, key: $a}]")
	if n := back(t, opt).Nodes[0]; n.Status != report.Failed || n.Changed || !strings.Contains(n.Error, "expired") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	opt.Policy = k.Policy(t, "signers: [{name: ci, "+identity+"}]")
	if r := back(t, opt); r.Err() != nil || r.Nodes[0].After.SHA256 != old.loaded[0].Manifest.SHA256 {
		t.Errorf("%+v", r.Nodes[0])
	}
}
