//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelsWorkflow is what the tests read of .github/workflows/wheels.yml, which makes the public wheels.
type wheelsWorkflow struct {
	Jobs map[string]struct {
		Strategy struct {
			Matrix struct {
				Include []struct{ Name, Machine, Flags string }
			}
		}
		Steps []struct {
			Name, Run string
			With      struct{ Name, Pattern string }
		}
	}
}

func readWheelsWorkflow(t *testing.T) wheelsWorkflow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, ".github/workflows/wheels.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var w wheelsWorkflow
	if err := yaml.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// step returns the script of a step.
func (w wheelsWorkflow) step(t *testing.T, job, name string) string {
	t.Helper()
	for _, s := range w.Jobs[job].Steps {
		if s.Name == name {
			return s.Run
		}
	}
	t.Fatalf("the job %s has no step %q", job, name)
	return ""
}

// builds returns the script that builds each wheel, by its name, such as complete-x86_64.
func (w wheelsWorkflow) builds(t *testing.T) map[string]string {
	t.Helper()
	scripts := map[string]string{}
	for _, b := range w.Jobs["build"].Strategy.Matrix.Include {
		scripts[b.Name] = strings.NewReplacer("${{ matrix.machine }}", b.Machine, "${{ matrix.flags }}", b.Flags).Replace(w.step(t, "build", "Build the wheel"))
	}
	return scripts
}

// checkout is an empty working folder with the program, as make build leaves it.
func checkout(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "bin/dsbuild")); err != nil { // by this name it is the program
		t.Fatal(err)
	}
	return dir
}

// runStep runs a script as a workflow does, and returns what it printed.
func runStep(t *testing.T, dir, script string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustRunStep(t *testing.T, dir, script string) string {
	t.Helper()
	out, err := runStep(t, dir, script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// pythonAndUV returns the programs of Python 3.11 and of uv.
func pythonAndUV(t *testing.T) (py, uv string, err error) {
	t.Helper()
	if py, err = python.Find(t.Context(), "3.11"); err != nil {
		return "", "", fmt.Errorf("no Python 3.11: %w", err)
	}
	u, err := python.GetUV(t.Context(), py, func(line string) { t.Log(line) })
	if err != nil {
		return "", "", fmt.Errorf("no uv: %w", err)
	}
	return py, u.Program(), nil
}

// The release has the artifacts of all builds, and only those.
func TestReleaseTakesAllPublicWheels(t *testing.T) {
	w := readWheelsWorkflow(t)
	taken := map[string]bool{}
	for _, fetch := range w.Jobs["release"].Steps {
		for _, job := range []string{"prove", "build"} {
			for _, upload := range w.Jobs[job].Steps {
				if is, err := path.Match(fetch.With.Pattern, upload.With.Name); err != nil || is && upload.With.Name != "" {
					taken[upload.With.Name] = true
				}
			}
		}
	}
	if want := map[string]bool{"wheel-${{ matrix.name }}": true}; !maps.Equal(taken, want) {
		t.Errorf("the release fetches %v, want %v", taken, want)
	}
}

// Each public wheel is one file for every torch from 2.10 on, and has the kind that its name says.
func TestPublicWheelsServeEveryTorch(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	labels := map[string]string{"complete": "", "all-ops": "+allops"}
	builds := readWheelsWorkflow(t).builds(t)
	if len(builds) != 4 {
		t.Errorf("%d wheels; want 4", len(builds))
	}
	dir := checkout(t)
	for name, script := range builds {
		script = strings.Replace(script, "--builder host", "", 1) // this machine is not the job's container
		out := mustRunStep(t, dir, strings.TrimSpace(script)+" --dry-run --verbose")
		kind, _, _ := strings.Cut(name, "-x86_64")
		label := "" // which the plan does not print
		if m := regexp.MustCompile(`(?m)^ +DS_BUILD_STRING=(.*)$`).FindStringSubmatch(out); m != nil {
			label = m[1]
		}
		want, known := labels[strings.TrimSuffix(kind, "-aarch64")]
		if !strings.Contains(out, "for torch 2.10 or newer (stable ABI") || label != want || !known {
			t.Errorf("%s: the plan has the label %q and is\n%s\nwant a wheel for torch 2.10 or newer with the label %q", name, label, out, want)
		}
	}
}

// The wheel that make test has built goes through the steps after the build, with that of an earlier release. Then stock pip and uv take it
// from the index for the oldest Python and for the newest, and find nothing for machines that cannot run it.
func TestPipAndUVInstallThePublicWheels(t *testing.T) {
	t.Parallel()
	file := built.Wheel(t)
	w, dir := readWheelsWorkflow(t), checkout(t)
	if err := os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(filepath.Dir(file))); err != nil {
		t.Fatal(err)
	}
	older := wheeltest.OfKind(wheel.KindComplete)
	older.Version = "0.19.7"
	older.Ops[0].Imports = []string{"getrandom"} // of glibc 2.25
	wheeltest.Packed(t, dir, older)
	// For gh: a release has the older wheel.
	const gh = "#!/bin/sh\ncase $2 in\nlist) echo wheels-0.19.7 ;;\ndownload) cp ./*-0.19.7-*.whl \"$5\" ;;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "bin/gh"), []byte(gh), 0o755); err != nil {
		t.Fatal(err)
	}
	mustRunStep(t, dir, "PATH=$PWD/bin:$PATH\n"+w.step(t, "release", "Fetch the published wheels"))
	mustRunStep(t, dir, w.step(t, "release", "Write the index")+"cd dist && sha256sum --check --strict SHA256SUMS")
	index := filepath.Join(dir, "public")
	if page, err := os.ReadFile(filepath.Join(index, "deepspeed/index.html")); err != nil || strings.Count(string(page), "<a ") != 2 {
		t.Errorf("the page is %s, %v; want two files", page, err)
	}

	py, uv, err := pythonAndUV(t)
	if err != nil {
		needs.Missing(t, "%v", err)
	}
	unpacked, err := python.Pip(t.Context(), py)
	if err != nil {
		t.Fatal(err)
	}
	pip := "PYTHONPATH=" + unpacked + " " + py + " -m pip download --no-deps --only-binary :all:"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"3.10", "3.14"} {
		for program, script := range map[string]string{
			"pip": fmt.Sprintf("%s -q --platform manylinux_2_24_x86_64 --python-version %s -d got --index-url file://%s deepspeed", pip, version, index),
			"uv":  fmt.Sprintf("%s pip install -q --no-deps --python-platform x86_64-manylinux_2_28 --python-version %s --target got --index-url file://%s deepspeed", uv, version, index),
		} {
			mustRunStep(t, dir, "rm -rf got && mkdir got && "+script)
			if program == "pip" {
				got, err := os.ReadFile(filepath.Join(dir, "got", filepath.Base(file)))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("pip for Python %s: %v; want the bytes of %s", version, err, filepath.Base(file))
				}
			} else if _, err := os.Stat(filepath.Join(dir, "got/deepspeed/ops/adam")); err != nil {
				t.Errorf("uv for Python %s: %v; want DeepSpeed's folder", version, err)
			}
		}
	}
	none := regexp.MustCompile(`(?i)no matching distribution|no solution found`)
	for _, c := range []struct{ machine, pip, uv string }{
		{"glibc 2.17", "manylinux_2_17_x86_64", "x86_64-manylinux2014"},
		{"musl", "musllinux_1_2_x86_64", "x86_64-unknown-linux-musl"},
		{"Windows", "win_amd64", "x86_64-pc-windows-msvc"},
		{"macOS", "macosx_14_0_arm64", "aarch64-apple-darwin"},
		{"Arm", "manylinux_2_28_aarch64", "aarch64-manylinux_2_28"},
	} {
		scripts := []string{
			fmt.Sprintf("%s --platform %s --python-version 3.11 -d got --index-url file://%s deepspeed", pip, c.pip, index),
			fmt.Sprintf("%s pip install --no-deps --python-platform %s --python-version 3.11 --target got --index-url file://%s deepspeed", uv, c.uv, index),
		}
		if i := slices.IndexFunc(scripts, func(script string) bool {
			out, err := runStep(t, dir, script)
			return err == nil || !none.MatchString(out)
		}); i >= 0 {
			out, err := runStep(t, dir, scripts[i])
			t.Errorf("%s: %v\n%s\nwant that no wheel is found", c.machine, err, out)
		}
	}
}
