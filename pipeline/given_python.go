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

// GivenPython describes the target environment of a wheel: a Python environment with torch.
// dsbuild never changes it.
type GivenPython struct {
	node.Facts

	Details GivenDetails
	Sites   []string // directories of its packages: sys.path without the standard library
	// CUDAHome is the CUDA toolkit in the environment, Nvcc its version as X.Y. Both are empty without one.
	CUDAHome, Nvcc string
}

// GivenDetails are facts that only a build needs.
type GivenDetails struct {
	Torch    string   `json:"torch"`    // complete version, such as 2.6.0a0+ecf3bae40a.nv25.01
	CXX11ABI *bool    `json:"cxx11abi"` // nil if unknown
	Header   bool     `json:"header"`   // whether Python.h exists
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
	try = cmp.Or(try, "use the Python of an environment with a CUDA build of torch: --env DIR/bin/python")
	return fault.New(fault.Usage, try, "environment of %s:%s%s", python, between, strings.Join(reasons, "\n  "))
}

// ReadGivenPython reads the environment of an interpreter: a path, or a command name. It reads
// torch's files without importing torch, and writes no file.
func ReadGivenPython(ctx context.Context, python string) (GivenPython, error) {
	file, err := exec.LookPath(python)
	if err == nil {
		file, err = filepath.Abs(file) // keep the link: its target is the base Python
	}
	if err != nil {
		return GivenPython{}, noInterpreter(python, err)
	}
	facts, err := node.Probe(ctx, isolated{}, node.ProbeOptions{Python: file})
	if err != nil {
		return GivenPython{}, fmt.Errorf("environment of %s: %w", python, node.WithoutNodePrefix(err))
	}
	g := GivenPython{Facts: facts}
	if facts.Executable == "" || facts.Dists == nil {
		why := node.WithoutNodePrefix(errors.New(strings.Join(facts.Missing, "; ")))
		return g, environmentError(python, "", "not a Python interpreter: "+why.Error())
	}
	script := node.Script{Python: facts.Executable, Program: environmentProgram, Request: map[string]any{}}
	err = script.Run(ctx, isolated{}, func(m json.RawMessage) error { return node.Decode(m, &g.Details) })
	if err != nil {
		return g, fmt.Errorf("environment of %s: %w", python, node.WithoutNodePrefix(err))
	}
	return g, g.checkUsable()
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
		return environmentError(python, "", "command not found on PATH")
	case info != nil && info.IsDir():
		try := "--env " + filepath.Join(file, "bin", "python")
		if _, err := os.Stat(filepath.Join(file, "bin", "python")); err != nil {
			try = ""
		}
		return environmentError(python, try, file+" is a directory")
	case errors.Is(err, os.ErrNotExist):
		return environmentError(python, "", "no such file: "+file)
	case errors.Is(err, os.ErrPermission):
		return environmentError(python, "", file+" is not executable")
	}
	return environmentError(python, "", err.Error())
}

// sitePath matches a directory that can be in a list of paths and in a .pth file.
var sitePath = regexp.MustCompile(`^/[^:\n\r=,]*$`)

// checkUsable fills in g from its details, or returns the reasons why no wheel can be built for
// it.
func (g *GivenPython) checkUsable() error {
	var reasons []string
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	switch {
	case g.Details.Torch == "":
		add("torch is not installed")
	case g.TorchCUDA == "":
		add("torch %s is a CPU-only build", g.Details.Torch)
	}
	if g.Details.Machine != wheel.X86 && g.Details.Machine != wheel.Arm {
		add("unsupported CPU architecture %s: dsbuild builds for %s and %s", g.Details.Machine, wheel.X86, wheel.Arm)
	}
	if g.Glibc == "" {
		add("unsupported C library: glibc is required")
	}
	for _, site := range g.Details.Sites {
		if !sitePath.MatchString(site) {
			add("directory name %q contains characters that sys.path files cannot hold", site)
		}
	}
	g.Sites = g.Details.Sites
	if g.Details.Nvcc != "" {
		g.Nvcc, g.CUDAHome = g.Details.Nvcc, g.Prefix
	}
	if len(reasons) > 0 {
		return environmentError(g.Executable, "", reasons...)
	}
	return nil
}

// Interpreter returns the environment's Python.
func (g GivenPython) Interpreter() Interpreter {
	parts := g.Details.Parts
	if g.Details.Header {
		parts = append(slices.Clone(parts), "Python.h")
	}
	return Interpreter{Version: g.Facts.Python, Path: g.Executable, Parts: parts}
}

// Identity returns a text that differs for environments whose wheels would differ: Python, torch,
// its ABI, and all other installed distributions.
func (g GivenPython) Identity() string {
	text, err := json.Marshal(struct {
		Executable string
		Python     string
		Details    GivenDetails
		CUDA       string
		Dists      map[string]string
	}{g.Executable, g.Facts.Python, g.Details, g.TorchCUDA, g.Dists})
	if err != nil {
		return g.Executable // only strings: cannot fail
	}
	return string(text)
}

// Asked narrows a request to this environment. Its error lists each flag that contradicts the
// environment.
func (g GivenPython) Asked(request wheel.Request) (wheel.Request, error) {
	var reasons []string
	for _, f := range []struct {
		flag  string
		value *string
		has   string
	}{
		{"--python", &request.Python, wheel.Minor(g.Facts.Python)},
		{"--torch", &request.Torch, g.Torch},
		{"--cuda", &request.CUDA, g.TorchCUDA},
	} {
		if *f.value != "" && *f.value != f.has && !strings.HasPrefix(f.has, *f.value+".") {
			reasons = append(reasons, fmt.Sprintf("%s %s was requested, but the environment has %s", f.flag, *f.value, f.has))
		}
		*f.value = f.has
	}
	if len(reasons) > 0 {
		const try = "omit --python, --torch and --cuda: --env determines them"
		return request, environmentError(g.Executable, try, reasons...)
	}
	return request, nil
}

// Tables returns the tables, extended by its torch if necessary.
func (g GivenPython) Tables(t *compat.Tables) *compat.Tables {
	return t.WithTorch(g.Torch, g.TorchCUDA, wheel.Minor(g.Facts.Python))
}

// ofIndex matches a version of torch from an index, with or without a local part for its CUDA.
var ofIndex = regexp.MustCompile(`^\d+\.\d+\.\d+(\+cu\d+)?$`)

// Released returns nil if the same torch can be installed in a container. Otherwise the error
// suggests a builder that does not install it.
func (g GivenPython) Released(t *compat.Tables) error {
	if g.Details.Machine == wheel.Arm {
		return environmentError(g.Executable, "use --builder host",
			"CPU architecture "+g.Details.Machine+" is not supported in dsbuild's containers, only "+wheel.X86)
	}
	if ofIndex.MatchString(g.Details.Torch) && t.HasTorch(g.Torch, g.TorchCUDA, wheel.Minor(g.Facts.Python)) {
		return nil
	}
	return environmentError(g.Executable, "use --builder host on a machine that has the environment",
		fmt.Sprintf("the package index has no torch %s for CUDA %s and Python %s, so dsbuild cannot install it in a container",
			g.Details.Torch, g.TorchCUDA, wheel.Minor(g.Facts.Python)))
}

// isolated runs a program of the environment without the user's settings, in a directory whose
// files Python cannot import.
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
