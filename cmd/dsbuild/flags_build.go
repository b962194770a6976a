package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// requestFlags are the flags that describe a wheel: the source, and those that planner.Set reads.
type requestFlags struct {
	source string
	flags  *pflag.FlagSet
}

// add declares the flags for one wheel.
func (f *requestFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.addForNodes(cmd)
	flags.String("machine", "",
		"`x86_64|aarch64|all` CPU architecture; all: a wheel for each (default: the GPUs' or else the builder's)")
	flags.String("min-driver", "",
		"`VERSION` Oldest NVIDIA driver on the nodes, such as 550.54; below 580, torch for CUDA 12 is chosen")
	flags.String("target-glibc", "",
		"`X.Y` Oldest glibc on the nodes (2.28 or newer); a wheel that requires a newer one is rejected")
	flags.String("torch", "", "`VERSION` torch to build for, X.Y or X.Y.Z (default: the newest compatible release)")
	flags.String("cuda", "", "`VERSION` CUDA of torch, X or X.Y (default: 12 and 13; for one torch, its own)")
	flags.String("python", "", "`X.Y` Python to build for (default: the base's)")
	flags.Lookup("cpu").Usage += " (default: x86-64-v2, v3 and v4, the loader selects; armv8-a for aarch64; x86-64-v3 with --abi torch)"
	inGroup(cmd, groupTarget, "machine", "min-driver", "target-glibc")
	inGroup(cmd, groupVersions, "torch", "cuda", "python")
}

// addForNodes declares the flags that are also valid if nodes determine the rest.
func (f *requestFlags) addForNodes(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.flags = flags
	flags.StringArray("gpu", nil,
		"`NAME` GPU to compile for, such as A100 or \"RTX 4090\"; repeatable (default: all supported GPUs)")
	flags.StringArray("arch", nil, "`ARCH` Compute capability to compile for, such as \"8.0;8.6+PTX\"; repeatable")
	flags.StringSlice("ops", nil,
		"`OPS` Ops to compile, separated by commas; all: every op that can be compiled; "+
			"proven: every op whose state in \"dsbuild ops\" is ran or launched (default: "+
			strings.Join(wheel.DefaultOps(), ", ")+")")
	flags.String("cpu", "", "`LEVEL` Lowest CPU level to support: "+
		"x86-64-v2, x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (aarch64), or native (this machine's)")
	flags.StringVar(&f.source, "deepspeed", "",
		"`SOURCE` DeepSpeed release, latest, git+URL@REF, directory or source distribution "+
			"(default: the newest release in dsbuild's tables)")
	flags.String("abi", "auto",
		"`auto|stable|torch` Torch ABI of the ops. stable: torch 2.10 or newer and Python 3.10 or newer; "+
			"torch: one torch minor version and one Python; auto: stable if every op is proven with it")
	flags.String("base", "", "`BASE` Base system: image reference, root file system tar or OCI tar "+
		"(default: a suitable Debian or Ubuntu)")
	flags.Bool("keep-debug", false, "Keep debug information in the extensions")
	inGroup(cmd, groupTarget, "gpu", "arch", "ops", "cpu")
	inGroup(cmd, groupVersions, "deepspeed", "abi")
	inGroup(cmd, groupSources, "base", "keep-debug")
}

// request reads the flags that were given.
func (f requestFlags) request() (r wheel.Request, err error) {
	for _, key := range planner.Keys() {
		flag := f.flags.Lookup(key)
		if flag == nil || !flag.Changed {
			continue
		}
		texts := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			texts = list.GetSlice()
		}
		if err := setAll(&r, key, texts); err != nil {
			return r, err
		}
	}
	return r, nil
}

// setAll sets each text of a key.
func setAll(r *wheel.Request, key string, texts []string) error {
	for _, text := range texts {
		if err := planner.Set(r, key, text); err != nil {
			return err
		}
	}
	return nil
}

// buildFlags are the flags that say where, and how, wheels are built.
type buildFlags struct {
	builder string
	engine  string // its address, also that of DSBUILD_ENGINE
	jobs    int
	noCache bool
	out     string
	sign    string // the key that signs the wheels
	flags   *pflag.FlagSet
}

// add declares the flags.
func (f *buildFlags) add(cmd *cobra.Command) {
	f.addBuilder(cmd)
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "Recompile: ignore the wheel cache and cached objects")
	cmd.Flags().StringVarP(&f.out, "output", "o", "dist", "`DIR` Directory for the wheels")
	inGroup(cmd, groupBuild, "no-cache")
	inGroup(cmd, groupOutput, "output")
}

// addBuilder declares those of commands that choose the directory and the cache themselves.
func (f *buildFlags) addBuilder(cmd *cobra.Command) {
	flags := cmd.Flags()
	choiceVar(flags, &f.builder, "builder", planner.Auto, []string{planner.Auto, planner.Dagger, planner.Host},
		"Build in containers of a Dagger engine, or on this machine without root; auto: host if there is no engine")
	parsedVar(flags, &f.engine, "engine", "", "string", parseEngine,
		"`ADDRESS` Dagger engine: unix:///path/engine.sock, tcp://host:port, image+docker://REF or "+
			"kube-pod://POD?namespace=NAME")
	parsedVar(flags, &f.jobs, "jobs", "", "int", atLeast(1),
		"`N` Number of parallel compile jobs (default: one per core); fewer if memory is low")
	flags.StringVar(&f.sign, "sign", "",
		"`KEY` Sign the wheels with this SSH private key, or with the agent's key for a .pub file (docs/signing.md)")
	inGroup(cmd, groupBuild, "builder", "engine", "jobs", "sign")
	siteFlags(cmd, "builder", "engine", "jobs")
	f.flags = flags
}

// parseEngine checks the address of an engine.
func parseEngine(address string) (string, error) {
	err := engine.CheckAddress(address)
	if err != nil {
		err = fault.WithHint(errors.New("want the address of an engine"), "%s", fault.Hint(err))
	}
	return address, err
}

// buildTools are what a command plans and builds wheels with.
type buildTools struct {
	backend *planner.Backend
	runner  pipeline.Runner // runs plans; its Dir is --output
	options planner.Options
	plans   []*planner.Planner
	endSign func()
}

// open opens a backend, and the key of --sign, which a dry run does not need. Of opt, the caller sets what its own
// flags say.
func (f buildFlags) open(
	ctx context.Context, a *app, network pipeline.Network, opt planner.Options,
) (*buildTools, error) {
	if opt.DryRun {
		f.sign = ""
	}
	sign, done, err := a.wheelSigner(ctx, f.sign)
	if err != nil {
		return nil, err
	}
	address := f.engine
	if !f.flags.Changed("engine") { // package engine names the variable in its messages
		address = ""
	}
	backend := planner.NewBackend(planner.BackendOptions{
		Kind: f.builder, Engine: address, Network: network, Environ: os.Environ(), Report: a.reporter,
	})
	opt.Report = a.reporter
	return &buildTools{backend: backend, options: opt, endSign: done, runner: pipeline.Runner{
		Builder: backend.OpenBuilder, Jobs: f.jobs, NoCache: f.noCache, Sign: sign, Network: network, Version: a.version,
		Report: a.reporter,
		Store:  pipeline.DefaultStore(), Dir: f.out, Logs: pipeline.DefaultLogs(),
	}}, nil
}

// planner fetches a source and returns the planner of its wheels, which stays open as long as the tools.
func (t *buildTools) planner(ctx context.Context, source string) (*planner.Planner, error) {
	p, err := planner.Open(ctx, t.options, t.backend, source)
	if err == nil {
		t.plans = append(t.plans, p)
	}
	return p, err
}

// Close ends what the tools hold open.
func (t *buildTools) Close() {
	t.endSign()
	for _, p := range t.plans {
		p.Close()
	}
	t.backend.Close()
}

// openShip opens the tools that build wheels for nodes. It rejects unknown GPUs and ops before any node is
// contacted. The tools stay open until the shipment has ended.
func (f buildFlags) openShip(
	ctx context.Context, a *app, network pipeline.Network, opt planner.Options, source string, r wheel.Request,
) (*buildTools, ship.Options, error) {
	t, err := f.open(ctx, a, network, opt)
	if err != nil {
		return nil, ship.Options{}, err
	}
	plans, err := t.planner(ctx, source)
	if err == nil {
		for _, unknown := range planner.UnknownNames(plans.Tables(), r) {
			err = cmp.Or(err, unknown)
		}
	}
	if err != nil {
		t.Close()
		return nil, ship.Options{}, err
	}
	return t, ship.Options{
		Want: r, Plans: plans, SketchHere: plans.SketchHere,
		Build: func(ctx context.Context, plans []*pipeline.Plan) []pipeline.Result {
			return t.runner.RunAll(ctx, plans, nil)
		},
		Store: t.runner.Store, Dir: f.out, Fresh: f.noCache, Sign: t.runner.Sign, Report: a.reporter,
	}, nil
}
