// Package pipeline turns a resolved toolchain into a wheel: a pure, printable
// Plan, the builders that run one, and the store of finished wheels.
package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/wheel"
)

//go:embed scripts
var scripts embed.FS

// Image says which of the toolchain's images a step runs in.
type Image string

// The images of a toolchain's Dockerfile, and the place of steps that are
// dsbuild's own code.
const (
	Runtime   Image = "runtime"   // what a node has
	Toolchain Image = "toolchain" // runtime, compilers and CUDA toolkit
	Here      Image = "dsbuild"   // no image: dsbuild itself does it
)

// Step is one command of a plan. It is told by its environment where things lie
// (Places). Its own environment holds nothing that differs from run to run.
type Step struct {
	Name    string            `json:"name"`
	Title   string            `json:"title"` // what it does, for people
	Image   Image             `json:"image"`
	Script  string            `json:"script,omitempty"`  // what runs: a shell or Python script of the plan
	Args    []string          `json:"args,omitempty"`    // its arguments
	Scripts []string          `json:"scripts,omitempty"` // others that it uses
	Inputs  []string          `json:"inputs,omitempty"`  // steps whose output it reads
	Env     map[string]string `json:"env,omitempty"`
	Network bool              `json:"network,omitempty"` // fetches something
	Compile bool              `json:"compile,omitempty"` // has the object cache
	Ahead   bool              `json:"ahead,omitempty"`   // may begin before its inputs are there: it reads its standard input to the end before it looks at them
}

// Repeats reports whether the step gives the same output again from the same inputs.
// What fetches companions and what they require takes what an index has that day.
func (s Step) Repeats() bool { return !s.Network || s.Name == SourceStep }

// Command is what runs the step where its scripts lie in the directory tools.
func (s Step) Command(tools string) []string {
	interpreter := "sh"
	if path.Ext(s.Script) == ".py" {
		interpreter = "python"
	}
	return append([]string{interpreter, tools + "/" + s.Script}, s.Args...)
}

// AllScripts lists the step's script and those it uses.
func (s Step) AllScripts() []string {
	if s.Script == "" {
		return nil
	}
	return append([]string{s.Script}, s.Scripts...)
}

// Places are the directories in which a step runs. Its scripts know them by the
// variables of Env.
type Places struct {
	Tools string // scripts: DSBUILD_TOOLS
	In    string // outputs of earlier steps, each in a directory of its name: DSBUILD_IN
	Out   string // its own output: DSBUILD_OUT
	Work  string // empty, of this step alone: DSBUILD_WORK
	Cache string // cached objects, for steps that compile: DSBUILD_OBJECTS, and within it CCACHE_DIR
}

// Env is the environment by which the scripts of s know the places. The images
// add DSBUILD_ENV, the Python environment, and CUDA_HOME.
func (p Places) Env(s Step) map[string]string {
	env := map[string]string{
		"DSBUILD_TOOLS": p.Tools, "DSBUILD_IN": p.In, "DSBUILD_OUT": p.Out, "DSBUILD_WORK": p.Work,
	}
	if s.Compile {
		env["DSBUILD_OBJECTS"], env["CCACHE_DIR"] = p.Cache, p.Cache+"/ccache"
	}
	return env
}

// Base is the root file system under the toolchain: an image reference, or a
// tar file when File is set.
type Base struct {
	Ref    string `json:"ref"`    // image reference, or the tar's base name
	File   string `json:"-"`      // path of a root file system or OCI tar
	Digest string `json:"digest"` // sha256:…; "" when only the registry knows
	OCI    bool   `json:"oci,omitempty"`
	Host   bool   `json:"host,omitempty"` // this machine: Digest is of what the build finds there
}

// Plan is everything that will be done for one wheel. Two plans with the same
// Digest give the same wheel.
type Plan struct {
	Toolchain  compat.Toolchain  `json:"-"`
	Options    Options           `json:"-"`
	Source     Source            `json:"-"` // of DeepSpeed
	Base       Base              `json:"base"`
	Dockerfile string            `json:"dockerfile"`
	Context    map[string]string `json:"context"` // files of the build context
	Args       map[string]string `json:"args"`    // build arguments of the Dockerfile, environment of its scripts
	Steps      []Step            `json:"steps"`
	Scripts    map[string]string `json:"scripts"` // contents by name
	Digest     string            `json:"-"`       // hex sha256 over all of the above
	Manifest   wheel.Manifest    `json:"-"`       // of the wheel, as far as the plan knows it
}

// Options are what may change how a plan runs without changing the wheel.
type Options struct {
	Jobs      int  // compile jobs; 0: as many as there are cores
	NoCache   bool // compile and test anew
	KeepDebug bool // leave debug information in; this does change the wheel
}

// epoch stands for every time in the wheel: 2024-01-01T00:00:00Z.
const epoch = "1704067200"

// NewPlan lists the steps that make the wheel tc describes of src on base.
func NewPlan(tc compat.Toolchain, src Source, base Base, opt Options) (*Plan, error) {
	body, context, err := dockerfiles.Toolchain()
	if err != nil {
		return nil, err
	}
	p := &Plan{
		Toolchain: tc, Options: opt, Source: src, Base: base, Context: context, Args: arguments(tc), Scripts: map[string]string{},
	}
	switch {
	case base.Host:
	case base.File != "":
		p.Dockerfile = dockerfiles.FromRootfs() + body
	default:
		p.Dockerfile = dockerfiles.FromImage(base.Ref) + body
	}
	env := buildEnv(tc, src, opt)
	p.Steps = []Step{
		sourceStep(src), compileStep(env), stripStep(tc, opt), packStep(), auditStep(), smokeStep(tc),
	}
	if err := p.seal(); err != nil {
		return nil, err
	}
	p.Manifest = wheel.Manifest{
		Source:       src.Manifest(),
		OpsRequested: tc.OpNames(false), ArchsRequested: wheel.Capabilities(tc.Archs, false),
		Requires: tc.Needs().Node,
		CPU:      string(tc.CPU), Base: wheel.Base{Ref: base.Ref, Digest: base.Digest}, Env: manifestEnv(env),
		Toolchain:  wheel.Toolchain{Name: string(tc.Road), Toolkit: tc.Toolkit, Nvcc: tc.Nvcc},
		PlanDigest: p.Digest,
	}
	return p, nil
}

// arguments are what the scripts of package dockerfiles are told.
func arguments(tc compat.Toolchain) map[string]string {
	needs := tc.Needs()
	return map[string]string{
		"ROAD": string(tc.Road), "PYTHON": tc.Python, "TORCH": tc.Torch, "TORCH_INDEX": tc.Index, "TORCH_SHA256": tc.TorchHash, "TOOLKIT": tc.Toolkit, "GCC": tc.GCC,
		"CUDA_HOME": cudaHome(tc), "PINS": strings.Join(tc.Pins, " "),
		"SYSTEM": strings.Join(needs.Debian, " "), "PACKAGES": strings.Join(needs.Python, " "),
		"COMPONENTS": strings.Join(needs.Toolkit, " "), "REQUIRES": strings.Join(needs.Node, " "),
	}
}

// cudaHome is where the toolkit lies in the toolchain's image. Debian's is part
// of the system, and torch knows that by this very name.
func cudaHome(tc compat.Toolchain) string {
	switch tc.Road {
	case compat.Found:
		return tc.Ground.CUDAHome
	case compat.Debian12:
		return "/usr"
	}
	return "/opt/cuda"
}

// seal reads the scripts the steps name and computes the digest.
func (p *Plan) seal() error {
	for _, s := range p.Steps {
		for _, name := range s.AllScripts() {
			if text, shared := p.Context[name]; shared { // with those that make the images
				p.Scripts[name] = text
				continue
			}
			text, err := scripts.ReadFile("scripts/" + name)
			if err != nil {
				return fmt.Errorf("step %s: %w", s.Name, err)
			}
			p.Scripts[name] = string(text)
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	p.Digest = hex.EncodeToString(sum[:])
	return nil
}

// siteScript tells a script the settings of the site.
const siteScript = "site.sh"

// sourceStep brings the sources. A release is fetched where it is built; all
// others are a clean copy that dsbuild has made, known by its hash.
func sourceStep(src Source) Step {
	if src.Kind != SourceRelease {
		return Step{
			Name: SourceStep, Title: "take DeepSpeed " + src.Version + " from " + src.Ref, Image: Here,
			Env: map[string]string{"DSBUILD_SHA256": src.SHA256},
		}
	}
	return Step{
		Name: SourceStep, Title: "fetch DeepSpeed " + src.Version, Image: Toolchain,
		Script: "source.sh", Scripts: []string{siteScript}, Network: true,
		Env: map[string]string{"DSBUILD_DEEPSPEED": src.Version, "DSBUILD_SHA256": src.SHA256, "DS_ACCELERATOR": "cuda"},
	}
}

func compileStep(env map[string]string) Step {
	return Step{
		Name: CompileStep, Title: "compile the ops", Image: Toolchain, Script: "compile.sh",
		Scripts: append([]string{
			siteScript, "build.py", "bytecode.py", "jobs.py", "nogpu.py", "objects.py", "cxx", "floor.py", "floor.cc", "libaio.map", "nvcc",
			"lean/core/torch/extension.h", "lean/core-python/torch/extension.h", "lean/types/torch/extension.h", "lean/types-python/torch/extension.h",
		}, patchFiles(env)...), Inputs: []string{SourceStep}, Compile: true, Env: env,
	}
}

func stripStep(tc compat.Toolchain, opt Options) Step {
	s := Step{
		Name: StripStep, Title: "strip the ops, compile the modules, note what was installed", Image: Toolchain,
		Script: "strip.py", Scripts: []string{"bytecode.py"}, Inputs: []string{CompileStep}, Env: map[string]string{"DSBUILD_GCC": tc.GCC, "PYTHONHASHSEED": "0"},
	}
	if opt.KeepDebug {
		s.Title, s.Env[wheel.KeepDebugVariable] = "compile the modules, note what was installed", "1"
	}
	return s
}

// packStep names the format in its environment, and so in the plan's digest.
func packStep() Step {
	return Step{
		Name: PackStep, Title: "tag, pin torch, add the manifest and the SBOM", Image: Here, Inputs: []string{StripStep},
		Env: map[string]string{"DSBUILD_PACK": wheel.PackFormat},
	}
}

// manifestEnv leaves out what only says where or how fast things were done.
func manifestEnv(build map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range build {
		if strings.HasPrefix(k, "DS_") || k == "TORCH_CUDA_ARCH_LIST" || k == wheel.KeepDebugVariable {
			out[k] = v
		}
	}
	return out
}

// The steps that others know by name, and the file in which the first notes
// what was installed (a wheel.Build); in NotRunFile the last says why it could
// not run the ops.
const (
	SourceStep  = "source"
	CompileStep = "compile"
	StripStep   = "strip"
	PackStep    = "pack"
	AuditStep   = "audit"
	SmokeStep   = "smoke"
	BuildFile   = "build.json"

	byteCodeFile = "bytecode.xz" // beside BuildFile, where that speaks of it

	NotRunFile = "not-run"
)

func auditStep() Step {
	return Step{
		Name: AuditStep, Title: "open the wheel again and compare it with what was asked", Image: Here, Inputs: []string{PackStep},
	}
}

func smokeStep(tc compat.Toolchain) Step {
	return Step{
		Name: SmokeStep, Title: "install it in a fresh environment and load every op", Image: Runtime,
		Script: "smoke.sh", Scripts: []string{"smoke.py", "bytecode.py", "nogpu.py"}, Inputs: []string{CompileStep, PackStep},
		Env:  map[string]string{"DS_ACCELERATOR": "cuda", "DSBUILD_CPU": string(tc.CPU)},
		Args: tc.OpNames(false), Ahead: true,
	}
}

// buildEnv is the environment of the compile step.
func buildEnv(tc compat.Toolchain, src Source, opt Options) map[string]string {
	env := map[string]string{
		// Without it a machine with no GPU builds for the accelerator "cpu",
		// where utils does not exist and is left out silently.
		"DS_ACCELERATOR":  "cuda",
		"DS_ENABLE_NINJA": "1",
		"DS_BUILD_STRING": "+" + src.local() + wheel.LocalVersion(tc.Torch, tc.CUDA, tc.Archs, tc.HasDeviceCode(), tc.CPU),
		"DSBUILD_CPU":     string(tc.CPU),
		"DSBUILD_GCC":     tc.GCC,
		"DSBUILD_OPS":     opArchs(tc),
		// DeepSpeed names the standard of the torch that it was released for.
		"DSBUILD_CXX_STANDARD": tc.Standard,
		// What an extension needs of the C and C++ libraries is older than those of the
		// base: no newer than torch itself needs, since 2.7.
		"DSBUILD_FLOOR":    wheel.PlatformFloors(compat.LinkGlibc).Versions(),
		"CCACHE_MAXSIZE":   "5G",
		"CCACHE_NOHASHDIR": "1",
		// A compiler is its bytes, not when it was installed: a toolchain that is
		// made anew, or on another machine, finds what another has compiled.
		"CCACHE_COMPILERCHECK": "content",
		// torch would put ccache before the wrapper, where it cannot see what
		// the wrapper decides.
		"TORCH_NO_COMPILER_WRAPPER": "1",
		"SOURCE_DATE_EPOCH":         epoch,
		"PYTHONHASHSEED":            "0",
	}
	if tc.Nvcc && !strings.HasPrefix(tc.Toolkit+".", tc.CUDA+".") {
		// Of one major they work together; DeepSpeed knows only pairs that were
		// there when it was released.
		env["DS_SKIP_CUDA_CHECK"] = "1"
	}
	if len(tc.Archs) > 0 {
		env["TORCH_CUDA_ARCH_LIST"] = wheel.ArchList(tc.Archs)
	}
	for _, op := range tc.Ops {
		env[op.Variable] = "1"
	}
	if names := tc.Patches(); len(names) > 0 {
		env["DSBUILD_PATCHES"] = strings.Join(names, " ")
	}
	if opt.KeepDebug {
		env[wheel.KeepDebugVariable] = "1"
	}
	return env
}

// opArchs names the ops, each with its archs where it does not get all.
func opArchs(tc compat.Toolchain) string {
	var words []string
	for _, o := range tc.Ops {
		if o.DeviceCode && !slices.Equal(o.Archs, tc.Archs) {
			o.Name += "=" + wheel.ArchList(o.Archs)
		}
		words = append(words, o.Name)
	}
	return strings.Join(words, " ")
}

// patchFiles are the scripts' names of the patches in a build's environment.
func patchFiles(env map[string]string) []string {
	var files []string
	for _, name := range strings.Fields(env["DSBUILD_PATCHES"]) {
		files = append(files, "patches/"+name+".patch")
	}
	return files
}

// Audit opens the wheel at file and compares it with its own words and with
// what the plan asks for; an error is a *wheel.AuditError with every difference.
func (p *Plan) Audit(ctx context.Context, file string) error {
	_, err := p.audited(ctx, file)
	return err
}

// audited is Audit, with what the wheel holds. An extension that needs newer
// libraries than it was linked for says by which symbols.
func (p *Plan) audited(ctx context.Context, file string) (wheel.Contents, error) {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return wheel.Contents{}, err
	}
	if err := v.Contents.NameNewest(file, cmp.Or(p.Toolchain.Glibc, compat.LinkGlibc)); err != nil {
		return wheel.Contents{}, err
	}
	findings := append(p.compare(v.Contents), v.Findings()...)
	if v.Manifest == nil || v.Manifest.PlanDigest != p.Digest {
		findings = append(findings, "its manifest names another plan")
	}
	if len(findings) > 0 {
		return wheel.Contents{}, wheel.NotAsked(filepath.Base(file), findings)
	}
	return v.Contents, nil
}

func (p *Plan) compare(c wheel.Contents) []string {
	archs := map[string][]wheel.Arch{}
	for _, o := range p.Toolchain.Ops {
		if o.DeviceCode {
			archs[o.Name] = o.Archs
		}
	}
	return wheel.Audit(c, wheel.Want{
		Ops: p.Toolchain.OpNames(false), Archs: archs, CPU: p.Toolchain.CPU, Glibc: p.Toolchain.Glibc, KeepDebug: p.Options.KeepDebug,
	})
}

// Print writes the plan for people: each step with its image, environment and
// command.
func (p *Plan) Print(w io.Writer) error {
	tc := p.Toolchain
	var b strings.Builder
	fmt.Fprintf(&b, "DeepSpeed %s for torch %s, CUDA %s, Python %s, %s\n", tc.DeepSpeed, tc.Torch, tc.CUDA, tc.Python, tc.CPU)
	fmt.Fprintf(&b, "ops %s\narchs %s\n", strings.Join(tc.OpNames(false), ", "), archsOrNone(tc))
	fmt.Fprintf(&b, "\nbase       %s\n             %s, glibc %s\n", strings.TrimSpace(p.Base.Ref+" "+p.Base.Digest), tc.Ground.Name, tc.Ground.Glibc)
	fmt.Fprintf(&b, "toolchain  %s\n", tc.Road)
	printVariables(&b, p.Args)
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%-10s %s (in %s)\n", s.Name, s.Title, s.Image)
		printVariables(&b, s.Env)
		if s.Image != Here {
			fmt.Fprintf(&b, "             $ %s\n", strings.Join(append([]string{s.Script}, s.Args...), " "))
		}
	}
	for _, left := range tc.Left {
		fmt.Fprintf(&b, "left out   %s: %s\n", left.Name, left.Why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printVariables prints those that say something.
func printVariables(w io.Writer, variables map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(variables)) {
		if variables[k] != "" {
			fmt.Fprintf(w, "             %s=%s\n", k, variables[k])
		}
	}
}

func archsOrNone(tc compat.Toolchain) string {
	if len(tc.Archs) == 0 {
		return "none: no op has device code"
	}
	return wheel.ArchList(tc.Archs)
}
