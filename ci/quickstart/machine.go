package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/hostbuilder"
)

// machine describes how this machine builds, and the Python of its nodes.
type machine struct {
	dir    string // the folder of bin and dist: the checkout, or a folder of the cache if the checkout is read-only
	engine bool   // a container engine builds the wheel, else the machine itself
	python string // X.Y, for the wheel and the nodes

	container containerEngine // if engine is set
}

// programPath returns the path of the program dsbuild.
func (m machine) programPath() string { return filepath.Join(m.dir, "bin", "dsbuild") }

// cacheDir returns the folder of the nodes and of quickstart's other files.
func cacheDir() string { return filepath.Join(xdg.CacheHome, "dsbuild", "quickstart") }

// chooseDir returns the folder for bin and dist: the checkout, or the cache if this user may not
// write to the checkout. The path is absolute, because quickstart starts a program there.
func chooseDir(checkout, cache string) (string, error) {
	dir, err := filepath.Abs(checkout)
	if err != nil {
		return "", err
	}
	probe, err := os.MkdirTemp(dir, ".quickstart-")
	if err == nil {
		return dir, os.Remove(probe)
	}
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return "", err
	}
	printStep("this folder is read-only: bin and dist are in %s", cache)
	return cache, nil
}

// nodePythons lists the Pythons that nodes can have, the Python of the default base first.
func nodePythons() []string { return []string{"3.11", "3.12", "3.13", "3.10"} }

// readMachine decides how the wheel is built. It downloads nothing, and its error lists all
// missing programs.
func readMachine(ctx context.Context) (machine, error) {
	dir, err := chooseDir(".", cacheDir())
	if err != nil {
		return machine{}, err
	}
	found, err := prepareEngine(ctx, filepath.Join(dir, "bin"))
	var none *noneError
	if err != nil && !errors.As(err, &none) {
		return machine{}, err
	}
	m := machine{dir: dir, engine: none == nil, container: found}
	if m.python, err = checkPrograms(ctx, os.Environ(), m.engine); err != nil {
		return m, err
	}
	if m.engine {
		printStep("container engine: %s", found.name)
	} else {
		printStep("building on this machine: %s. There is no clean container: this machine's compiler makes the wheel", none.Why)
	}
	return m, nil
}

// checkPrograms returns the Python of the wheel and the nodes, or an error
// that lists everything that this machine lacks.
func checkPrograms(ctx context.Context, environ []string, engine bool) (python string, err error) {
	var missing []error
	if !engine {
		_, err := hostbuilder.New(ctx, hostbuilder.Options{Dir: hostbuilder.DefaultDir(), Environ: environ})
		if err != nil && fault.ExitCode(err) != fault.Usage {
			return "", err
		}
		if err != nil {
			missing = append(missing, err)
		}
	}
	environment, err := hostbuilder.Inspect(ctx, environ)
	if err != nil {
		return "", err
	}
	python = choosePython(environment, engine)
	if python == "" && (engine || len(missing) == 0) {
		missing = append(missing, fault.New(fault.Usage, "install python3, python3-venv and python3-dev", "this machine lacks Python 3.10 to 3.13 with venv"))
	}
	if sshd := nodes.MissingSSHD(); sshd != "" {
		missing = append(missing, fault.New(fault.Usage, "install "+sshd, "this machine lacks sshd, for the three nodes"))
	}
	return python, errors.Join(missing...)
}

// choosePython returns the Python of the wheel and the nodes, or "" if none is suitable. A build on
// this machine also needs its headers.
func choosePython(g pipeline.BuildHost, engine bool) string {
	uv := slices.Contains(g.Tools, "uv")
	for _, version := range nodePythons() {
		if slices.ContainsFunc(g.Interpreters, func(i pipeline.Interpreter) bool {
			environments := uv || i.Has("venv") && (i.Has("ensurepip") || i.Has("pip"))
			return i.Minor() == version && environments && (engine || i.Has("Python.h"))
		}) {
			return version
		}
	}
	return ""
}
