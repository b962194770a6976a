package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// runShipEnv builds the DeepSpeed of an environment for the nodes, locks the environment with it
// and deploys it. A step that finds its result there already takes it.
func runShipEnv(ctx context.Context, a *app, f shipFlags, network pipeline.Network, request wheel.Request) error {
	if f.deploy.deps != deploy.DepsRefuse {
		return usagef("--deps cannot be used with --env: an environment has all its packages")
	}
	spec, err := environment.Read(f.env, a.stdin)
	switch {
	case err != nil:
		return err
	case spec.Build == nil:
		err := usagef("%s does not describe a DeepSpeed to build", ui.Clean(f.env))
		return fault.WithHint(err,
			"set deepspeed: {version: 0.19.8, ops: [cpu_adam]}, or use dsbuild env lock and dsbuild env deploy")
	case f.env == "-" && f.lock == "":
		return usagef("--env - requires --lock")
	}
	f.lock = cmp.Or(f.lock, lockName(f.env))
	f.request.source = cmp.Or(f.request.source, spec.Build.Version)
	if err := addBuild(&request, *spec.Build); err != nil {
		return err
	}
	var input []byte // read by the build and by the deploy
	if f.deploy.nodes.inventory == "-" || f.deploy.change.policy == "-" {
		if input, err = io.ReadAll(a.stdin); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		a.stdin = bytes.NewReader(input)
	}
	kinds, done, err := buildForEnv(ctx, a, f, network, request, spec)
	if err != nil || done {
		return err
	}
	if input != nil {
		a.stdin = bytes.NewReader(input)
	}
	files := filesFlags{network: f.network}
	l, changed, err := envLockFlags{files: files, out: f.lock}.lock(ctx, a, spec, kinds)
	if err != nil {
		return err
	}
	if changed {
		a.reporter.Note("%s: locked environment %s", ui.Clean(f.lock), l.Name)
	}
	return runEnvDeploy(ctx, a, envDeployFlags{
		nodes: f.deploy.nodes, change: f.deploy.change, send: f.deploy.send, files: files,
		lock: f.lock, verify: f.deploy.verify, force: f.deploy.force,
	})
}

// addBuild adds an environment file's settings for DeepSpeed; flags override them.
func addBuild(r *wheel.Request, b environment.Build) error {
	var archs, ops, cpu []string
	if len(r.Archs)+len(r.GPUs) == 0 {
		archs = b.Archs
	}
	if len(r.Ops) == 0 {
		ops = b.Ops
	}
	if r.CPU == "" && r.Machine == "" && b.CPU != "" {
		cpu = []string{b.CPU}
	}
	return cmp.Or(setAll(r, "arch", archs), setAll(r, "ops", ops), setAll(r, "cpu", cpu))
}

// buildForEnv builds the wheels that the nodes need with the Python and the torch of the environment, one for each
// machine type, and adds them to spec. It returns the kinds of the nodes. done is true after a dry run.
func buildForEnv(
	ctx context.Context, a *app, f shipFlags, network pipeline.Network, request wheel.Request, spec *environment.Spec,
) (kinds []environment.Platform, done bool, err error) {
	deployment, err := f.deploy.options(ctx, a)
	if err != nil {
		return nil, false, err
	}
	for i := range deployment.Hosts {
		deployment.Hosts[i].Python = spec.Program()
	}
	tools, opt, err := f.open(ctx, a, network, request)
	if err != nil {
		return nil, false, err
	}
	defer tools.Close()
	opt.BuildOnly = true
	if opt.Assume, err = ship.WithEnvironment(spec.Python, spec.Torch); err != nil {
		return nil, false, err
	}
	d := deploy.New(deployment)
	defer d.Close()
	s := ship.New(d, opt)
	plan, err := s.Survey(ctx)
	if err != nil {
		return nil, false, err
	}
	plan.EditHints(a.hints.expand)
	if kinds = spec.Platforms; len(kinds) == 0 {
		kinds = environment.PlatformsOf(s.Served())
	}
	if err := spec.CheckWheels(kinds); err != nil {
		return nil, false, err
	}
	if f.deploy.change.dryRun {
		return nil, true, errors.Join(plan.Err(), printWheelForPlan(a, plan, f.deploy.nodes.json, a.show.Verbose))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	if _, err := s.WheelsByMachine(); err != nil { // before a build, too
		return nil, false, err
	}
	if s.Build(ctx); ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	paths, err := s.WheelsByMachine()
	if err != nil {
		return nil, false, err
	}
	for _, path := range paths {
		spec.Wheels = append(spec.Wheels, environment.Text{Text: path, At: spec.Build.At})
	}
	return kinds, false, nil
}
