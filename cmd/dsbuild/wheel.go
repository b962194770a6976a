package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelOptions are the flags of dsbuild wheel.
type wheelOptions struct {
	wheelRequest
	wayOptions // to the nodes of inventory

	matrix      string // file of wheels, instead of one
	inventory   string // --for: nodes to build for, instead of one wheel
	limit       string // of these nodes
	builder     string
	engines     []string
	parallel    int // builds at once on each
	env         string
	out         string
	with        []string
	bundle      bool
	jobs        int
	noCache     bool
	siteOptions pipeline.SiteOptions
	site        pipeline.Site
	dryRun      bool
	json        bool
}

func newWheelCommand(a *app) *cobra.Command {
	var o wheelOptions
	cmd := &cobra.Command{
		Use:        "wheel --gpu NAME | --arch X.Y",
		SuggestFor: []string{"build", "make", "compile", "wheels"},
		Short:      "Build a DeepSpeed wheel with its operators compiled",
		Long: `wheel builds DeepSpeed with the given operators compiled for the given GPUs, in
a clean container on a Dagger engine or on this machine, opens the result again
and compares it with what was asked, installs it in a fresh environment and loads
every operator. The wheel, its manifest and SHA256SUMS are written to -o.

GPUs are given by name (--gpu A100, --gpu "RTX 4090") or by compute capability,
NVIDIA's number for what a GPU runs: 8.0 is A100, 8.6 is RTX 3090 and A40, 8.9 is
L40S and RTX 4090, 9.0 is H100. dsbuild gpus lists them, dsbuild ops the operators,
dsbuild toolchains what they can be compiled with. What is not given is chosen so
that all fits together: --gpu V100 takes the newest torch and CUDA that still know
a V100. With --for the nodes of an inventory are asked instead, and the fewest wheels
built that serve them all; dsbuild ship also puts them there.`,
		Example: `  dsbuild wheel --gpu A100
  dsbuild wheel --arch "8.0;9.0+PTX" --ops cpu_adam,utils,fused_adam,fused_lamb
  dsbuild wheel --gpu V100 --dry-run
  dsbuild wheel --for inventory.yaml
  dsbuild wheel --gpu H100 --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags(), cmd.CommandPath()); err != nil {
				return err
			}
			site, err := newSite(o.siteOptions)
			if err != nil {
				return err
			}
			o.site = site
			if o.matrix != "" {
				return site.Error(runMatrix(cmd.Context(), a, o, cmd.CommandPath()))
			}
			if o.inventory != "" {
				if !cmd.Flags().Changed("cpu") {
					o.cpu = "" // as the nodes have it
				}
				return site.Error(runWheelFor(cmd.Context(), a, o, cmd.CommandPath()))
			}
			return site.Error(runWheel(cmd.Context(), a, o, cmd.CommandPath()))
		},
	}
	f := cmd.Flags()
	o.wheelRequest.flags(f)
	o.buildFlags(f)
	f.StringVar(&o.inventory, "for", "", "build the fewest wheels that serve all nodes of this `INVENTORY`, which are asked what they are")
	addLimitFlag(cmd, &o.limit)
	addWayFlags(cmd, &o.wayOptions)
	f.StringVar(&o.env, "env", "", "build for the environment of this python: its Python, torch and CUDA are read, nothing there is changed")
	f.StringVar(&o.matrix, "matrix", "", "file that asks for several wheels (docs/farm.md)")
	f.StringArrayVar(&o.with, "with", nil, "companion to build in the same environment, repeatable: NAME==VERSION, NAME@git+URL@REF or NAME@PATH")
	f.BoolVar(&o.bundle, "bundle", false, "also gather what DeepSpeed and the companions require, beside torch, into a wheelhouse")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and stop; it is that for an engine, but with --builder host")
	f.BoolVar(&o.json, "json", false, "print one JSON document on stdout")
	return cmd
}

// buildFlags are those that say how wheels are built, whatever they are.
func (o *wheelOptions) buildFlags(f *pflag.FlagSet) {
	o.placeFlags(f)
	f.BoolVar(&o.noCache, "no-cache", false, "compile anew: neither the store nor cached objects are read")
	f.StringVarP(&o.out, "output", "o", "dist", "directory for wheels")
}

// placeFlags are those of them that say where wheels are built, and by what means.
func (o *wheelOptions) placeFlags(f *pflag.FlagSet) {
	f.StringVar(&o.builder, "builder", builderAuto, "auto, dagger (a container engine) or host (this machine, no root needed)")
	f.StringArrayVar(&o.engines, "engine", nil, "address of a Dagger engine: unix:///path/engine.sock, tcp://host:port, image+docker://REF; repeatable where several wheels are built")
	f.IntVar(&o.parallel, "parallel", 0, "builds at once on each engine, of several wheels (default: as cores and memory allow)")
	siteFlags(f, &o.siteOptions)
	f.IntVar(&o.jobs, "jobs", 0, "compile jobs at once (default: as many as cores)")
}

// check refuses what does not go together.
func (o wheelOptions) check(f *pflag.FlagSet, command string) error {
	if err := o.checkBuild(f, command); err != nil {
		return err
	}
	if err := o.wayOptions.check(command); err != nil {
		return err
	}
	several := o.matrix != "" || o.inventory != ""
	switch {
	case o.matrix != "" && o.inventory != "":
		return usageErrorf(command, "--for beside --matrix: either the nodes say which wheels there must be, or the file does")
	case o.limit != "" && o.inventory == "":
		return usageErrorf(command, "--limit without --for: there are no nodes to choose among")
	case o.via != viaSSH && o.inventory == "":
		return usageErrorf(command, "--via without --for: there are no nodes to reach")
	case o.ssh != sshAuto && o.inventory == "":
		return usageErrorf(command, "--ssh without --for: there are no nodes to reach")
	case several && (len(o.with) > 0 || o.bundle):
		return usageErrorf(command, "--with and --bundle are for one wheel: a wheelhouse is for one Python and one torch")
	case o.inventory != "" && o.env != "":
		return usageErrorf(command, "--env beside --for: the environments are those of the nodes")
	case o.matrix != "":
		return refuseEntryFlags(f, command)
	case !several && (len(o.engines) > 1 || o.parallel > 0):
		return usageErrorf(command, "several engines, or builds at once, are for several wheels: --matrix or --for")
	}
	return nil
}

// checkBuild finds what the flags of builds cannot say by their types.
func (o wheelOptions) checkBuild(f *pflag.FlagSet, command string) error {
	if !slices.Contains([]string{builderAuto, builderDagger, builderHost}, o.builder) {
		return oneOf(command, "builder", o.builder, "auto", "dagger", "host")
	}
	if o.jobs < 0 {
		return usageErrorf(command, "--jobs %d: a number of jobs is at least 1", o.jobs)
	}
	if f.Changed("parallel") && o.parallel < 1 {
		return usageErrorf(command, "--parallel %d: a number of builds is at least 1", o.parallel)
	}
	return nil
}

// firstEngine is the engine that is asked while wheels are planned; "" where it
// is to be found.
func (o wheelOptions) firstEngine() string {
	if len(o.engines) == 0 {
		return ""
	}
	return o.engines[0]
}

// planner turns requests into plans for what these options say of all of them.
func (o wheelOptions) planner(ctx context.Context, a *app, command string, at *place) (*planner, error) {
	p, err := newPlanner(a, command, at, pipeline.Options{Jobs: o.jobs, NoCache: o.noCache}, o.dryRun)
	if err != nil {
		return nil, err
	}
	p.printed = o.dryRun && !o.json
	if o.env == "" {
		return p, nil
	}
	env, err := pipeline.ReadEnvironment(ctx, o.env)
	if err == nil {
		err = p.forEnvironment(env)
	}
	if err != nil {
		p.close()
	}
	return p, err
}

// runWheel plans what was asked, and runs the plan or prints it.
func runWheel(ctx context.Context, a *app, o wheelOptions, command string) error {
	at := &place{app: a, way: o.builder, engine: o.firstEngine(), site: o.site}
	defer at.close()
	planner, err := o.planner(ctx, a, command, at)
	if err != nil {
		return err
	}
	defer planner.close()
	plan, err := planner.plan(ctx, o.wheelRequest)
	if err != nil {
		return err
	}
	house, err := planner.bundle(ctx, plan, o.with, o.bundle)
	if err != nil {
		return err
	}
	if o.dryRun {
		return printWheelPlan(a, o.json, plan, house)
	}
	runner := pipeline.Runner{
		Store: pipeline.DefaultStore(), Dir: o.out, Logs: pipeline.DefaultLogs(), Version: a.version,
		Builder: at.open, Report: a.reporter, Site: o.site,
	}
	artifact, err := runner.Run(ctx, plan)
	if err != nil {
		return err
	}
	var bundle *wheel.Bundle
	if house != nil {
		made, err := runner.Bundle(ctx, house, artifact)
		if err != nil {
			return err
		}
		bundle = &made
	}
	if o.json {
		return ui.JSON(a.stdout, wheelsDocument{[]wheel.Artifact{artifact}, newWheelhouseDocument(o.out, bundle)})
	}
	return errors.Join(printWheels(a, []wheel.Artifact{artifact}), printWheelhouse(a, o.out, bundle))
}

// printWheelPlan prints what a run would do, for people or as one JSON document.
func printWheelPlan(a *app, asJSON bool, p *pipeline.Plan, house *pipeline.BundlePlan) error {
	if !asJSON {
		err := p.Print(a.stdout)
		if err == nil && house != nil {
			err = house.PrintSteps(a.stdout)
		}
		return err
	}
	doc := struct {
		Digest string `json:"plan_digest"`
		*pipeline.Plan
		Wheelhouse []pipeline.Step `json:"wheelhouse,omitempty"`
	}{Digest: p.Digest, Plan: p}
	if house != nil {
		doc.Wheelhouse = house.Steps
	}
	return ui.JSON(a.stdout, doc)
}

// wheelsDocument is the JSON that dsbuild wheel prints.
type wheelsDocument struct {
	Wheels     []wheel.Artifact    `json:"wheels"`
	Wheelhouse *wheelhouseDocument `json:"wheelhouse,omitempty"`
}

func printWheels(a *app, artifacts []wheel.Artifact) error {
	for _, w := range artifacts {
		cached := ""
		if w.Cached {
			cached = ", from the store"
		}
		m := w.Manifest
		holds := "no device code"
		if len(m.Archs) > 0 {
			holds = "arch " + strings.Join(m.Archs, ", ")
		}
		_, err := fmt.Fprintf(a.stdout, "%s\n  %s, sha256 %s, %s%s\n  ops %s; %s; %s; torch %s, CUDA %s, Python %s, glibc %s\n",
			relative(w.Path), ui.Size(w.Size), w.SHA256, ui.Duration(time.Duration(w.Seconds*float64(time.Second))), cached,
			strings.Join(m.Ops, ", "), holds, m.CPU, m.Torch, m.CUDA, m.Python, m.Glibc)
		if err != nil {
			return err
		}
	}
	return nil
}

// relative shows a path as the user would type it, where that is shorter.
func relative(path string) string {
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, cwd+string(os.PathSeparator)); ok {
		return rest
	}
	return path
}

// lineWriter passes what is written to it on, line by line.
type lineWriter struct {
	line func(string)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		if line := bytes.TrimSpace(w.rest[:i]); len(line) > 0 {
			w.line(string(line))
		}
		w.rest = w.rest[i+1:]
	}
}
