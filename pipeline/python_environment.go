package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

var environmentProgram = node.NewProgram("build_environment")

// PythonEnvironment describes the target environment of a wheel: a Python environment with torch.
// dsbuild never changes it.
type PythonEnvironment struct {
	node.Facts

	Details EnvironmentDetails
	Sites   []string // the directories of its packages: its path without the standard library
	// CUDAHome is the CUDA toolkit that is part of it, Nvcc its version as
	// X.Y; "" where it has none.
	CUDAHome, Nvcc string
}

// EnvironmentDetails are the facts that concern only a build.
type EnvironmentDetails struct {
	Torch    string   `json:"torch"`    // whole, as in 2.6.0a0+ecf3bae40a.nv25.01
	CXX11ABI *bool    `json:"cxx11abi"` // nil: it does not say
	Header   bool     `json:"header"`   // whether Python.h is there
	Parts    []string `json:"parts"`    // of venv, ensurepip, pip
	Sites    []string `json:"sites"`
	Nvcc     string   `json:"nvcc"` // version of a CUDA toolkit in its prefix, X.Y
	Machine  string   `json:"machine"`
}

// environmentError returns the reasons why no wheel can be built for an environment; try may be "".
func environmentError(python, try string, reasons ...string) error {
	between := " "
	if len(reasons) > 1 {
		between = "\n  "
	}
	try = cmp.Or(try, "--env needs the python of an environment that has torch with CUDA: .../bin/python")
	return fault.New(fault.Usage, try, "environment of %s:%s%s", python, between, strings.Join(reasons, "\n  "))
}

// ReadEnvironment reads the environment of an interpreter: a path, or a command name. It reads
// torch's files without importing torch, and writes no file.
func ReadEnvironment(ctx context.Context, python string) (PythonEnvironment, error) {
	file, err := exec.LookPath(python)
	if err == nil {
		file, err = filepath.Abs(file) // keep the link: its target is the base Python
	}
	if err != nil {
		return PythonEnvironment{}, noInterpreter(python, err)
	}
	facts, err := node.Probe(ctx, isolated{}, node.ProbeOptions{Python: file})
	if err != nil {
		return PythonEnvironment{}, fmt.Errorf("environment of %s: %w", python, node.WithoutNodePrefix(err))
	}
	e := PythonEnvironment{Facts: facts}
	if facts.Executable == "" || facts.Dists == nil {
		why := node.WithoutNodePrefix(errors.New(strings.Join(facts.Missing, "; ")))
		return e, environmentError(python, "", "it does not answer like a Python: "+why.Error())
	}
	script := node.Script{Python: facts.Executable, Program: environmentProgram, Request: map[string]any{}}
	err = script.Run(ctx, isolated{}, func(m json.RawMessage) error { return node.Decode(m, &e.Details) })
	if err != nil {
		return e, fmt.Errorf("environment of %s: %w", python, node.WithoutNodePrefix(err))
	}
	return e, e.checkUsable()
}

// noInterpreter returns the reason why no interpreter can be run under the name python.
func noInterpreter(python string, err error) error {
	file, wrong := filepath.Abs(python)
	if wrong != nil {
		file = python
	}
	info, _ := os.Stat(file)
	switch {
	case !strings.Contains(python, "/") && errors.Is(err, exec.ErrNotFound):
		return environmentError(python, "", "no command of this name is on PATH")
	case info != nil && info.IsDir():
		try := "--env " + filepath.Join(file, "bin", "python")
		if _, err := os.Stat(filepath.Join(file, "bin", "python")); err != nil {
			try = ""
		}
		return environmentError(python, try, file+" is a directory")
	case errors.Is(err, os.ErrNotExist):
		return environmentError(python, "", "there is no file "+file)
	case errors.Is(err, os.ErrPermission):
		return environmentError(python, "", file+" is not executable")
	}
	return environmentError(python, "", err.Error())
}

// sitePath matches a directory that can stand in a list of paths, and in a .pth file.
var sitePath = regexp.MustCompile(`^/[^:\n\r=,]*$`)

// checkUsable fills in e from its details, or returns the reasons why no wheel can be built for
// it.
func (e *PythonEnvironment) checkUsable() error {
	var reasons []string
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	switch {
	case e.Details.Torch == "":
		add("it has no torch")
	case e.TorchCUDA == "":
		add("its torch %s is built only for the CPU", e.Details.Torch)
	}
	if e.Details.Machine != wheel.X86 && e.Details.Machine != wheel.Arm {
		add("its machine is %s: dsbuild builds for %s and %s", e.Details.Machine, wheel.X86, wheel.Arm)
	}
	if e.Glibc == "" {
		add("its C library is not glibc")
	}
	for _, site := range e.Details.Sites {
		if !sitePath.MatchString(site) {
			add("the name of its directory %q cannot be part of a list of paths", site)
		}
	}
	e.Sites = e.Details.Sites
	if e.Details.Nvcc != "" {
		e.Nvcc, e.CUDAHome = e.Details.Nvcc, e.Prefix
	}
	if len(reasons) > 0 {
		return environmentError(e.Executable, "", reasons...)
	}
	return nil
}

// Interpreter returns the environment's Python.
func (e PythonEnvironment) Interpreter() Interpreter {
	parts := e.Details.Parts
	if e.Details.Header {
		parts = append(slices.Clone(parts), "Python.h")
	}
	return Interpreter{Version: e.Facts.Python, Path: e.Executable, Parts: parts}
}

// Identity returns a text that differs between two environments if their wheels would: it holds
// Python, torch and its ABI, and all other installed distributions.
func (e PythonEnvironment) Identity() string {
	text, err := json.Marshal(struct {
		Executable string
		Python     string
		Details    EnvironmentDetails
		CUDA       string
		Dists      map[string]string
	}{e.Executable, e.Facts.Python, e.Details, e.TorchCUDA, e.Dists})
	if err != nil {
		return e.Executable // strings alone: cannot happen
	}
	return string(text)
}

// Asked narrows a request to this environment, or returns an error that names each flag that
// contradicts it.
func (e PythonEnvironment) Asked(s wheel.Request) (wheel.Request, error) {
	var reasons []string
	for _, f := range []struct {
		flag  string
		value *string
		has   string
	}{
		{"--python", &s.Python, wheel.Minor(e.Facts.Python)},
		{"--torch", &s.Torch, e.Torch},
		{"--cuda", &s.CUDA, e.TorchCUDA},
	} {
		if *f.value != "" && *f.value != f.has && !strings.HasPrefix(f.has, *f.value+".") {
			reasons = append(reasons, fmt.Sprintf("the request is for %s %s, but it has %s", f.flag, *f.value, f.has))
		}
		*f.value = f.has
	}
	if len(reasons) > 0 {
		return s, environmentError(e.Executable, "leave out --python, --torch and --cuda: --env decides them", reasons...)
	}
	return s, nil
}

// Tables returns the tables with a row for its torch, which they may lack.
func (e PythonEnvironment) Tables(t *compat.Tables) *compat.Tables {
	return t.WithTorch(e.Torch, e.TorchCUDA, wheel.Minor(e.Facts.Python))
}

// ofIndex matches a version of torch from an index, with or without a local part for its CUDA.
var ofIndex = regexp.MustCompile(`^\d+\.\d+\.\d+(\+cu\d+)?$`)

// Released returns nil if the same torch can be installed elsewhere, because a build in a
// container has to install it. Otherwise the error names the builder that need not.
func (e PythonEnvironment) Released(t *compat.Tables) error {
	if e.Details.Machine == wheel.Arm {
		return environmentError(e.Executable, "use --builder host",
			"its machine is "+e.Details.Machine+", and dsbuild's containers are of "+wheel.X86)
	}
	if ofIndex.MatchString(e.Details.Torch) && t.HasTorch(e.Torch, e.TorchCUDA, wheel.Minor(e.Facts.Python)) {
		return nil
	}
	return environmentError(e.Executable, "use --builder host on a machine that has the environment",
		fmt.Sprintf("the package index has no torch %s for CUDA %s and Python %s, so dsbuild cannot install it in a container",
			e.Details.Torch, e.TorchCUDA, wheel.Minor(e.Facts.Python)))
}

// isolated runs a program of the environment without the user's settings, and in a directory
// whose files Python cannot mistake for modules.
type isolated struct{}

// Run implements remote.Runner.
func (isolated) Run(ctx context.Context, cmd remote.Command) error {
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Dir = "/"
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PYTHON") {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, "PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1")
	for k, v := range cmd.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}
