package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/dsbuild/dsbuild/ci/enginectl"
	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/hostbuilder"
)

// machine is how this machine builds and what its nodes run.
type machine struct {
	engine bool   // a container engine builds the wheel, else the machine itself
	python string // X.Y, of the wheel and of the nodes
}

// pythons are those that the nodes can have, the one of the default base first.
func pythons() []string { return []string{"3.11", "3.12", "3.13", "3.10"} }

// readMachine decides where the wheel is built. It downloads nothing, and
// returns an error that names all programs that are missing.
func readMachine(ctx context.Context) (machine, error) {
	how, err := enginectl.Prepare(ctx)
	var none *enginectl.NoneError
	if err != nil && !errors.As(err, &none) {
		return machine{}, err
	}
	m := machine{engine: none == nil}
	if m.python, err = checkPrograms(ctx, os.Environ(), m.engine); err != nil {
		return m, err
	}
	if m.engine {
		say("container engine: %s", how)
	} else {
		say("building on this machine: %s. Lost: the clean container; this machine's compiler makes the wheel", none.Why)
	}
	return m, nil
}

// checkPrograms returns the Python of the wheel and the nodes, or a
// *hostbuilder.MissingError that names all that this machine lacks.
func checkPrograms(ctx context.Context, environ []string, engine bool) (python string, err error) {
	var missing hostbuilder.MissingError
	if !engine {
		_, err := hostbuilder.New(ctx, hostbuilder.Options{Dir: hostbuilder.DefaultDir(), Environ: environ})
		var lacks *hostbuilder.MissingError
		if errors.As(err, &lacks) {
			missing = *lacks
		} else if err != nil {
			return "", err
		}
	}
	ground, err := hostbuilder.Look(ctx, environ)
	if err != nil {
		return "", err
	}
	python = choosePython(ground, engine)
	if python == "" && (engine || len(missing.Parts) == 0) {
		missing.Parts = append(missing.Parts, hostbuilder.Part{
			What: "Python 3.10 to 3.13 with venv", Try: "install python3, python3-venv and python3-dev",
		})
	}
	if sshd := nodes.MissingSSHD(); sshd != "" {
		missing.Parts = append(missing.Parts, hostbuilder.Part{What: "sshd, for the three nodes", Try: "install " + sshd})
	}
	if len(missing.Parts) > 0 {
		return "", &missing
	}
	return python, nil
}

// choosePython returns the Python of the wheel and the nodes, "" where none fits.
// A build on this machine needs the header too.
func choosePython(g pipeline.Ground, engine bool) string {
	uv := slices.Contains(g.Tools, "uv")
	for _, version := range pythons() {
		if slices.ContainsFunc(g.Interpreters, func(i pipeline.Interpreter) bool {
			environments := uv || i.Has("venv") && (i.Has("ensurepip") || i.Has("pip"))
			return i.Minor() == version && environments && (engine || i.Has("Python.h"))
		}) {
			return version
		}
	}
	return ""
}
