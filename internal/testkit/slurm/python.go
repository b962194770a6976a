//go:build linux

package slurm

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// TorchAndJAX are the packages of an environment in which jobs of torch and of JAX run on CPUs.
func TorchAndJAX() []string {
	return []string{"torch==" + nodes.DefaultTorch, "numpy", "jax==0.10.2"}
}

// makeEnvironment returns the folder of the Python environment that all clusters
// with these packages share, or "" if none is wanted.
func makeEnvironment(ctx context.Context, opt Options) (string, error) {
	if len(opt.Packages) == 0 {
		return "", nil
	}
	py, err := findSystemPython(ctx)
	if err != nil {
		return "", err
	}
	return python.Environment(ctx, python.EnvironmentOptions{
		Interpreter: py, Packages: opt.Packages, Log: opt.Log, Portable: true,
	})
}

// pythonVersion is the version of the environment's Python.
const pythonVersion = "3.11"

// findSystemPython finds an interpreter that the nodes have too.
func findSystemPython(ctx context.Context) (string, error) {
	py, err := python.Find(ctx, pythonVersion)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(py)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(real, "/usr/") {
		return "", fault.WithHint(errors.New(py+" is not below /usr: nodes of the cluster do not have it"), "install python%s of the system", pythonVersion)
	}
	return py, nil
}
