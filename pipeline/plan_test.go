package pipeline

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

var update = flag.Bool("update", false, "write the golden files anew")

func plan(t *testing.T, base Base, ops []string, archs ...string) *Plan {
	t.Helper()
	return planFor(t, request(t, ops, archs...), Source{}, base)
}

// debugPlan is a plan that leaves debug information in.
func debugPlan(t *testing.T, base Base, archs ...string) *Plan {
	t.Helper()
	r := request(t, nil, archs...)
	r.KeepDebug = true
	return planFor(t, r, Source{}, base)
}

// request is for the newest torch alone.
func request(t *testing.T, ops []string, archs ...string) wheel.Request {
	t.Helper()
	list, err := wheel.ParseArchs(archs)
	if err != nil {
		t.Fatal(err)
	}
	return wheel.Request{ABI: wheel.TorchMinor, Archs: list, Ops: ops}
}

// planOf is the plan of toolchains of the lock.
func planOf(t *testing.T, src Source, base Base, keepDebug bool, toolchains ...compat.Toolchain) *Plan {
	t.Helper()
	var parts []Part
	for _, tc := range toolchains {
		packages, _ := LockedPackages(tc) // none for a wheel that is built on aarch64
		parts = append(parts, Part{tc, packages})
	}
	p, err := NewPlan(parts, src, base, keepDebug)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// planFor is the plan of a release on the build environments dsbuild chooses among, or on
// those given, and of sources of another kind where src is set.
func planFor(t *testing.T, r wheel.Request, src Source, base Base, hosts ...compat.BuildHost) *Plan {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	if src.Kind != "" {
		tables = tables.WithSources(compat.DeepSpeed{Version: src.Version})
	}
	tc, err := tables.Resolve(r, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	if src.Kind == "" {
		src = Release(tc.DeepSpeed, tc.Source)
	}
	if base.Ref == "" {
		base.Ref = tc.Environment.Ref
	}
	return planOf(t, src, base, r.KeepDebug, append([]compat.Toolchain{tc}, tables.Variants(r, tc)...)...)
}

// A package that the build installed has the hash of the plan's file; one of an environment beside it, of
// another version, or of the distribution has none by the plan.
func TestInstalledPackagesHaveTheirArchives(t *testing.T) {
	p := plan(t, image(), []string{"cpu_adam"}, "8.0")
	torch := p.Packages[slices.IndexFunc(p.Packages, func(one dockerfiles.Package) bool { return one.Name == "torch" })]
	installed := []wheel.Package{
		{PURL: "pkg:pypi/torch@2.15.0"}, {PURL: "pkg:pypi/torch@2.15.0", Beside: true}, {PURL: "pkg:pypi/torch@2.15.1"}, {PURL: "pkg:deb/debian/torch@2.15.0"},
	}
	p.addArchives(installed)
	for i, have := range installed {
		if want := map[int]string{0: torch.SHA256}[i]; have.Archive != want {
			t.Errorf("%s: %q, want %q", have.PURL, have.Archive, want)
		}
	}
}

// known is the build environment of an image that the tables know.
func known(t *testing.T, ref string) compat.BuildHost {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	g, ok := tables.EnvironmentOfImage(ref)
	if !ok {
		t.Fatalf("%s is not in dsbuild's tables", ref)
	}
	return g
}

// machine is a login node: a gcc from a module, a CUDA, no way to install.
func machine() compat.BuildHost {
	return compat.BuildHost{
		Name: "Rocky Linux 9.4", Host: true, Glibc: "2.34", Pythons: []string{"3.12", "3.9"}, GCCs: []string{"12"},
		CUDA: "12.6", CUDAHome: "/apps/cuda/12.6", Machine: "x86_64",
	}
}

func image() Base { return Base{Ref: "debian:bookworm-slim"} }

func tarball() Base {
	return Base{Ref: "bookworm.tar", File: "/somewhere/bookworm.tar", Digest: "sha256:" + strings.Repeat("ab", 32)}
}

const nvidia = "nvidia/cuda:12.8.1-devel-ubuntu22.04"

// The plan that --dry-run prints, for every CUDA source.
func TestPlanGolden(t *testing.T) {
	for name, p := range map[string]*Plan{
		"a100-image":  plan(t, image(), nil, "8.0"),
		"a100-tar":    plan(t, tarball(), nil, "8.0"),
		"three-archs": debugPlan(t, image(), "9.0+PTX", "8.0;8.6"),
		"cpu-only":    plan(t, image(), []string{"cpu_adam", "utils"}),

		"cuda12":   planFor(t, wheel.Request{ABI: wheel.TorchMinor, Glibc: "2.31", Ops: []string{"cpu_adam", "utils"}}, Source{}, Base{}),
		"nvcc12":   planFor(t, wheel.Request{ABI: wheel.TorchMinor, GPUs: []string{"V100"}}, Source{}, Base{}),
		"debian12": planFor(t, wheel.Request{GPUs: []string{"A100"}, Torch: "2.0"}, Source{}, Base{}),
		"found":    planFor(t, wheel.Request{ABI: wheel.TorchMinor, GPUs: []string{"H100"}}, Source{}, Base{Ref: nvidia}, known(t, nvidia)),
		"host": planFor(t, wheel.Request{ABI: wheel.TorchMinor, GPUs: []string{"A100"}, CPU: wheel.CPUv4}, Source{},
			Base{Ref: "host", Digest: "sha256:" + strings.Repeat("01", 32), Host: true}, machine()),
		"all-ops":   planFor(t, wheel.Request{GPUs: []string{"RTX 2080 Ti", "A100"}, Ops: []string{compat.AllOps}}, Source{}, Base{}),
		"stable":    planFor(t, wheel.Request{GPUs: []string{"A100"}, ABI: wheel.StableABI}, Source{}, Base{}),
		"universal": planFor(t, wheel.Request{}, Source{}, Base{}),
		"git": planFor(t, wheel.Request{GPUs: []string{"A100"}}, Source{
			Kind: SourceGit, Ref: "https://example.org/DeepSpeed@main", Version: "0.20.0",
			Commit: strings.Repeat("c0ffee1", 6)[:40], SHA256: strings.Repeat("23", 32), File: "/tmp/x/deepspeed.tar.gz",
		}, Base{}),
	} {
		var got bytes.Buffer
		if err := p.Print(&got); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s differs from %s; go test ./pipeline -update shows how\n%s", name, file, got.String())
		}
	}
}

// The number of the recipe rises when the plan of a default wheel changes.
func TestRecipe(t *testing.T) {
	var file struct {
		Number int               `json:"number"`
		Plans  map[string]string `json:"plans"` // digests
	}
	if err := json.Unmarshal(recipeFile, &file); err != nil {
		t.Fatal(err)
	}
	plans := map[string]string{}
	for name, r := range map[string]wheel.Request{
		"complete x86-64-v2": {}, "complete armv8-a": {CPU: wheel.CPUArm}, "all-ops x86-64-v2": {Ops: []string{compat.ProvenOps}},
	} {
		p := planFor(t, r, Source{}, Base{})
		m := p.Manifest
		if m.Version = m.Source.Ref + m.Env[versionVariable]; string(wheel.KindOf(m))+" "+m.CPU != name {
			t.Errorf("%s is a %s wheel for %s, want %s", m.Version, wheel.KindOf(m), m.CPU, name)
		}
		if tag := fmt.Sprintf("%d_%s", file.Number, p.Digest[:8]); m.BuildTag() != tag {
			t.Errorf("%s: build tag %s, want %s", name, m.BuildTag(), tag)
		}
		plans[name] = p.Digest
	}
	if maps.Equal(file.Plans, plans) {
		return
	}
	if !*update {
		t.Errorf("plans have changed: raise the number of recipe.json, and write their digests there: go test ./pipeline -run TestRecipe -update")
		return
	}
	file.Number, file.Plans = file.Number+1, plans
	text, err := json.MarshalIndent(file, "", "  ")
	if err == nil {
		err = os.WriteFile("recipe.json", append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDigest(t *testing.T) {
	base := plan(t, tarball(), nil, "8.0")
	same := tarball()
	same.File = "/elsewhere/bookworm.tar"
	if plan(t, same, nil, "8.0").Digest != base.Digest {
		t.Error("where the base lies changes the digest")
	}
	other := tarball()
	other.Digest = "sha256:" + strings.Repeat("cd", 32)
	for what, p := range map[string]*Plan{
		"base":  plan(t, other, nil, "8.0"),
		"arch":  plan(t, tarball(), nil, "8.6"),
		"PTX":   plan(t, tarball(), nil, "8.0+PTX"),
		"ops":   plan(t, tarball(), []string{"fused_adam"}, "8.0"),
		"debug": debugPlan(t, tarball(), "8.0"),
	} {
		if p.Digest == base.Digest {
			t.Errorf("another %s has the same digest", what)
		}
	}
}

// Extensions are linked for manylinux_2_28, with the C++ standard of torch's headers.
func TestPlanLinksForOlderLibraries(t *testing.T) {
	for _, s := range plan(t, tarball(), nil, "8.0").Steps {
		if s.Name != CompileStep {
			continue
		}
		if got := s.Env["DSBUILD_FLOOR"]; got != "GLIBC_2.28 GLIBCXX_3.4.24 CXXABI_1.3.11 GCC_7.0.0" || s.Env["DSBUILD_CXX_STANDARD"] != "20" {
			t.Errorf("%q, C++%s", got, s.Env["DSBUILD_CXX_STANDARD"])
		}
		if names := s.AllScripts(); !slices.Contains(names, "floor.py") || !slices.Contains(names, "floor.cc") {
			t.Errorf("scripts %q", names)
		}
	}
}

// The plan's manifest names the plan and nothing that differs between runs.
func TestManifestInPlan(t *testing.T) {
	t.Setenv("DS_BUILD_UTILS", "of the caller")
	t.Setenv("DS_BUILD_SECRET", "of the caller")
	p := plan(t, tarball(), nil, "8.0")
	m := p.Manifest
	debug := debugPlan(t, tarball(), "8.0").Manifest.Env[wheel.KeepDebugVariable]
	if _, kept := m.Env[wheel.KeepDebugVariable]; kept || debug != "1" {
		t.Errorf("debug information: %v, %q", kept, debug)
	}
	if _, has := m.Env["DS_BUILD_SECRET"]; has {
		t.Errorf("the caller's variables: %v", m.Env)
	}
	if m.PlanDigest != p.Digest || m.BuiltAt != nil || m.Builder != "" || m.Env["DS_BUILD_UTILS"] != "1" || m.Base.Digest == "" {
		t.Errorf("%+v", m)
	}
}

// What a wheel lacks, or has too much of, is named.
func TestPlanCompares(t *testing.T) {
	p := plan(t, image(), []string{"cpu_adam", "fused_adam", "utils"}, "8.0")
	c := wheel.Contents{Extensions: []wheel.Extension{
		{Path: "deepspeed/ops/adam/cpu_adam_op.so", Machine: wheel.X86, CPU: wheel.CPU{Max: wheel.CPUv3}, Stripped: true},
		{Path: "deepspeed/ops/adam/fused_adam_op.so", Machine: wheel.X86, CPU: wheel.CPU{Max: wheel.CPUv2}, SASS: []string{"8.0"}, Stripped: true},
		{Path: "deepspeed/ops/utils_op.so", Machine: wheel.X86, CPU: wheel.CPU{Max: wheel.CPUv1}, Stripped: true},
	}}
	if found := p.auditFindings(c, p.Toolchain().Glibc); len(found) > 0 {
		t.Errorf("as asked: %v", found)
	}
	c.Extensions = c.Extensions[:2]
	if found := p.auditFindings(c, p.Toolchain().Glibc); !slices.Equal(found, []string{"op utils was requested but is missing"}) {
		t.Error(found)
	}
}

// The glibc of the oldest node that was named goes into the audit, and not into
// the plan's digest: the wheel is the same.
func TestPlanComparesGlibc(t *testing.T) {
	asked := planFor(t, wheel.Request{Ops: []string{"cpu_adam"}, CPU: wheel.CPUv3, Glibc: "2.36"}, Source{}, Base{})
	free := planFor(t, wheel.Request{Ops: []string{"cpu_adam"}, CPU: wheel.CPUv3, Python: "3.11"}, Source{}, Base{})
	if asked.Digest != free.Digest {
		t.Errorf("another plan: %s, %s", asked.Base.Ref, free.Base.Ref)
	}
	c := wheel.Contents{Extensions: []wheel.Extension{
		{Path: "deepspeed/ops/adam/cpu_adam_op.so", Machine: wheel.X86, CPU: wheel.CPU{Max: wheel.CPUv3}, Stripped: true, Floors: wheel.Floors{Glibc: "2.38"}},
	}}
	if found := asked.auditFindings(c, asked.Toolchain().Glibc); !slices.Equal(found, []string{"op cpu_adam needs glibc 2.38, requested glibc 2.36"}) {
		t.Error(found)
	}
	if found := free.auditFindings(c, free.Toolchain().Glibc); len(found) > 0 {
		t.Error(found)
	}
}

// A wheel that was tampered with after it was packed does not pass the audit.
func TestPlanAuditNamesTheDamage(t *testing.T) {
	p := plan(t, image(), []string{"cpu_adam", "fused_adam"}, "8.0")
	p.Digest = wheeltest.PlanDigest()
	if _, err := p.auditContents(t.Context(), wheeltest.Packed(t, t.TempDir(), wheeltest.Options{})); err != nil {
		t.Errorf("as it was packed: %v", err)
	}
	for _, d := range wheeltest.Damages() {
		_, err := p.auditContents(t.Context(), d.Damaged(t, t.TempDir()))
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), d.Finding) {
			t.Errorf("%s: %v, want %s", d.Name, err, d.Finding)
		}
	}
}

// Only where another machine builds the wheel do the steps get its name, and the image a cross compiler.
func TestPlanForAarch64(t *testing.T) {
	native := compat.BuildHost{Name: "this machine", Host: true, Machine: wheel.Arm, Pythons: []string{"3.12"}, Glibc: "2.39", GCCs: []string{"13"}}
	cross := planFor(t, wheel.Request{GPUs: []string{"GH200"}}, Source{}, Base{})
	here := planFor(t, wheel.Request{GPUs: []string{"H100"}}, Source{}, Base{})
	there := planFor(t, wheel.Request{GPUs: []string{"GH200"}}, Source{}, Base{Ref: "host", Host: true}, native)
	if _, locked := LockedPackages(there.Toolchain()); locked {
		t.Error("the lock has the packages for x86_64 alone")
	}
	for name, c := range map[string]struct {
		plan       *Plan
		cross, cpu string
	}{"cross": {cross, wheel.Arm, "armv8-a"}, "x86_64": {here, "", "x86-64-v2"}, "native": {there, "", "armv8-a"}} {
		p := c.plan
		for _, s := range p.Steps {
			if want := map[string]string{CompileStep: c.cross, StripStep: c.cross, SmokeStep: c.cross}[s.Name]; s.Env[crossVariable] != want {
				t.Errorf("%s: step %s: %s=%q, want %q", name, s.Name, crossVariable, s.Env[crossVariable], want)
			}
		}
		// The smoke test runs where a Python of the wheel's machine is.
		if at := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Name == SmokeStep }); (p.Steps[at].Image == Toolchain) != (c.cross != "") {
			t.Errorf("%s: the smoke test runs in the image %v", name, p.Steps[at].Image)
		}
		if has := strings.Contains(p.Context[dockerfiles.ArmPackages], "torch=="); has != (c.cross != "") {
			t.Errorf("%s: torch for aarch64 among the packages: %v", name, has)
		}
		if _, has := p.Scripts["standins.py"]; p.Args["CROSS"] != c.cross || p.Manifest.CPU != c.cpu || has != (c.cross != "") {
			t.Errorf("%s: CROSS=%q, %s, stand-ins %v", name, p.Args["CROSS"], p.Manifest.CPU, has)
		}
	}
	if _, err := NewBundlePlan(cross, nil, true); fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), "cannot build a wheelhouse for aarch64") || fault.Hint(err) == "" {
		t.Errorf("a wheelhouse of a cross build: %v, want a refusal", err)
	}
	if _, err := NewBundlePlan(there, nil, true); err != nil {
		t.Errorf("a wheelhouse of a native build: %v", err)
	}
	if there.Context["uv.txt"] == cross.Context["uv.txt"] || here.Context["uv.txt"] != cross.Context["uv.txt"] {
		t.Error("uv is that of the machine that builds")
	}
	if env := cross.Steps[1].Env; env["DS_BUILD_STRING"] != "+sm90" || env["DSBUILD_FLOOR"] != wheel.PlatformFloors(compat.LinkGlibc, wheel.Arm).Versions() {
		t.Error(env["DS_BUILD_STRING"], env["DSBUILD_FLOOR"])
	}
}
