//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// wheelsWorkflow is what the tests read of .github/workflows/wheels.yml, which makes the public wheels.
type wheelsWorkflow struct {
	Jobs map[string]struct {
		Strategy struct {
			Matrix struct {
				Target []struct{ CUDA, Machine string }
				Set    []struct{ Name, Ops string }
			}
		}
		Steps []struct{ Name, Run string }
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

// builds returns the script that builds each wheel, by its set, CUDA and machine, such as all-cu13-x86_64.
func (w wheelsWorkflow) builds(t *testing.T) map[string]string {
	t.Helper()
	scripts := map[string]string{}
	matrix := w.Jobs["build"].Strategy.Matrix
	for _, target := range matrix.Target {
		for _, set := range matrix.Set {
			scripts[set.Name+"-cu"+target.CUDA+"-"+target.Machine] = strings.NewReplacer(
				"${{ matrix.target.cuda }}", target.CUDA, "${{ matrix.target.machine }}", target.Machine,
				"${{ matrix.set.ops }}", set.Ops, "${{ matrix.set.name }}", set.Name,
			).Replace(w.step(t, "build", "Build the wheel"))
		}
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

// Each public wheel is one file for every torch from 2.10 on, at most eight of them.
func TestPublicWheelsServeEveryTorch(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	builds := readWheelsWorkflow(t).builds(t)
	if n := len(builds); n == 0 || n > 8 {
		t.Fatalf("%d wheels; want 1 to 8", n)
	}
	dir := checkout(t)
	for name, script := range builds {
		script = strings.Replace(script, "--builder host", "", 1) // this machine is not the job's container
		out := mustRunStep(t, dir, strings.TrimSpace(script)+" --dry-run")
		if !strings.Contains(out, "for torch 2.10 or newer (stable ABI") {
			t.Errorf("%s: the plan is\n%s\nwant a wheel for torch 2.10 or newer", name, out)
		}
	}
}

// The wheel that make test has built goes through the steps after the build. Then stock pip and uv take it from the index for the
// oldest Python and for the newest, and find nothing for machines that cannot run it.
func TestPipAndUVInstallThePublicWheels(t *testing.T) {
	t.Parallel()
	file := built.Wheel(t)
	w, dir := readWheelsWorkflow(t), checkout(t)
	for _, set := range w.Jobs["build"].Strategy.Matrix.Set {
		to := filepath.Join(dir, "dist", set.Name)
		if err := os.CopyFS(to, os.DirFS(filepath.Dir(file))); err != nil {
			t.Fatal(err)
		}
	}
	mustRunStep(t, dir, w.step(t, "release", "Write the index"))

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
	indexes, err := filepath.Glob(filepath.Join(dir, "public", "torch*"))
	if err != nil {
		t.Fatal(err)
	}
	small, err := filepath.Glob(filepath.Join(dir, "public/default", "torch*"))
	if err != nil || len(indexes) != 1 || len(small) != 1 {
		t.Fatalf("indexes %v and %v, %v; want one each", indexes, small, err)
	}
	for _, index := range append(indexes, small...) {
		versions := []string{"3.10", "3.14"}
		if index == small[0] {
			versions = versions[:1]
		}
		for _, version := range versions {
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
			fmt.Sprintf("%s --platform %s --python-version 3.11 -d got --index-url file://%s deepspeed", pip, c.pip, indexes[0]),
			fmt.Sprintf("%s pip install --no-deps --python-platform %s --python-version 3.11 --target got --index-url file://%s deepspeed", uv, c.uv, indexes[0]),
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
