package hostbuilder

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// lookTime bounds the inspection. Even a slow shared file system needs less.
const lookTime = 2 * time.Minute

// Inspect returns the tools of this machine that a build can use.
func Inspect(ctx context.Context, environ []string) (pipeline.BuildHost, error) {
	if runtime.GOOS != "linux" {
		return pipeline.BuildHost{}, missing(part{
			"Linux, because dsbuild's wheels are for Linux (this is " + runtime.GOOS + ")",
			"--builder dagger builds in containers: start Docker or podman",
		})
	}
	script, err := pipeline.InspectText()
	if err != nil {
		return pipeline.BuildHost{}, err
	}
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime,
		fmt.Errorf("inspecting this machine timed out after %s", lookTime))
	defer cancel()
	// The environment of InspectScript. It also has the variables that name the place of CUDA and
	// of uv's Pythons.
	v, user := cleanEnvironment(environ), parseEnviron(environ)
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"} {
		if value, ok := user[name]; ok {
			v[name] = value
		}
	}
	err = process{
		argv: []string{"sh", "-c", script}, dir: "/", env: v.environ(),
		stdout: &out, stderr: &errs,
	}.run(ctx)
	if ctx.Err() != nil {
		return pipeline.BuildHost{}, context.Cause(ctx)
	}
	if err != nil {
		return pipeline.BuildHost{}, fmt.Errorf("inspecting this machine: %w: %s",
			err, ui.Clean(strings.TrimSpace(errs.String())))
	}
	g, err := pipeline.ParseBuildHost(out.String())
	g.Host = true
	return g, err
}

// usablePythons lists the Pythons that a build can use. A Python without its header cannot
// compile extensions.
func usablePythons(g pipeline.BuildHost) []string {
	var pythons []string
	for _, i := range g.Interpreters {
		if i.Has("Python.h") {
			pythons = append(pythons, i.Minor())
		}
	}
	return pythons
}

// part is a requirement that this machine lacks.
type part struct{ what, try string }

// missing returns an error with everything that this machine lacks for a build, and all remedies. It returns nil if
// nothing is missing. No toolchain exists on such a machine.
func missing(parts ...part) error {
	if len(parts) == 0 {
		return nil
	}
	var whats, tries []string
	for _, p := range parts {
		whats = append(whats, p.what)
		if !slices.Contains(tries, p.try) {
			tries = append(tries, p.try)
		}
	}
	between := " "
	if len(whats) > 1 {
		between = "\n  "
	}
	return fault.New(fault.Usage, strings.Join(tries, "; "),
		"missing build requirements on this machine:%s%s", between, strings.Join(whats, "\n  "))
}

func missingCompiler(g pipeline.BuildHost, add func(what, try string)) {
	if slices.ContainsFunc(g.Compilers, pipeline.Compiler.Complete) {
		return
	}
	const try = "module load gcc, or install gcc, g++ and libc6-dev (glibc-devel)"
	if len(g.Compilers) == 0 {
		add("gcc and g++ on PATH", try)
	}
	for _, c := range g.Compilers {
		switch {
		case c.CXX == "":
			add(fmt.Sprintf("g++ matching %s (%s)", c.CC, c.Version), try)
		case !c.Headers:
			add(fmt.Sprintf("C++ standard library headers for %s (%s)", c.CXX, c.Version), try)
		}
	}
}

func (b *Builder) missingPython(add func(what, try string)) {
	g := b.host
	if len(usablePythons(g)) > 0 {
		if _, found := b.uvInstaller(); !found && !slices.Contains(g.Tools, "uv") {
			add("uv, or a Python that can install it (one with venv and ensurepip, or with pip)",
				"install uv, python3-venv or python3-pip")
		}
		return
	}
	if len(g.Interpreters) == 0 {
		add("Python (python3) on PATH", "module load python, install python3 python3-venv python3-dev, or --env PYTHON")
	}
	for _, i := range g.Interpreters {
		add(fmt.Sprintf("Python.h of Python %s (%s)", i.Minor(), i.Path),
			fmt.Sprintf("install python%s-dev (python3-devel), module load python, "+
				"or --env PYTHON of an environment that has it (conda)", i.Minor()))
	}
}

// uvInstaller returns a Python that can install uv, of any version.
func (b *Builder) uvInstaller() (pipeline.Interpreter, bool) {
	i := slices.IndexFunc(b.installers, func(i pipeline.Interpreter) bool {
		return i.Has("venv") && (i.Has("ensurepip") || i.Has("pip"))
	})
	if i < 0 {
		return pipeline.Interpreter{}, false
	}
	return b.installers[i], true
}

// CheckTools returns an error if this machine lacks a tool that only some ops need. Open does it too; a dry run
// opens nothing.
func (b *Builder) CheckTools(p *pipeline.Plan) error {
	if len(p.Toolchain().Patches()) > 0 && !slices.Contains(b.host.Tools, "patch") {
		return missing(part{"patch, to fix the sources of some ops", "install patch, or omit the ops that need it"})
	}
	return nil
}
