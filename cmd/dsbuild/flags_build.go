package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// shipOptions prepares the part of a shipment that builds wheels. The tools stay open until
// the shipment has ended.
func (o wheelOptions) shipOptions(ctx context.Context, a *app, tools *buildTools) (ship.Options, error) {
	groups, err := ship.NewGroupPlanner(ctx, tools.plans, o.request)
	if err != nil {
		return ship.Options{}, err
	}
	return ship.Options{
		Want: groups.Spec(), Plans: groups,
		Build: func(ctx context.Context, jobs []pipeline.Job) []pipeline.Result {
			return tools.runner.RunAll(ctx, jobs, nil)
		},
		Store: pipeline.DefaultStore(), Dir: o.out, Fresh: o.noCache, Sign: tools.runner.Sign, Report: a.reporter,
	}, nil
}

// newBundler gathers the packages that a wheel requires in a folder of the wheel's name.
func (t *buildTools) newBundler(a *app) func(context.Context, string, *pipeline.Plan, wheel.Artifact) (*wheel.Bundle, error) {
	return func(ctx context.Context, name string, p *pipeline.Plan, made wheel.Artifact) (*wheel.Bundle, error) {
		plan, err := pipeline.NewBundlePlan(p, nil, true)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(t.runner.Dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		runner := t.runner
		runner.Dir, runner.Report = dir, ui.Prefixed(a.reporter, name)
		if _, err := runner.Bundle(ctx, plan, made); err != nil {
			return nil, err
		}
		b, err := wheel.ReadBundle(filepath.Join(dir, wheel.WheelhouseDir))
		return &b, err
	}
}

// addRequestFlags adds the flags that describe one wheel.
func addRequestFlags(f *pflag.FlagSet, r *planner.Request) {
	addCommonRequestFlags(f, r)
	f.StringVar(&r.Torch, "torch", "", "torch `VERSION` to build for, X.Y or X.Y.Z (default: the newest that fits)")
	f.StringVar(&r.CUDA, "cuda", "", "CUDA `VERSION` that torch is built for, X or X.Y (default: torch's)")
	f.StringVar(&r.Python, "python", "", "Python `VERSION` to build for, X.Y (default: the base's)")
	f.StringVar(&r.Glibc, "glibc", "", "glibc `VERSION` of the oldest node, X.Y (2.28 or newer): a wheel that needs more is refused")
	f.StringVar(&r.Driver, "driver", "",
		"NVIDIA driver `VERSION` of the oldest node, such as 550.54: dsbuild chooses a torch for a CUDA that it runs (below 580: CUDA 12)")
	f.StringVar(&r.Machine, "machine", "", "`MACHINE` to build for: x86_64 or aarch64 (default: that of the GPUs, else that of the builder)")
	f.Lookup("cpu").Usage += " (default: x86-64-v3, or armv8-a for aarch64)"
}

// addCommonRequestFlags adds those that also have a meaning where the nodes decide
// the rest.
func addCommonRequestFlags(f *pflag.FlagSet, r *planner.Request) {
	f.StringArrayVar(&r.Archs, "arch", nil, "compute capability `ARCH`, repeatable or joined: \"8.0;8.6+PTX\"")
	f.StringArrayVar(&r.GPUs, "gpu", nil, "GPU by `NAME`, repeatable or joined: A100, \"RTX 4090\" (default: all, code for every GPU)")
	f.StringSliceVar(&r.Ops, "ops", nil,
		"operators `OPS` to compile, joined by commas; all: every op that can be compiled; "+
			"proven: every op of state ran or launched, see dsbuild ops (default "+strings.Join(wheel.DefaultOps(), ",")+")")
	f.StringVar(&r.DeepSpeed, "deepspeed", "",
		"`SOURCE` of DeepSpeed: a release, latest, git+URL@REF, a folder or a source distribution (default: the newest release that "+
			"this dsbuild knows)")
	f.StringVar(&r.CPU, "cpu", "", "oldest CPU `LEVEL` that must run it: x86-64-v2, -v3 (AVX2), -v4 (AVX-512), armv8-a (aarch64), or native: this machine's")
	f.StringVar(&r.Base, "base", "", "`BASE`: an image reference, a root file system tar or an OCI tar (default: chosen, a Debian or Ubuntu)")
	f.StringVar(&r.ABI, "abi", "auto",
		"ABI of torch that the operators use: `auto|stable|torch` (stable: for every torch from 2.10 on and every Python from 3.10 on; "+
			"torch: for one minor of torch and one Python; auto: stable if every operator is proven with it, see dsbuild ops)")
	f.BoolVar(&r.KeepDebug, "keep-debug", false, "keep debug information in the extensions")
}

// indexFlags are the flags of a command that fetches packages; the other settings of the site
// come from the environment (docs/airgap.md).
func indexFlags(f *pflag.FlagSet, o *pipeline.SiteOptions) {
	f.StringVar(&o.IndexURL, "index-url", "",
		"`URL` of the package index to fetch from (default: the variable UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL)")
	f.StringArrayVar(&o.ExtraIndexURLs, "extra-index-url", nil,
		"`URL` of an additional package index, repeatable (default: UV_INDEX, UV_EXTRA_INDEX_URL and PIP_EXTRA_INDEX_URL)")
	caFlag(f, &o.CA)
}

func caFlag(f *pflag.FlagSet, ca *string) {
	f.StringVar(ca, "ca", "", "`FILE` of certificates to trust beside the system's (default: SSL_CERT_FILE)")
}

// buildFlags adds the flags that all builds have.
func (o *wheelOptions) buildFlags(f *pflag.FlagSet) {
	o.builderFlags(f)
	f.BoolVar(&o.noCache, "no-cache", false, "compile again: ignore the store and cached objects")
	f.StringVarP(&o.out, "output", "o", "dist", "`FOLDER` for wheels")
}

// builderFlags adds the flags that say where, and with which builder, wheels are built.
func (o *wheelOptions) builderFlags(f *pflag.FlagSet) {
	f.StringVar(&o.builder, "builder", planner.Auto,
		"where to build: `auto|dagger|host` (dagger: in containers of a Dagger engine; host: on this machine, without root; auto: "+
			"dagger if there is an engine, else host)")
	f.StringVar(&o.engine, "engine", "",
		"`ADDRESS` of a Dagger engine: unix:///path/engine.sock, tcp://host:port, image+docker://REF, kube-pod://POD?namespace=NAME")
	indexFlags(f, &o.siteOptions)
	f.StringVar(&o.siteOptions.Toolkit, "toolkit", "",
		"`FILE` of Debian's package nvidia-cuda-toolkit 12.4, for device code under CUDA 12 (default: from a mirror of Debian)")
	f.StringVar(&o.sign, "sign", "",
		"sign the wheels with `KEY`: an SSH private key, or the .pub file of a key in the SSH agent (docs/signing.md)")
	f.IntVar(&o.jobs, "jobs", 0, "`N` parallel compile jobs (default: the number of cores)")
}

// readBuildFlags checks the values that the types of flags cannot, and reads the site.
func (o *wheelOptions) readBuildFlags(f *pflag.FlagSet) error {
	if err := oneOf("builder", o.builder, planner.Auto, planner.Dagger, planner.Host); err != nil {
		return err
	}
	if f.Changed("jobs") && o.jobs < 1 {
		return usagef("--jobs %d: must be 1 or more", o.jobs)
	}
	if f.Changed("engine") {
		if err := engine.CheckAddress(o.engine); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
	}
	var err error
	o.site, err = pipeline.NewSite(o.siteOptions, os.Getenv)
	return err
}

// buildTools are what a command plans and builds wheels with.
type buildTools struct {
	backend *planner.Backend
	plans   *planner.Planner
	runner  pipeline.Runner // runs plans; its Dir is --output
	endSign func()
}

// openBuild opens a backend, a planner, and the key of --sign, which a dry run does not need.
func (o wheelOptions) openBuild(ctx context.Context, a *app) (*buildTools, error) {
	key := o.sign
	if o.dryRun {
		key = ""
	}
	sign, done, err := a.wheelSigner(ctx, key)
	if err != nil {
		return nil, err
	}
	backend := planner.NewBackend(planner.BackendOptions{Kind: o.builder, Engine: o.engine, Site: o.site, Environ: os.Environ(), Report: a.reporter})
	plans, err := planner.New(ctx, planner.Options{
		Backend: backend, Plan: pipeline.Options{Jobs: o.jobs, NoCache: o.noCache},
		DryRun: o.dryRun, Printed: o.dryRun && !o.json, Env: o.env, Report: a.reporter,
	})
	if err != nil {
		done()
		backend.Close()
		return nil, err
	}
	return &buildTools{backend, plans, pipeline.Runner{
		Builder: backend.OpenBuilder, Sign: sign, Store: pipeline.DefaultStore(), Dir: o.out, Logs: pipeline.DefaultLogs(),
		Version: a.version, Report: a.reporter, Site: o.site,
	}, done}, nil
}

// Close ends what the tools hold open.
func (t *buildTools) Close() {
	t.endSign()
	t.plans.Close()
	t.backend.Close()
}
