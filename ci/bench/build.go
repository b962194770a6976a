//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// The ops of the builds: the guides' ops, those with an optimizer for the GPU, and one with large device code.
const (
	guideOps = "cpu_adam,utils"
	adamOps  = "cpu_adam,utils,fused_adam"
	heavyOps = "quantizer"
)

// benchArch is the compute capability of all builds, the stock recipe's too.
const benchArch = "8.0"

// site is the directory in which wheels are built. It has the sources and a separate dsbuild cache,
// whose toolchain the stock recipe uses too.
//
//	build/cache/    XDG_CACHE_HOME
//	build/src/      DeepSpeed's sources; no build runs there
//	build/stock/    a copy in which the stock recipe runs
//	build/dist/     wheels
type site struct {
	dir        string
	toolchains []stockToolchain // of CUDA 13 and 12
	source     string           // the source distribution
}

// stockToolchain is what the stock recipe uses.
type stockToolchain struct {
	env  string // a Python environment
	cuda string // CUDA_HOME
}

func (s site) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s site) hostPath(elem ...string) string {
	return s.path(append([]string{"cache", "dsbuild", "host"}, elem...)...)
}

// wheelBuilds measures builds in the site of a workspace.
type wheelBuilds struct{ *workspace }

// makeToolchain makes the toolchain and downloads the sources by building a wheel with the host
// builder. All later builds reuse its downloads. The wheel is dropped.
func (builds wheelBuilds) makeToolchain(ctx context.Context) error {
	s := site{dir: filepath.Join(builds.dir, "build")}
	downloads, err := python.Downloads()
	if err := errors.Join(err, os.MkdirAll(s.hostPath(), 0o700), os.MkdirAll(downloads, 0o700)); err != nil {
		return err
	}
	if err := os.Symlink(downloads, s.hostPath("uv-cache")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	builds.say("dsbuild wheel --builder host, for the toolchains")
	builds.site = s
	if _, err := builds.buildWheel(ctx, "--gpu", "all"); err != nil {
		return err
	}
	var b built
	for _, cuda := range []string{"13", "12"} {
		if b, err = builds.buildWheel(ctx, "--ops", "utils,fused_adam", "--abi", "torch", "--cuda", cuda); err != nil {
			return err
		}
		envs, _ := filepath.Glob(s.hostPath("environments", "*", "complete")) // a bad pattern finds none
		if len(envs) == 0 {
			return fmt.Errorf("no toolchain in %s", s.hostPath("environments"))
		}
		newest := filepath.Dir(slices.MaxFunc(envs, func(a, b string) int { return modificationTime(a).Compare(modificationTime(b)) }))
		s.toolchains = append(s.toolchains, stockToolchain{filepath.Join(newest, "toolchain"), filepath.Join(newest, "cuda")})
	}
	name, _, _ := strings.Cut(filepath.Base(b.Path), "+")
	s.source = s.path(name + ".tar.gz")
	download := child.Command(ctx, filepath.Join(s.toolchains[0].env, "bin", "python"), "-m", "pip", "download", "--quiet", "--no-deps",
		"--no-build-isolation", "--no-binary", ":all:", "--dest", s.dir, strings.Replace(name, "-", "==", 1))
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("downloading %s: %w\n%s", name, err, out)
	}
	builds.site = s
	return nil
}

// built is dsbuild's JSON about the wheel.
type built struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Cached bool   `json:"cached"`

	took cost
}

// buildWheel runs dsbuild wheel on this machine, in the cache of the site.
func (builds wheelBuilds) buildWheel(ctx context.Context, args ...string) (built, error) {
	line := "dsbuild wheel --builder host --json -o dist " + strings.Join(args, " ")
	if !slices.Contains(args, "all") {
		line += " --arch " + benchArch
	}
	var out bytes.Buffer
	fmt.Fprintf(builds.log, "\n$ %s\n", line)
	took, err := measureCommand(ctx, builds.site.dir, builds.siteEnv(), io.MultiWriter(&out, builds.log), line+" 2>build.err || { s=$?; cat build.err; exit $s; }")
	if err == nil && took.Status != 0 {
		err = fmt.Errorf("exited with status %d; output: %s", took.Status, builds.log.Name())
	}
	if err != nil {
		return built{}, fmt.Errorf("%s: %w", line, err)
	}
	var doc struct {
		Wheels []built `json:"wheels"`
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		return built{}, fmt.Errorf("%s printed no wheel: %w", line, err)
	}
	b := doc.Wheels[0]
	b.took = took
	return b, nil
}

// siteEnv is the environment of all builds.
func (builds wheelBuilds) siteEnv() []string {
	return builds.commandEnv("XDG_CACHE_HOME="+builds.site.path("cache"), "XDG_STATE_HOME="+builds.site.path("state"))
}

// emptyCaches empties parts of dsbuild's caches.
func (builds wheelBuilds) emptyCaches(parts ...string) error {
	var err error
	for _, part := range parts {
		err = errors.Join(err, os.RemoveAll(builds.site.path("cache", "dsbuild", part)))
	}
	return err
}

const (
	keptWheels  = "wheels"
	keptObjects = "host/objects"
)

// unpackSources unpacks a fresh copy of the sources into a folder of the site.
func (builds wheelBuilds) unpackSources(ctx context.Context, name string) (tree string, err error) {
	tree = builds.site.path(name)
	if err := errors.Join(os.RemoveAll(tree), os.Mkdir(tree, 0o755)); err != nil {
		return "", err
	}
	if out, err := child.Command(ctx, "tar", "-xzf", builds.site.source, "-C", tree, "--strip-components=1").CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpacking %s: %w\n%s", builds.site.source, err, out)
	}
	return tree, nil
}

// changeSource returns the source distribution with one changed Python file, as the next commit
// would have. Different n make different sources.
func (builds wheelBuilds) changeSource(ctx context.Context, n int) (string, error) {
	tree, err := builds.unpackSources(ctx, "changed")
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(tree, "deepspeed", "constants.py"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, "# %d\n", n)
	return tree, errors.Join(err, f.Close())
}

// buildByStockRecipe builds with the recipe of DeepSpeed's guides, in a fresh copy of the sources,
// with dsbuild's toolchain.
func (builds wheelBuilds) buildByStockRecipe(ctx context.Context, toolchain stockToolchain, ops string) (built, error) {
	tree, err := builds.unpackSources(ctx, "stock")
	if err != nil {
		return built{}, err
	}
	line := stockLine(ops)
	fmt.Fprintf(builds.log, "\n$ %s\n", line)
	env := append(builds.commandEnv(), "CUDA_HOME="+toolchain.cuda)
	env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	env = append(env, "PATH="+filepath.Join(toolchain.env, "bin")+":"+os.Getenv("PATH"))
	took, err := measureCommand(ctx, tree, env, builds.log, line)
	if err != nil {
		return built{}, err
	}
	wheels, _ := filepath.Glob(filepath.Join(tree, "dist", "*.whl")) // a bad pattern finds none
	if took.Status != 0 || len(wheels) != 1 {
		return built{}, fmt.Errorf("the stock recipe exited with status %d and built %d wheels; output: %s", took.Status, len(wheels), builds.log.Name())
	}
	info, err := os.Stat(wheels[0])
	if err != nil {
		return built{}, err
	}
	return built{Path: wheels[0], Size: info.Size(), took: took}, nil
}

// buildForBothCUDAs builds the default ops by the stock recipe for CUDA 13, and then for CUDA 12: all but async_io, which
// needs the header of libaio.
func (builds wheelBuilds) buildForBothCUDAs(ctx context.Context) (built, error) {
	ops := strings.Join(slices.DeleteFunc(wheel.DefaultOps(), func(op string) bool { return op == "async_io" }), ",")
	var both built
	for _, toolchain := range builds.site.toolchains {
		b, err := builds.buildByStockRecipe(ctx, toolchain, ops)
		if err != nil {
			return built{}, err
		}
		both.Size += b.Size
		both.took.Wall += b.took.Wall
		both.took.CPU += b.took.CPU
	}
	return both, nil
}

// stockLine is the recipe. Without DS_ACCELERATOR it builds no utils on a machine without a GPU.
func stockLine(ops string) string {
	var b strings.Builder
	b.WriteString("DS_ACCELERATOR=cuda TORCH_CUDA_ARCH_LIST=" + benchArch)
	for _, op := range strings.Split(ops, ",") {
		fmt.Fprintf(&b, " DS_BUILD_%s=1", strings.ToUpper(op))
	}
	return b.String() + " python setup.py build_ext -j2 bdist_wheel"
}

const stockName = "stock recipe"

// way is one way to get a wheel.
type way struct {
	name   string
	before func() error
	do     func(context.Context) (built, error)
}

// comparison is the ways to build some ops, in order. Each finds the caches of the earlier ones.
type comparison struct {
	ops    string
	rounds int
	ways   []way
}

// comparisons lists the compared builds of a round.
func (builds wheelBuilds) comparisons(round int) []comparison {
	ours := func(args ...string) func(context.Context) (built, error) {
		return func(ctx context.Context) (built, error) {
			return builds.buildWheel(ctx, append([]string{"--deepspeed", builds.site.source}, args...)...)
		}
	}
	stock := func(ops string) way {
		return way{stockName, nil, func(ctx context.Context) (built, error) {
			return builds.buildByStockRecipe(ctx, builds.site.toolchains[0], ops)
		}}
	}
	fresh := func(name string, args ...string) way {
		return way{name, func() error { return builds.emptyCaches(keptWheels, keptObjects) }, ours(args...)}
	}
	next := func(name string, args ...string) way {
		return way{name, nil, func(ctx context.Context) (built, error) {
			tree, err := builds.changeSource(ctx, round)
			if err != nil {
				return built{}, err
			}
			return builds.buildWheel(ctx, append([]string{"--deepspeed", tree}, args...)...)
		}}
	}
	perTorch := func(ops string) []string { return []string{"--ops", ops, "--abi", "torch"} }
	restricted := func(ops string) []string { return []string{"--ops", ops, "--cuda", "13", "--cpu", "x86-64-v3"} }
	return []comparison{
		{strings.Join(wheel.DefaultOps(), ",") + ", for CUDA 13 and 12", 1, []way{
			{stockName, nil, builds.buildForBothCUDAs},
			fresh("dsbuild, every GPU, nothing kept", "--gpu", "all"),
			next("dsbuild, every GPU, the next commit", "--gpu", "all"),
		}},
		{guideOps, 2, []way{
			stock(guideOps),
			fresh("dsbuild --abi torch, nothing kept", perTorch(guideOps)...),
			next("dsbuild --abi torch, the next commit", perTorch(guideOps)...),
			fresh("dsbuild, nothing kept", restricted(guideOps)...),
			next("dsbuild, the next commit", restricted(guideOps)...),
			{"dsbuild, the same again, not in the store", func() error { return builds.emptyCaches(keptWheels) }, ours(restricted(guideOps)...)},
			{"dsbuild, nothing changed", nil, ours(restricted(guideOps)...)},
		}},
		{adamOps, 2, []way{
			stock(adamOps),
			fresh("dsbuild --abi torch, nothing kept", perTorch(adamOps)...),
			fresh("dsbuild, nothing kept", restricted(adamOps)...),
			next("dsbuild, the next commit", restricted(adamOps)...),
		}},
		{heavyOps, 2, []way{
			stock(heavyOps),
			fresh("dsbuild --abi torch, nothing kept", perTorch(heavyOps)...),
			fresh("dsbuild, nothing kept", restricted(heavyOps)...),
		}},
	}
}

// compareBuilds compares dsbuild's builds with the stock recipe's.
func (builds wheelBuilds) compareBuilds(ctx context.Context) (string, error) {
	var b strings.Builder
	for i, planned := range builds.comparisons(0) {
		results := buildResults{walls: map[string][]float64{}, cpus: map[string][]float64{}, sizes: map[string]int64{}}
		for round := 1; round <= planned.rounds; round++ {
			c := builds.comparisons(round)[i]
			builds.say("a wheel of %s, round %d of %d", c.ops, round, c.rounds)
			said, err := results.measure(ctx, c)
			if err != nil {
				return "", err
			}
			builds.say("  %s", said)
		}
		b.WriteString(results.table(planned) + "\n")
	}
	return b.String() + buildRemarks(), nil
}

// buildResults are the measured builds of a comparison, by the names of its ways: seconds of all
// rounds, and the size of the wheel in bytes.
type buildResults struct {
	walls, cpus map[string][]float64
	sizes       map[string]int64
}

// measure runs each way once and returns a description of the times.
func (r buildResults) measure(ctx context.Context, c comparison) (string, error) {
	var said []string
	for _, w := range c.ways {
		if w.before != nil {
			if err := w.before(); err != nil {
				return "", err
			}
		}
		syscall.Sync()
		b, err := w.do(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: %w", w.name, err)
		}
		r.walls[w.name], r.cpus[w.name], r.sizes[w.name] = append(r.walls[w.name], b.took.Wall), append(r.cpus[w.name], b.took.CPU), b.Size
		said = append(said, fmt.Sprintf("%s %.1fs", w.name, b.took.Wall))
	}
	return strings.Join(said, ", "), nil
}

// table has a line for each way.
func (r buildResults) table(c comparison) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| a wheel of %s | wall, s | × %s | CPU, s | bytes of the wheel |\n|---|---|---|---|---|\n", c.ops, stockName)
	for _, w := range c.ways {
		ratios := make([]float64, len(r.walls[w.name]))
		for i := range ratios {
			ratios[i] = r.walls[w.name][i] / r.walls[stockName][i]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d |\n", inTable(w.name), aroundMedian(spreadOf(r.walls[w.name]), "%.1f"),
			aroundMedian(spreadOf(ratios), "%.3f"), aroundMedian(spreadOf(r.cpus[w.name]), "%.1f"), r.sizes[w.name])
	}
	return b.String()
}

func buildRemarks() string {
	return "The stock recipe, in a fresh copy of the sources:\n\n```sh\n" + stockLine(guideOps) + "\n```\n\n" +
		"dsbuild's wall times are for the whole command, with audit and smoke test, which the recipe does not have. " +
		"The next commit is a tree with one Python file changed. For two CUDAs the recipe runs twice, for one GPU and without async_io.\n"
}

// modificationTime returns the time at which a file was last changed.
func modificationTime(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
