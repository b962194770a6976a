//go:build full

package deploy_test

import (
	"context"
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/signing/signingtest"
	"github.com/dsbuild/dsbuild/verify"
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
