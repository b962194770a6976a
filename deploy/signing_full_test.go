//go:build full

package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// TestFullFleetPolicyCost says what a policy adds to the installation on a node: the same wheel is
// installed again and again, in turn with and without one.
func TestFullFleetPolicyCost(t *testing.T) {
	k := signingtest.NewKeys(t)
	w := newSignedWheel(t, wheelOptions{})
	w.sign(t, k, "a")
	h, s := host(t, "gpu1", newEnvironment(t, "2.15.0"), sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Verify, opt.Force = verify.LevelFiles, true
	policies := []*signing.Policy{nil, k.Policy(t, "signers: [{name: a, key: $a}]\nminimum: 0.19.8\nmax_age: 1d")}
	var took [2][]float64
	for range 15 {
		for i, p := range policies {
			opt.Policy = p
			r := run(t, context.Background(), opt)
			if r.Err() != nil {
				t.Fatal(r.Err())
			}
			took[i] = append(took[i], r.Nodes[0].Seconds["install"]*1000)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	for i, what := range []string{"without a policy", "with one"} {
		t.Logf("result: install on a node %s: at best %.0f ms, median %.0f ms of %d", what, took[i][0], took[i][len(took[i])/2], len(took[i]))
	}
}

// TestFullFleetBundle lets a node verify a bundle of sigstore with the real dsbuild, as a release links
// it, and says what the judgement takes.
func TestFullFleetBundle(t *testing.T) {
	program := filepath.Join(t.TempDir(), "dsbuild")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "../cmd/dsbuild")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sum, size, err := wheel.HashFile(program)
	if err != nil {
		t.Fatal(err)
	}
	server, folder := sigstoretest.New(t), t.TempDir()
	server.WriteFiles(folder)
	w := newSignedWheel(t, wheelOptions{})
	w.put(t, signing.Signed{Statement: w.statement, Signatures: []string{server.Sign(sigstoretest.Issuer, signingtest.Workflow, w.statement)}})
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, w.loaded, []*sshtest.Server{s}, h)
	opt.Verify, opt.Force, opt.Verifier = verify.LevelFiles, true, findVerifier(wheels.File{Path: program, SHA256: sum, Size: size})
	policy := func(subject string) *signing.Policy {
		return signingtest.Keys{}.Policy(t, "signers: [{name: ci, "+signingtest.Identity(subject, filepath.Join(folder, "trusted_root.json"))+"}]")
	}
	opt.Policy = policy("someone@example.org")
	mustRefuse(t, e, opt, "other identity", "does not trust the identity")
	opt.Policy = policy(signingtest.Workflow)
	var took []float64
	for range 5 {
		r := run(t, context.Background(), opt)
		if n := r.Nodes[0]; r.Err() != nil || !strings.Contains(strings.Join(n.Remarks, " "), sum) {
			t.Fatalf("%+v", n)
		}
		took = append(took, r.Nodes[0].Seconds["install"]*1000)
	}
	slices.Sort(took)
	t.Logf("result: install on a node with a verifier of %d bytes: at best %.0f ms, median %.0f ms of %d", size, took[0], took[len(took)/2], len(took))
}
