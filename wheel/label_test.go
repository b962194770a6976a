package wheel_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// complete is the manifest of a complete build.
func complete() wheel.Manifest {
	return wheel.Manifest{
		Version: "0.19.8", Source: wheel.Source{Kind: "release", Ref: "0.19.8"}, OpsRequested: wheel.DefaultOps(),
		CPU: "x86-64-v2", Torch: "2.10", TorchABI: &wheel.TorchABI{Stable: true, Min: "2.10"},
		Variants: []wheel.Variant{{Name: "cu12", CUDA: "12"}, {Name: "cu13", CUDA: "13"}, {Name: "v2", CPU: "x86-64-v2"}, {Name: "v3", CPU: "x86-64-v3"}, {Name: "v4", CPU: "x86-64-v4"}},
	}
}

// forOne makes a complete build one for a CUDA and a CPU level.
func forOne(cuda, level string) func(*wheel.Manifest) {
	return func(m *wheel.Manifest) { m.CUDA, m.CPU, m.Variants = cuda, level, nil }
}

// The label has what distinguishes a build from the complete one, and the kind follows from it.
func TestLabelAndKind(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		kind   wheel.Kind
		allOps bool
		change func(*wheel.Manifest)
	}{
		"":               {wheel.KindComplete, false, func(m *wheel.Manifest) { slices.Reverse(m.OpsRequested) }},
		"allops":         {wheel.KindAllOps, true, func(m *wheel.Manifest) { m.OpsRequested = append(m.OpsRequested, "quantizer") }},
		"v3.cu13":        {wheel.KindCustom, false, forOne("13", "x86-64-v3")},
		"allops.v2.cu12": {wheel.KindCustom, true, forOne("12", "x86-64-v2")},
		"cu12":           {wheel.KindCustom, false, func(m *wheel.Manifest) { m.CUDA, m.Variants = "12", m.Variants[2:] }},
		"v2":             {wheel.KindCustom, false, func(m *wheel.Manifest) { m.Variants = m.Variants[:2] }},
		"ops6fd89734":    {wheel.KindCustom, false, func(m *wheel.Manifest) { m.OpsRequested, m.Variants = []string{"utils"}, nil }},
		"ops4a9c3dbf":    {wheel.KindCustom, false, func(m *wheel.Manifest) { m.OpsRequested = []string{"utils", "cpu_adam"} }},
		"sm80.sm90.ptx90": {wheel.KindCustom, false, func(m *wheel.Manifest) {
			m.ArchsRequested = []string{"8.0", "9.0+PTX"}
		}},
		"v4.cu13": {wheel.KindCustom, false, forOne("13", "x86-64-v4")},
		"debug":   {wheel.KindCustom, false, func(m *wheel.Manifest) { m.Env = map[string]string{wheel.KeepDebugVariable: "1"} }},
		"sm80.v2.cu12": {wheel.KindCustom, false, func(m *wheel.Manifest) {
			forOne("12", "x86-64-v2")(m)
			m.ArchsRequested = []string{"8.0"}
		}},
		"allops.debug": {wheel.KindCustom, true, func(m *wheel.Manifest) { m.Env = map[string]string{wheel.KeepDebugVariable: "1"} }},
		"allops.sm80":  {wheel.KindCustom, true, func(m *wheel.Manifest) { m.ArchsRequested = []string{"8.0"} }},
		"ops4a9c3dbf.v2": {wheel.KindCustom, false, func(m *wheel.Manifest) {
			m.OpsRequested, m.Variants = []string{"cpu_adam", "utils"}, nil
		}},
	} {
		m := complete()
		c.change(&m)
		if got := m.Label(c.allOps); got != want {
			t.Errorf("label %q, want %q", got, want)
		}
		if want != "" {
			m.Version += "+" + want
		}
		if got := wheel.KindOf(m); got != c.kind || m.HasAllOps() != c.allOps {
			t.Errorf("%s: kind %s, all ops %v; want %s", m.Version, got, m.HasAllOps(), c.kind)
		}
		if got := m.Release(); got != "0.19.8" {
			t.Errorf("%s: release %q", m.Version, got)
		}
		if m.Source.Kind = "git"; m.Release() != "" {
			t.Errorf("%s of a commit: release %q, although its sources are none", m.Version, m.Release())
		}
	}
	arm := complete()
	forOne("13", "armv8-a")(&arm)
	if got := wheel.KindOf(arm); got != wheel.KindComplete {
		t.Errorf("armv8-a: %s", got)
	}
}

// No other build has the page of complete builds, whatever its version says.
func TestKindOfAnotherBuild(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*wheel.Manifest)
		want   wheel.Kind
	}{
		"one torch":       {func(m *wheel.Manifest) { m.TorchABI = nil }, wheel.KindTorch},
		"a commit":        {func(m *wheel.Manifest) { m.Source.Kind, m.Version = "git", "0.19.9+g1a2b3c4" }, wheel.KindCustom},
		"a hidden commit": {func(m *wheel.Manifest) { m.Source.Kind = "git" }, wheel.KindCustom},
		"hidden archs":    {func(m *wheel.Manifest) { m.ArchsRequested = []string{"8.0"} }, wheel.KindCustom},
		"hidden CUDA":     {func(m *wheel.Manifest) { m.CUDA, m.Variants = "12", m.Variants[2:] }, wheel.KindCustom},
		"hidden level":    {func(m *wheel.Manifest) { m.Variants = m.Variants[:2] }, wheel.KindCustom},
		"a false label":   {func(m *wheel.Manifest) { m.Version += "+cu12" }, wheel.KindCustom},
		"somebody else's": {func(m *wheel.Manifest) { m.Version += "+cu128" }, wheel.KindCustom},
	} {
		m := complete()
		if c.change(&m); wheel.KindOf(m) != c.want {
			t.Errorf("%s: %s, want %s", name, wheel.KindOf(m), c.want)
		}
	}
}

// The sources of DeepSpeed are read from a version without what the wheel is built for.
func TestSourceVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"0.19.8":                                   "0.19.8",
		"0.19.8+opsdeadbeef.sm80.ptx80.v4.cu12":    "0.19.8",
		"0.19.8+allops":                            "0.19.8",
		"0.19.8+torch2.15.cu132.sm80.v3":           "0.19.8",
		"0.19.8+torch2.15.cu132.sm80.armv8a":       "0.19.8",
		"0.19.9+g1a2b3c4":                          "0.19.9+g1a2b3c4",
		"0.19.9+g1a2b3c4.allops.cu12":              "0.19.9+g1a2b3c4",
		"0.19.9+g1a2b3c4.s5d6e7f8.torch2.15.cu132": "0.19.9+g1a2b3c4.s5d6e7f8",
		"0.19.9+s5d6e7f8.sm80":                     "0.19.9+s5d6e7f8",
		// These are of others: DeepSpeed itself gives the commit, or unknown.
		"0.19.9+1a2b3c4": "0.19.9+1a2b3c4", "0.19.9+1234567": "0.19.9+1234567", "0.19.8+unknown": "0.19.8+unknown",
		"0.19.8+cu128": "0.19.8+cu128", "0.19.8+opsdeadbee": "0.19.8+opsdeadbee",
	} {
		if got := wheel.SourceVersion(version); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
		release := want
		if strings.Contains(want, "+") {
			release = ""
		}
		if got := (wheel.Manifest{Version: version}).Release(); got != release {
			t.Errorf("%s: release %q, want %q", version, got, release)
		}
	}
}

// A small wheel of each kind is of that kind, has the build tag of its plan in its name and in WHEEL, and passes its
// own checks.
func TestBuildTag(t *testing.T) {
	t.Parallel()
	for kind, stem := range map[wheel.Kind]string{
		wheel.KindComplete: "deepspeed-0.19.8-1_cdcdcdcd-py3-none-", wheel.KindAllOps: "deepspeed-0.19.8+allops-1_cdcdcdcd-py3-none-",
		wheel.KindCustom: "deepspeed-0.19.8+sm80-1_cdcdcdcd-py3-none-",
		wheel.KindTorch:  "deepspeed-0.19.8+torch2.15.cu132.sm80.v3-cp311-cp311-",
	} {
		opt := wheeltest.OfKind(kind)
		path := wheeltest.Packed(t, t.TempDir(), opt)
		v, err := wheel.Verify(t.Context(), path)
		if err != nil || v.Err() != nil {
			t.Fatal(kind, err, v.Err())
		}
		if got := wheel.KindOf(*v.Manifest); got != kind || filepath.Base(path) != stem+"manylinux_2_17_x86_64.whl" {
			t.Errorf("%s: %s is of kind %s", kind, filepath.Base(path), got)
		}
		if got := v.Contents.Build; got != v.Manifest.BuildTag() {
			t.Errorf("%s: the contents have build %q, want %q", kind, got, v.Manifest.BuildTag())
		}
		if wheelFile := wheeltest.Read(t, path)[wheeltest.Member(t, wheeltest.Read(t, path), ".dist-info/WHEEL")]; strings.Contains(wheelFile, "\nBuild: 1_cdcdcdcd\nTag: ") != (kind != wheel.KindTorch) {
			t.Errorf("%s: WHEEL:\n%s", kind, wheelFile)
		}
		opt.Recipe = wheeltest.NoBuildTag
		if path := wheeltest.Packed(t, t.TempDir(), opt); strings.Contains(filepath.Base(path), "1_cdcdcdcd") {
			t.Error(path)
		}
	}
}

// A build tag or a version that does not belong to the manifest is a finding.
func TestBuildTagOfAnotherPlan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, old, by, finding string }{
		"plan":    {wheel.ManifestName, `"plan_digest": "cd`, `"plan_digest": "ab`, `metadata: file name has build tag "1_cdcdcdcd", but the manifest's plan has "1_abcdcdcd"`},
		"recipe":  {wheel.ManifestName, `"recipe": 1`, `"recipe": 2`, `metadata: file name has build tag "1_cdcdcdcd", but the manifest's plan has "2_cdcdcdcd"`},
		"none":    {wheel.ManifestName, `"recipe": 1`, `"recipe": 0`, `metadata: file name has build tag "1_cdcdcdcd", but the manifest's plan has ""`},
		"WHEEL":   {".dist-info/WHEEL", "Build: 1_", "Build: 2_", `tags: the file name has build "1_cdcdcdcd", but WHEEL has "2_cdcdcdcd"`},
		"archs":   {wheel.ManifestName, `"archs_requested": []`, `"archs_requested": ["8.0"]`, `metadata: version 0.19.8 does not match the manifest, which has sources of kind release and the label "sm80"`},
		"sources": {wheel.ManifestName, `"kind": "release"`, `"kind": "path"`, `metadata: version 0.19.8 does not match the manifest, which has sources of kind path and the label ""`},
	} {
		path := wheeltest.Packed(t, t.TempDir(), wheeltest.OfKind(wheel.KindComplete))
		files := wheeltest.Read(t, path)
		member := wheeltest.Member(t, files, c.file)
		if !strings.Contains(files[member], c.old) {
			t.Fatalf("%s has no %s:\n%s", member, c.old, files[member])
		}
		files[member] = strings.Replace(files[member], c.old, c.by, 1)
		wheeltest.Write(t, path, files)
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Findings(); len(got) != 1 || got[0] != c.finding {
			t.Errorf("%s: %q, want %q", name, got, c.finding)
		}
	}
}
