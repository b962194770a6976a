//go:build full

package fakecuda

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// pythonOf is the Python of the environments.
const pythonOf = "3.11"

// A side is what is compared under one major of CUDA.
type side struct {
	cuda  string // as the wheel's libraries name it
	torch string // whose wheel over the C++ interface is compared
	// other is another torch that the wheel of the stable ABI serves, too.
	other string
	// packages are NVIDIA's headers that torch does not require.
	packages []string
}

func cuda13() side {
	return side{"cu13", "2.15.0", "2.11.0", []string{"nvidia-curand", "nvidia-cuda-cccl==13.2.86", "nvidia-cuda-crt==13.2.86"}}
}

func cuda12() side {
	return side{cuda: "cu12", torch: "2.10.0", packages: []string{"nvidia-cuda-cccl-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93"}}
}

// unpacked unpacks a wheel and returns the folder.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	archive, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close() //nolint:errcheck // was read
	dir := t.TempDir()
	if err := os.CopyFS(dir, archive); err != nil {
		t.Fatal(err)
	}
	return dir
}

// environment has torch, NVIDIA's headers and cuobjdump, and the stand-ins.
type environment struct {
	python    string // its interpreter
	libraries string // the folder of the stand-ins
	path      string // PATH with its cuobjdump
	kernels   string // the folder of the libraries of deepspeed-kernels, if it has them
}

// newEnvironment makes an environment with a release of torch for a side's CUDA, or takes the one that an earlier run made.
func newEnvironment(t *testing.T, s side, torch string, more ...string) environment {
	t.Helper()
	interpreter, err := python.Find(t.Context(), pythonOf)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := python.Environment(t.Context(), python.EnvironmentOptions{
		Interpreter: interpreter, Log: func(line string) { t.Log(line) },
		Packages: slices.Concat([]string{"torch==" + torch, "numpy==2.4.6", "nvidia-cuda-cuobjdump==13.5.37"}, s.packages, more),
	})
	if err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(dir, "lib", "python"+pythonOf, "site-packages")
	e := environment{
		python: filepath.Join(dir, "bin/python"), libraries: filepath.Join(t.TempDir(), "lib"),
		path:    filepath.Join(site, "nvidia/cu13/bin") + ":" + os.Getenv("PATH"),
		kernels: filepath.Join(site, "dskernels"),
	}
	e.run(t, "build.py", site, e.libraries)
	return e
}

// run runs a script of this folder and returns its output. A script that compares ends with 1 if it found differences;
// a program over a mutant may die.
func (e environment) run(t *testing.T, script string, arguments ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.python, append([]string{script}, arguments...)...)
	cmd.Env = append(os.Environ(), "PATH="+e.path, "LD_LIBRARY_PATH="+e.kernels)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	overMutant := script == "record.py" && strings.HasSuffix(arguments[len(arguments)-1], ".so")
	if err := cmd.Run(); err != nil && !overMutant && (script != "compare.py" || cmd.ProcessState.ExitCode() != 1) {
		t.Fatalf("%s %v: %v\n%s%s", script, arguments, err, out.Bytes(), errors.Bytes())
	}
	return out.Bytes()
}

// tableOfKernels writes the table of the kernels of an unpacked wheel.
func (e environment) tableOfKernels(t *testing.T, wheel string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kernels")
	if err := os.WriteFile(file, e.run(t, "devicecode.py", append([]string{"kernels"}, libraries(t, wheel)...)...), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// decode reads the JSON of a script.
func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return value
}

// codeOfOp is what devicecode.py says of an op.
type codeOfOp struct {
	Kernels, Same, Bytes, PTX int
	Differences               []string
}

// callsOfOp is what compare.py says of an op's scenarios.
type callsOfOp struct {
	Cases, Calls, Launches, Errors int
	Unknown                        int `json:"launches with unknown arguments"`
	Kernels                        []string
	Differences                    []string
}

// libraries returns the libraries of the ops of an unpacked wheel.
func libraries(t *testing.T, wheel string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(wheel, "deepspeed"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".so") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("libraries in %s: %v, %v", wheel, files, err)
	}
	return files
}

func first(texts []string, most int) []string { return texts[:min(most, len(texts))] }
