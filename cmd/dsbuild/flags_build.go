package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/ship"
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
	f.addForNodes(cmd)
	flags := cmd.Flags()
	flags.String("torch", "", "torch `VERSION` to build for, X.Y or X.Y.Z (default: the newest that fits)")
	flags.String("cuda", "", "CUDA `VERSION` that torch is built for, X or X.Y (default: torch's)")
	flags.String("python", "", "Python `VERSION` to build for, X.Y (default: the base's)")
	flags.String("target-glibc", "",
		"glibc `VERSION` of the oldest node, X.Y (2.28 or newer): a wheel that needs more is refused")
	flags.String("min-driver", "",
		"NVIDIA driver `VERSION` of the oldest node, such as 550.54: "+
			"dsbuild chooses a torch for a CUDA that it runs (below 580: CUDA 12)")
	flags.String("machine", "",
		"`MACHINE` to build for: x86_64 or aarch64 (default: that of the GPUs, else that of the builder)")
	flags.Lookup("cpu").Usage += " (default: x86-64-v3, or armv8-a for aarch64)"
}

// addForNodes declares those that also have a meaning where nodes decide the rest.
func (f *requestFlags) addForNodes(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.flags = flags
	flags.StringArray("arch", nil, "compute capability `ARCH`, repeatable or joined: \"8.0;8.6+PTX\"")
	flags.StringArray("gpu", nil,
		"GPU by `NAME`, repeatable or joined: A100, \"RTX 4090\" (default: all, code for every GPU)")
	flags.StringSlice("ops", nil,
		"operators `OPS` to compile, joined by commas; all: every op that can be compiled; "+
			"proven: every op of state ran or launched, see dsbuild ops (default "+
			strings.Join(wheel.DefaultOps(), ",")+")")
	flags.StringVar(&f.source, "deepspeed", "",
		"`SOURCE` of DeepSpeed: a release, latest, git+URL@REF, a folder or a source distribution "+
			"(default: the newest release that this dsbuild knows)")
	flags.String("cpu", "", "oldest CPU `LEVEL` that must run it: "+
		"x86-64-v2, -v3 (AVX2), -v4 (AVX-512), armv8-a (aarch64), or native: this machine's")
	flags.String("base", "",
		"`BASE`: an image reference, a root file system tar or an OCI tar (default: chosen, a Debian or Ubuntu)")
	flags.String("abi", "auto",
		"ABI of torch that the operators use: `auto|stable|torch` "+
			"(stable: for every torch from 2.10 on and every Python from 3.10 on; "+
			"torch: for one minor of torch and one Python; auto: stable if every operator is proven with it, see dsbuild ops)")
	flags.Bool("keep-debug", false, "keep debug information in the extensions")
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
	engine  string // its address
	jobs    int
	noCache bool
	out     string
	sign    string // the key that signs the wheels
}

// add declares the flags.
func (f *buildFlags) add(cmd *cobra.Command) {
	f.addBuilder(cmd)
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "compile again: ignore the store and cached objects")
	cmd.Flags().StringVarP(&f.out, "output", "o", "dist", "`FOLDER` for wheels")
}

// addBuilder declares those of commands that choose the folder and the cache themselves. Their values are checked
// before the command runs.
func (f *buildFlags) addBuilder(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.builder, "builder", planner.Auto,
		"where to build: `auto|dagger|host` (dagger: in containers of a Dagger engine; "+
			"host: on this machine, without root; auto: dagger if there is an engine, else host)")
	flags.StringVar(&f.engine, "engine", "",
		"`ADDRESS` of a Dagger engine: unix:///path/engine.sock, tcp://host:port, image+docker://REF, "+
			"kube-pod://POD?namespace=NAME")
	flags.StringVar(&f.sign, "sign", "",
		"sign the wheels with `KEY`: an SSH private key, or the .pub file of a key in the SSH agent (docs/signing.md)")
	flags.IntVar(&f.jobs, "jobs", 0, "`N` parallel compile jobs (default: the number of cores)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.check(cmd.Flags().Changed("jobs")) }
}

// check checks the values beyond their types.
func (f buildFlags) check(jobsGiven bool) error {
	if err := oneOf("builder", f.builder, planner.Auto, planner.Dagger, planner.Host); err != nil {
		return err
	}
	if jobsGiven && f.jobs < 1 {
		return usagef("--jobs %d: must be 1 or more", f.jobs)
	}
	if f.engine != "" {
		if err := engine.CheckAddress(f.engine); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
	}
	return nil
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
	backend := planner.NewBackend(planner.BackendOptions{
		Kind: f.builder, Engine: f.engine, Network: network, Environ: os.Environ(), Report: a.reporter,
	})
	opt.Report = a.reporter
	return &buildTools{backend: backend, options: opt, endSign: done, runner: pipeline.Runner{
		Builder: backend.OpenBuilder, Jobs: f.jobs, NoCache: f.noCache, Sign: sign, Network: network, Version: a.version,
		Report: a.reporter,
		Store:  pipeline.DefaultStore(), Dir: f.out, Logs: pipeline.DefaultLogs(),
	}}, nil
}

// planner brings a source, and returns what plans its wheels. It stays open as long as the tools.
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

// openShip opens what builds the wheels of a request for nodes. GPUs and ops that the tables lack are refused before
// any node is asked. The tools stay open until the shipment has ended.
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
		Want: r, Plans: plans,
		Build: func(ctx context.Context, plans []*pipeline.Plan) []pipeline.Result {
			return t.runner.RunAll(ctx, plans, nil)
		},
		Store: t.runner.Store, Dir: f.out, Fresh: f.noCache, Sign: t.runner.Sign, Report: a.reporter,
	}, nil
}
