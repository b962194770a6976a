//go:build linux

package slurm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/ci/python"
	"github.com/dsbuild/dsbuild/internal/hint"
)

// TorchAndJAX are the packages of an environment in which jobs of both run, on
// CPUs.
func TorchAndJAX() []string {
	return []string{"torch==" + nodes.DefaultTorch, "numpy", "jax==0.10.2"}
}

// environment returns the folder of the Python environment, made if it is
// missing, or "" if none is wanted. All clusters with the same one share it;
// none of them writes to it.
func environment(ctx context.Context, opt Options) (string, error) {
	if len(opt.Packages) == 0 {
		return "", nil
	}
	sum := sha256.Sum256([]byte(opt.PythonVersion + "\n" + strings.Join(opt.Packages, "\n")))
	dir := filepath.Join(opt.CacheDir, "slurm", fmt.Sprintf("%x", sum[:8]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockedfile.MutexAt(dir + ".lock").Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	py, err := systemPython(ctx, opt.PythonVersion)
	if err != nil {
		return "", err
	}
	made := dir + ".made"
	if _, err := os.Stat(made); err == nil {
		return dir, nil
	}
	if err := makeEnvironment(ctx, opt, py, dir); err != nil {
		return "", err
	}
	return dir, os.WriteFile(made, nil, 0o644)
}

// makeEnvironment makes an environment that is used at another path than here.
func makeEnvironment(ctx context.Context, opt Options, py, dir string) error {
	uv, err := python.GetUV(ctx, opt.CacheDir, py, opt.Log)
	if err != nil {
		return err
	}
	if err := uv.Run(ctx, "venv", "--quiet", "--clear", "--no-project", "--relocatable", "--seed", "--python", py, dir); err != nil {
		return err
	}
	inside := filepath.Join(dir, "bin", "python")
	if err := uv.Install(ctx, inside, opt.Log, opt.Packages...); err != nil {
		return err
	}
	// Nobody who uses it can keep what Python compiles, so all of it is now.
	// What is for another Python does not compile, and nobody imports it.
	opt.Log("compiling the environment's Python files (once) …")
	_ = python.Run(ctx, nil, inside, "-m", "compileall", "-qq", "-j", "0", filepath.Join(dir, "lib"))
	return ctx.Err()
}

// systemPython finds an interpreter that nodes have, too.
func systemPython(ctx context.Context, version string) (string, error) {
	py, err := python.Find(ctx, version)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(py)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(real, "/usr/") {
		return "", hint.With(errors.New(py+" is not below /usr: nodes of the cluster do not have it"), "install python%s of the system", version)
	}
	return py, nil
}
