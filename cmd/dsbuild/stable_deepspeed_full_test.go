//go:build full

package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
)

// deepSpeedTests returns a folder with the tests of DeepSpeed's repository, which its source
// distribution lacks. They come from the checkout that DSBUILD_DEEPSPEED_CHECKOUT names, else from
// GitHub. The folder has nothing else of the checkout, so that its tests import the installed DeepSpeed.
func deepSpeedTests(t *testing.T, version string) string {
	t.Helper()
	checkout := os.Getenv("DSBUILD_DEEPSPEED_CHECKOUT")
	if checkout == "" {
		checkout = filepath.Join(t.TempDir(), "DeepSpeed")
		command(t, ".", "git", "clone", "--quiet", "--depth", "1", "--branch", "v"+version, "https://github.com/deepspeedai/DeepSpeed", checkout)
	}
	dir := filepath.Join(t.TempDir(), "tests")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(checkout, "tests"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pytestCase is a test in pytest's report of a run.
type pytestCase struct {
	Class   string    `xml:"classname,attr"`
	Name    string    `xml:"name,attr"`
	Failure *struct{} `xml:"failure"`
	Error   *struct{} `xml:"error"`
	Skipped *struct{} `xml:"skipped"`
}

// outcome is how the test ended.
func (c pytestCase) outcome() string {
	switch {
	case c.Failure != nil || c.Error != nil:
		return "failed"
	case c.Skipped != nil:
		return "skipped"
	default:
		return "passed"
	}
}

// runPytest runs files of tests with the installed DeepSpeed and an accelerator. It returns how each test ended, and
// how often each end was.
func runPytest(t *testing.T, interpreter, dir, accelerator string, files ...string) (ends map[string]string, counts map[string]int) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.xml")
	cmd := exec.Command(interpreter, append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report}, files...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "DS_ACCELERATOR="+accelerator)
	out, runErr := cmd.CombinedOutput() // tests that fail are in the report
	text, err := os.ReadFile(report)
	var suites struct {
		Cases []pytestCase `xml:"testsuite>testcase"`
	}
	if err == nil {
		err = xml.Unmarshal(text, &suites)
	}
	if err != nil || len(suites.Cases) == 0 {
		t.Fatalf("%d tests, %v, %v\n%s", len(suites.Cases), err, runErr, out)
	}
	ends, counts = map[string]string{}, map[string]int{}
	for _, c := range suites.Cases {
		ends[c.Class+"."+c.Name] = c.outcome()
		counts[c.outcome()]++
	}
	if counts["failed"] > 0 {
		t.Logf("%s", out)
	}
	return ends, counts
}

// DeepSpeed's own tests of its CPU optimizers end with the default wheel as they do with a wheel for one torch, in which DeepSpeed's own
// setup binds the ops. Those that need a GPU are skipped where there is none. Those of async_io pass with the default wheel; in the
// other DeepSpeed finds no op for a machine without a GPU, and would compile one.
func TestFullStableDeepSpeedTests(t *testing.T) {
	file := built.Wheel(t)
	stock := build(t, append(ofRelease(), "--ops", strings.Join(optimizers(), ","), "--abi", "torch",
		"--torch", stockPair().torch, "--python", stockPair().python, "-o", t.TempDir())...)
	release, _, _ := strings.Cut(stock.Manifest.Version, "+")
	tests := deepSpeedTests(t, release)
	env := newStableEnvironment(t, stockPair(), "pytest", "nvidia-ml-py")
	run := func(path, accelerator string, files ...string) map[string]string {
		env.install(t, path)
		ends, counts := runPytest(t, env.python, tests, accelerator, files...)
		if counts["passed"] == 0 || counts["failed"] > 0 {
			t.Errorf("%s, accelerator %s: %v", filepath.Base(path), accelerator, counts)
		}
		t.Logf("result: DeepSpeed's tests %s with %s: %d passed, %d skipped, %d failed", strings.Join(files, ", "), filepath.Base(path), counts["passed"], counts["skipped"], counts["failed"])
		return ends
	}
	ofOptimizers := []string{"unit/ops/adam/test_cpu_adam.py", "unit/ops/adagrad/test_cpu_adagrad.py", "unit/ops/lion/test_cpu_lion.py"}
	if got, want := run(file, "cuda", ofOptimizers...), run(stock.Path, "cuda", ofOptimizers...); !reflect.DeepEqual(got, want) {
		t.Errorf("default wheel     %v\nthe one for torch %v", got, want)
	}
	run(file, "cpu", "unit/v1/nvme/test_aio.py")
}
