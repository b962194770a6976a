//go:build full && linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/wheel"
)

// The container of the workflow wheels.yml, a Debian with what its first step installs, has all that its builds need: the default
// wheel is built, and the plan of the one with all ops names nothing that is missing.
func TestFullPublicContainer(t *testing.T) {
	s := newSystem(t, "bookworm", t.TempDir())
	work := filepath.Join(s.root, "work")
	if err := os.MkdirAll(filepath.Join(work, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, ".", "cp", makeProgram(t), filepath.Join(work, "bin"))
	w := readWheelsWorkflow(t)
	s.run(t, "sh", "-ec", w.step(t, "build", "Install Debian packages"))
	for name, script := range w.builds(t) {
		if strings.HasSuffix(name, wheel.Arm) {
			continue
		}
		if script = "export HOME=/root\ncd /work\n" + strings.TrimSpace(script); strings.HasPrefix(name, "all-ops-") {
			script += " --dry-run" // TestFullPublicAll builds one of them
		}
		s.run(t, "sh", "-ec", script)
	}
	wheels, err := filepath.Glob(filepath.Join(work, "dist/*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%v, %v; want one wheel with the default ops", wheels, err)
	}
	t.Logf("result: %s", filepath.Base(wheels[0]))
}

// The public wheel with all ops is built by the command of the workflow, for one GPU: its objects are those of TestFullStable, which
// loads these ops under every torch. The default wheel has all GPUs. The tools of others read in it what dsbuild reads, and torch
// loads every op.
func TestFullPublicAll(t *testing.T) {
	hostPackages(t)
	dir := checkout(t)
	script := strings.Replace(strings.TrimSpace(readWheelsWorkflow(t).builds(t)["all-ops-x86_64"]), "--builder host", "--builder dagger", 1)
	mustRunStep(t, dir, script+" --arch 8.0")
	built, err := filepath.Glob(filepath.Join(dir, "dist/*.whl"))
	if err != nil || len(built) != 1 {
		t.Fatalf("%v, %v; want one wheel", built, err)
	}
	contents, err := wheel.Inspect(t.Context(), built[0])
	if err != nil {
		t.Fatal(err)
	}
	files := unzipped(t, built[0])
	file, err := os.Stat(built[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("result: %s: %d bytes, %d extensions", file.Name(), file.Size(), len(contents.Extensions))

	compareWithAuditwheel(t, built[0])
	compareWithAudit(t, built[0], files)
	device := 0
	for _, e := range contents.Extensions {
		file := filepath.Join(files, e.Path)
		sass, ptx := fulltools.DeviceCode(t, file, filepath.Join(fulltools.Tools(t), "cuobjdump"))
		if !slices.Equal(slices.Sorted(slices.Values(e.SASS)), sass) || !slices.Equal(slices.Sorted(slices.Values(e.PTX)), ptx) {
			t.Errorf("%s: SASS %v, PTX %v; cuobjdump: %v, %v", e.Path, e.SASS, e.PTX, sass, ptx)
		}
		device += min(1, len(sass))
	}
	if device == 0 {
		t.Error("cuobjdump finds device code in no extension")
	}
	sass, ptx := contents.Archs()
	t.Logf("result: cuobjdump: %d extensions with device code; SASS %v, PTX %v", device, sass, ptx)

	text, err := os.ReadFile(built[0] + ".manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := wheel.ParseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	env := newStableEnvironment(t, stockPair(), m.Requires...)
	shown := exposedBy(t, env.python, files, m.Ops)
	if said, err := runWith(t, env.python, files, absolute(t, "testdata/stable/steps.py")); err != nil {
		t.Errorf("CPU Adam: %v, %s", err, said)
	}
	t.Logf("result: torch %s, Python %s: %d ops loaded; CPU Adam computes", stockPair().torch, stockPair().python, len(shown))
}
