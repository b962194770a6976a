package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/deploy/envs"
	"github.com/dsbuild/dsbuild/environment"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/nightly"
	"github.com/dsbuild/dsbuild/wheel"
)

// deployEnvOnce locks an environment with the night's wheel and deploys it to some nodes. The lock lies
// beside the folder of the wheels, so that the next night keeps the other packages.
func deployEnvOnce(ctx context.Context, a *app, opts envOptions, spec environment.Spec, dir string) (nightly.Nodes, error) {
	built, err := wheelOfPython(dir, spec.Python)
	if err != nil {
		return nightly.Nodes{}, err
	}
	spec.Wheels = append(slices.Clone(spec.Wheels), environment.Text{Text: built})
	opts.lock = filepath.Join(filepath.Dir(dir), spec.Name+".lock")
	lock := envLockOptions{envOptions: opts, out: opts.lock}
	if _, _, err := lock.lockSpec(ctx, a, &spec, spec.Kinds); err != nil {
		return nightly.Nodes{}, err
	}
	opt, err := opts.withFiles(ctx, a)
	if err != nil {
		return nightly.Nodes{}, err
	}
	d := envs.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err != nil {
		return nightly.Nodes{}, err
	}
	return describeNight(ctx, opts.fleetFlags, d.Apply(ctx))
}

// wheelOfPython returns the one wheel of a folder that installs on a Python X.Y.
func wheelOfPython(dir, python string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return "", err
	}
	var found []string
	for _, file := range files {
		name, err := wheel.ParseFileName(filepath.Base(file))
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(name.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "py3-") || strings.HasPrefix(tag, "cp"+strings.ReplaceAll(python, ".", "")+"-")
		}) {
			found = append(found, file)
		}
	}
	if len(found) != 1 {
		return "", fault.WithHint(fmt.Errorf("the night has %d wheels for Python %s, and an environment takes one", len(found), python), "name one entry in wheels: for each environment")
	}
	return found[0], nil
}
