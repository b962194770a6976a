package planner_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestRebuildRequest(t *testing.T) {
	t.Parallel()
	m := wheel.Manifest{
		Source: wheel.Source{Kind: "release", Ref: "0.19.8"}, ArchsRequested: []string{"8.0"}, OpsRequested: []string{"cpu_adam"},
		CPU: "x86-64-v3", Torch: "2.15.0", CUDA: "13.2", Python: "3.11", PlanDigest: "cd",
		Base: wheel.Base{Ref: "docker.io/library/debian:12@sha256:" + strings.Repeat("a", 64)},
		Env:  map[string]string{wheel.KeepDebugVariable: "1"},
	}
	want := wheel.Request{
		ABI: "torch", Archs: []wheel.Arch{{Major: 8}}, Ops: m.OpsRequested, Torch: "2.15.0", CUDA: "13.2", Python: "3.11", CPU: "x86-64-v3", Base: m.Base.Ref, KeepDebug: true,
	}
	if source, got, err := planner.RebuildRequest(m); err != nil || source != "0.19.8" || !reflect.DeepEqual(got, want) {
		t.Errorf("%s, %+v, %v", source, got, err)
	}
	for ref, want := range map[string]string{
		"git+https://example.org/ds@main":       "git+https://example.org/ds@c0ffee",
		"git+https://example.org/ds":            "git+https://example.org/ds@c0ffee",
		"git+ssh://git@example.org/ds.git@v1#x": "git+ssh://git@example.org/ds.git@c0ffee",
		// The revision is after the last @, as in the argument of --deepspeed; the short form of ssh has no slashes.
		"git+https://example.org/@team/ds@v0.19.8": "git+https://example.org/@team/ds@c0ffee",
		"git+file:///srv/git@2/ds.git@main":        "git+file:///srv/git@2/ds.git@c0ffee",
		"git+example.org:team/ds.git@v1":           "git+example.org:team/ds.git@c0ffee",
		"git+git@example.org:team/ds.git":          "git+git@example.org:team/ds.git@c0ffee",
	} {
		m := m
		m.Source = wheel.Source{Kind: "git", Ref: ref, Commit: "c0ffee"}
		if got, _, err := planner.RebuildRequest(m); err != nil || got != want {
			t.Errorf("%s: %s, %v", ref, got, err)
		}
	}
	for want, change := range map[string]func(*wheel.Manifest){
		"from a local directory, ds":              func(m *wheel.Manifest) { m.Source = wheel.Source{Kind: "path", Ref: "ds"} },
		"a local source distribution":             func(m *wheel.Manifest) { m.Source = wheel.Source{Kind: "sdist", Ref: "ds.tar.gz"} },
		"does not record how the wheel was built": func(m *wheel.Manifest) { m.PlanDigest = "" },
	} {
		m := m
		change(&m)
		if _, _, err := planner.RebuildRequest(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	tar := m
	tar.Base = wheel.Base{Ref: "base.tar", Digest: "sha256:ab"}
	if _, got, err := planner.RebuildRequest(tar); err != nil || got.Base != "" {
		t.Errorf("%+v, %v", got, err)
	}
	for digest, same := range map[string]bool{"sha256:ab": true, "sha256:cd": false, "": false} {
		if err := planner.CheckRebuild(&pipeline.Plan{Base: pipeline.Base{Ref: "other.tar", Digest: digest}}, tar); (err == nil) != same || !same && !strings.Contains(fault.Hint(err), "--base") {
			t.Errorf("%q: %v", digest, err)
		}
	}
	stable := m
	stable.TorchABI, stable.Torch, stable.CUDA, stable.Python = &wheel.TorchABI{Stable: true, Min: "2.10"}, "2.10", "13", "3.10+"
	if _, got, err := planner.RebuildRequest(stable); err != nil || got.ABI != "stable" || got.CUDA != "13" || got.Torch+got.Python != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The manifest of a wheel of the stable ABI leads to the same plan again, and so to the same version and build tag.
func TestRebuildPlan(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	planOf := func(r wheel.Request) *pipeline.Plan {
		tc, err := tables.Resolve(r)
		if err != nil {
			t.Fatal(err)
		}
		var parts []pipeline.Part
		for _, tc := range append([]compat.Toolchain{tc}, tables.Variants(r, tc)...) {
			packages, _ := pipeline.LockedPackages(tc)
			parts = append(parts, pipeline.Part{Toolchain: tc, Packages: packages})
		}
		p, err := pipeline.NewPlan(parts, pipeline.Release(tc.DeepSpeed, tc.Source), pipeline.Base{Ref: tc.Environment.Ref}, r.KeepDebug)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for local, r := range map[string]wheel.Request{
		"": {}, "+cu12": {CUDA: "12"}, "+v3.cu13": {CUDA: "13", CPU: wheel.CPUv3}, "+v4": {CPU: wheel.CPUv4}, "+allops": {Ops: []string{compat.ProvenOps}}, "+allops.cu12": {Ops: []string{compat.ProvenOps}, CUDA: "12"},
		"+allops.sm80": {Ops: []string{compat.AllOps}, ABI: wheel.StableABI, Archs: []wheel.Arch{{Major: 8}}}, "+debug": {KeepDebug: true},
	} {
		first := planOf(r)
		m := first.Manifest
		if got := m.Env["DS_BUILD_STRING"]; got != local {
			t.Errorf("the local part of the version is %q, want %q", got, local)
		}
		m.Version = m.Source.Ref + local
		_, again, err := planner.RebuildRequest(m)
		if err != nil {
			t.Fatal(err)
		}
		if second := planOf(again); second.Digest != first.Digest || second.Manifest.BuildTag() != m.BuildTag() {
			t.Errorf("%s: %+v leads to another plan, with the version %s", m.Version, again, second.Manifest.Env["DS_BUILD_STRING"])
		}
	}
}
