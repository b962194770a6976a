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
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

//go:embed scripts
var scripts embed.FS

// Image is the image of the toolchain that a step runs in.
type Image string

// The images of a toolchain's Dockerfile, and the value for steps that dsbuild runs itself.
const (
	Runtime   Image = "runtime"   // the software that nodes have
	Toolchain Image = "toolchain" // runtime, compilers and CUDA toolkit; of an additional part "toolchain-cu12"
	Local     Image = "dsbuild"   // no image: this process runs the step
)

// Step is one command of a plan. It gets its directories in environment variables (Places). Env
// must be the same in every run.
type Step struct {
	Name    string            `json:"name"`
	Title   string            `json:"title"` // human-readable
	Image   Image             `json:"image"`
	Script  string            `json:"script,omitempty"`  // a shell or Python script of the plan
	Args    []string          `json:"args,omitempty"`    // its arguments
	Scripts []string          `json:"scripts,omitempty"` // additional scripts that it uses
	Inputs  []string          `json:"inputs,omitempty"`  // steps whose output it reads
	Env     map[string]string `json:"env,omitempty"`
	Network bool              `json:"network,omitempty"` // downloads something
	Compile bool              `json:"compile,omitempty"` // has the object cache
}

// Command returns the command line of the step, with its scripts in the directory tools.
func (s Step) Command(tools string) []string {
	interpreter := "sh"
	if path.Ext(s.Script) == ".py" {
		interpreter = "python"
	}
	return append([]string{interpreter, tools + "/" + s.Script}, s.Args...)
}

// AllScripts lists the step's script and the scripts that it uses.
func (s Step) AllScripts() []string {
	if s.Script == "" {
		return nil
	}
	return append([]string{s.Script}, s.Scripts...)
}

// Places are the directories of a step. Its scripts read them from the variables of Env.
type Places struct {
	Tools string // scripts: DSBUILD_TOOLS
	In    string // outputs of earlier steps, each in a directory with the step's name: DSBUILD_IN
	Out   string // its own output: DSBUILD_OUT
	Work  string // empty, only for this step: DSBUILD_WORK
	Cache string // cached objects, for steps that compile: DSBUILD_OBJECTS, and within it CCACHE_DIR
}

// Env returns the environment variables with the places, for the scripts of s. Images add
// DSBUILD_ENV, the Python environment, and CUDA_HOME.
func (p Places) Env(s Step) map[string]string {
	env := map[string]string{
		"DSBUILD_TOOLS": p.Tools, "DSBUILD_IN": p.In, "DSBUILD_OUT": p.Out, "DSBUILD_WORK": p.Work,
	}
	if s.Compile {
		env["DSBUILD_OBJECTS"], env["CCACHE_DIR"] = p.Cache, p.Cache+"/ccache"
	}
	return env
}

// Base is the root file system under the toolchain: an image reference, or a tar file if File is
// set.
type Base struct {
	Ref    string `json:"ref"`    // image reference, or the tar's base name
	File   string `json:"-"`      // path of a root file system or OCI tar
	Digest string `json:"digest"` // sha256:…, or "" if only the registry knows it
	OCI    bool   `json:"oci,omitempty"`
	Host   bool   `json:"host,omitempty"` // this machine: Digest covers its tools
}

// Part is a part of a wheel that one toolchain compiles: the first part is every op, each additional part some ops for
// another CUDA or CPU level (compat.Tables.Variants).
type Part struct {
	compat.Toolchain
	Packages dockerfiles.Packages // of the toolchain's image; unused if the part shares the first part's image
}

// Environment has the inputs of an image, in addition to the plan's Dockerfile and base.
type Environment struct {
	Context map[string]string `json:"context"` // files of the build context
	Args    map[string]string `json:"args"`    // build arguments of the Dockerfile, environment of its scripts

	// Packages are all Python packages that may be installed, each with the sha256 of its file.
	// They are also in Context.
	Packages []dockerfiles.Package `json:"packages"`

	Toolchain compat.Toolchain `json:"-"`
}

// Plan lists all steps of a build. Plans with equal Digests give equal wheels.
type Plan struct {
	Name       string            `json:"-"` // for messages, if there are several wheels
	Key        string            `json:"-"` // of the wheel in the store (KeyOf)
	Parts      []Part            `json:"-"`
	KeepDebug  bool              `json:"-"` // keep debug information
	Source     Source            `json:"-"` // of DeepSpeed
	Base       Base              `json:"base"`
	Dockerfile string            `json:"dockerfile"`
	Context    map[string]string `json:"context"` // this and the next, of the first part: see Environment
	Args       map[string]string `json:"args"`
	Steps      []Step            `json:"steps"`
	Scripts    map[string]string `json:"scripts"` // contents by name

	Packages []dockerfiles.Package `json:"packages"` // of the first part: see Environment

	// Environments has an entry for each additional part with its own image.
	Environments map[Image]Environment `json:"environments,omitempty"`

	Digest   string         `json:"-"` // hex sha256 over all of the above
	Manifest wheel.Manifest `json:"-"` // of the wheel, as far as it is known
}

// Toolchain returns the first part's toolchain. It is used for the images Runtime and Toolchain, and by all steps
// except those that compile other parts.
func (p *Plan) Toolchain() compat.Toolchain { return p.Parts[0].Toolchain }

// Environment returns the inputs of an image.
func (p *Plan) Environment(image Image) Environment {
	if e, ok := p.Environments[image]; ok {
		return e
	}
	return Environment{p.Context, p.Args, p.Packages, p.Toolchain()}
}

// epoch is used for every time in the wheel: 2024-01-01T00:00:00Z.
const epoch = "1704067200"

// NewPlan returns the plan for a wheel of src on base.
func NewPlan(parts []Part, src Source, base Base, keepDebug bool) (*Plan, error) {
	tc := parts[0].Toolchain
	body, context, err := dockerfiles.Toolchain(tc.BuildMachine())
	if err != nil {
		return nil, err
	}
	first := newEnvironment(parts[0], context)
	p := &Plan{
		Parts: parts, KeepDebug: keepDebug, Source: src, Base: base,
		Context: first.Context, Args: first.Args, Packages: first.Packages, Scripts: map[string]string{},
	}
	switch {
	case base.Host:
	case base.File != "":
		p.Dockerfile = dockerfiles.FromRootfs() + body
	default:
		p.Dockerfile = dockerfiles.FromImage(base.Ref) + body
	}
	env := buildEnv(tc, keepDebug)
	p.Manifest = newManifest(parts, src, base, env)
	compile := compileStep(p, env)
	p.Steps = append([]Step{sourceStep(src), compile}, p.furtherSteps(context)...)
	p.Steps = append(p.Steps, p.stripStep(), packStep(tc),
		Step{
			Name: AuditStep, Title: "reopen the wheel and compare it with the request", Image: Local,
			Inputs: []string{PackStep},
		},
		p.smokeStep())
	if err := p.setDigest(); err != nil {
		return nil, err
	}
	p.Manifest.PlanDigest = p.Digest
	return p, nil
}

// newEnvironment returns the inputs of a part's image, with the files of context.
func newEnvironment(part Part, context map[string]string) Environment {
	tc, packages := part.Toolchain, part.Packages
	e := Environment{
		Context: maps.Clone(context), Args: imageArgs(tc, packages), Toolchain: tc,
		Packages: slices.Concat(dockerfiles.ToolPackages(string(tc.CUDASource), tc.BuildMachine()),
			packages.Runtime, packages.Build),
	}
	e.Context[dockerfiles.RuntimePackages] = dockerfiles.Constraints(packages.Runtime)
	e.Context[dockerfiles.AllPackages] = dockerfiles.Constraints(packages.Runtime, packages.Build)
	if tc.IsCross() {
		e.Context[dockerfiles.ArmPackages] = dockerfiles.Constraints(dockerfiles.LockedForArm(tc.Python))
	}
	return e
}

// variant returns the part of file names that distinguishes the libraries of an additional part, and the first part's
// libraries of the same ops.
func (p *Plan) variant(part Part) (name, first string) {
	tc := p.Toolchain()
	if part.HasDeviceCode() {
		return part.CUDAVariant().Name, tc.CUDAVariant().Name
	}
	return part.CPU.Short(), tc.CPU.Short()
}

// furtherSteps returns the steps that compile the additional parts, and records their environments.
func (p *Plan) furtherSteps(context map[string]string) []Step {
	var steps []Step
	for _, part := range p.Parts[1:] {
		env := buildEnv(part.Toolchain, p.KeepDebug)
		name, _ := p.variant(part)
		s := compileStep(p, env)
		s.Name, s.Title, env[partVariable] = CompileStep+"-"+name, "compile the ops for "+name, name
		s.Scripts = append(s.Scripts, "strip.py", "variants.py")
		if part.CUDASource != p.Toolchain().CUDASource {
			s.Image = Toolchain + "-" + Image(name)
			if p.Environments == nil {
				p.Environments = map[Image]Environment{}
			}
			p.Environments[s.Image] = newEnvironment(part, context)
		}
		steps = append(steps, s)
	}
	return steps
}

// newManifest returns a wheel's manifest, as far as it is known before the plan's digest. env is the environment of
// the first compile step, to which the manifest adds the version.
func newManifest(parts []Part, src Source, base Base, env map[string]string) wheel.Manifest {
	tc := parts[0].Toolchain
	m := wheel.Manifest{
		Source:       src.Manifest(),
		OpsRequested: tc.OpNames(false), ArchsRequested: []string{},
		Requires: tc.Needs().Node, Variants: compat.VariantsOf(lists.Map(parts, func(p Part) compat.Toolchain { return p.Toolchain })),
		CPU: string(tc.CPU), Base: wheel.Base{Ref: base.Ref, Digest: base.Digest}, Env: manifestEnv(env),
		Toolchain: wheel.Toolchain{Name: string(tc.CUDASource), Toolkit: tc.Toolkit, Nvcc: tc.Nvcc},
	}
	for _, a := range tc.Archs {
		if !tc.EveryGPU {
			m.ArchsRequested = append(m.ArchsRequested, a.String())
		}
	}
	targets := ""
	if tc.ABI == wheel.StableABI {
		m.TorchABI = &wheel.TorchABI{Stable: true, Min: compat.StableTorch}
		m.Torch, m.CUDA, m.Python = tc.Serves()
		if slices.ContainsFunc(m.Variants, func(v wheel.Variant) bool { return v.CUDA != "" }) {
			m.CUDA = ""
		}
		m.Recipe, targets = recipe(), m.Label(tc.AllOps)
	} else {
		targets = wheel.LocalVersion(tc.Torch, tc.CUDA, tc.Archs, tc.EveryGPU, tc.CPU)
	}
	m.Env[versionVariable] = ""
	if local := strings.Trim(src.localVersion()+"."+targets, "."); local != "" {
		m.Env[versionVariable] = "+" + local
	}
	return m
}

// imageArgs returns the arguments of the scripts of package dockerfiles.
func imageArgs(tc compat.Toolchain, packages dockerfiles.Packages) map[string]string {
	needs := tc.Needs()
	home := "/opt/cuda" // directory of the toolkit in the toolchain's image
	switch tc.CUDASource {
	case compat.FoundCUDA:
		home = tc.Environment.CUDAHome
	case compat.Debian12: // Debian's toolkit is part of the system, and torch expects exactly this name
		home = "/usr"
	}
	cuda := dockerfiles.CUDARequirements(string(tc.CUDASource), tc.Toolkit)
	return map[string]string{
		"CROSS": crossMachine(tc), "CUDA_SOURCE": string(tc.CUDASource),
		"PYTHON": tc.Python, "TORCH": tc.Torch, "TORCH_INDEX": tc.Index,
		"TOOLKIT": tc.Toolkit, "GCC": tc.GCC,
		"CUDA_HOME": home, "CUDA_PACKAGES": strings.Join(packages.Pinned(cuda), " "),
		"PACKAGES":   strings.Join(needs.Python, " "),
		"COMPONENTS": strings.Join(needs.Toolkit, " "), "REQUIRES": strings.Join(needs.Node, " "),
	}
}

// crossMachine returns the wheel's machine if a different machine builds it, and "" otherwise.
func crossMachine(tc compat.Toolchain) string {
	if tc.IsCross() {
		return tc.CPU.Machine()
	}
	return ""
}

// addArchives adds the hashes of archives, from the plan, to the packages that the build installed.
// Other packages were already in the environment that the build is for.
func (p *Plan) addArchives(installed []wheel.Package) {
	pinned := slices.Clone(p.Packages)
	for _, e := range p.Environments {
		pinned = append(pinned, e.Packages...)
	}
	for i, have := range installed {
		name, version, python := have.Python()
		at := slices.IndexFunc(pinned, func(one dockerfiles.Package) bool {
			return one.Name == name && one.Version == version
		})
		if python && !have.Beside && at >= 0 {
			installed[i].Archive = pinned[at].SHA256
		}
	}
}

// LockedPackages returns the Python packages of a toolchain if they are in the lock of package
// dockerfiles: for a torch from the package index, in a release in the tables, and for builds on
// x86_64.
func LockedPackages(tc compat.Toolchain) (dockerfiles.Packages, bool) {
	if tc.Index != "" || tc.BuildMachine() != wheel.X86 {
		return dockerfiles.Packages{}, false
	}
	needs := tc.Needs()
	return dockerfiles.LockedPackages(tc.Torch, tc.Python, string(tc.CUDASource),
		slices.Concat(needs.Python, needs.Node), tc.Pins)
}

// setDigest reads the scripts of the steps and computes the digest.
func (p *Plan) setDigest() error {
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

// siteScript passes the site's settings to a script.
const siteScript = "site.sh"

// sourceStep provides the sources. A release is downloaded in the build; all other sources are a
// clean copy, identified by its hash.
func sourceStep(src Source) Step {
	if src.Kind != SourceRelease {
		return Step{
			Name: SourceStep, Title: "take DeepSpeed " + src.Version + " from " + src.Ref, Image: Local,
			Env: map[string]string{"DSBUILD_SHA256": src.SHA256},
		}
	}
	return Step{
		Name: SourceStep, Title: "fetch DeepSpeed " + src.Version, Image: Toolchain,
		Script: "source.sh", Scripts: []string{siteScript}, Network: true,
		Env: map[string]string{"DSBUILD_DEEPSPEED": src.Version, "DSBUILD_SHA256": src.SHA256, "DS_ACCELERATOR": "cuda"},
	}
}

// compileStep returns the step that compiles the first part.
func compileStep(p *Plan, env map[string]string) Step {
	if env[versionVariable] = p.Manifest.Env[versionVariable]; env[versionVariable] == "" {
		env["GIT_DIR"] = "/dev/null" // setup.py runs git, which could find a checkout around the sources
	}
	if len(p.Parts) > 1 {
		env["DSBUILD_TURNS"] = p.turns()
	}
	patches := lists.Map(strings.Fields(env["DSBUILD_PATCHES"]), func(name string) string {
		return "patches/" + name + ".patch"
	})
	return Step{
		Name: CompileStep, Title: "compile the ops", Image: Toolchain, Script: CompileScript,
		Scripts: append([]string{
			siteScript, "build.py", "bytecode.py", "jobs.py", "nogpu.py", "objects.py", "cxx",
			"floor.py", "floor.cc", "libaio.c", "libaio.h", "nvcc",
		}, slices.Concat(patches, stableFiles(env))...),
		Inputs: []string{SourceStep}, Compile: true, Env: env,
	}
}

// CompileScript is the script of the compile steps.
const CompileScript = "compile.sh"

// partVariable is the name of an additional part, in the environment of its compile step.
const partVariable = "DSBUILD_PART"

// turns returns a number for jobs.py that is the same for all parts of a wheel and unique to it.
func (p *Plan) turns() string {
	sum := sha256.Sum256([]byte(fmt.Sprint(p.Source.Version, p.Source.SHA256, p.Manifest.Variants, p.Manifest.Env)))
	return hex.EncodeToString(sum[:4])
}

// stableFiles returns the names of the scripts and headers for torch's stable ABI, if env selects it.
func stableFiles(env map[string]string) []string {
	if env[abiVariable] != string(wheel.StableABI) {
		return nil
	}
	files := []string{"stable.py"}
	err := fs.WalkDir(scripts, "scripts/stable", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(name, "scripts/"))
		}
		return err
	})
	if err != nil {
		panic(err) // embedded in the program
	}
	if env[crossVariable] != "" {
		files = append(files, "standins.py")
	}
	return files
}

// crossVariable passes the wheel's machine to steps, if a different machine builds it.
const crossVariable = "DSBUILD_CROSS"

// abiVariable passes the ABI to the compile step, unless it is torch's C++ interface.
const abiVariable = "DSBUILD_ABI"

func (p *Plan) stripStep() Step {
	tc := p.Toolchain()
	s := Step{
		Name: StripStep, Title: "strip the ops, compile the modules, record the installed packages", Image: Toolchain,
		Script: "strip.py", Scripts: []string{"bytecode.py", "variants.py"}, Inputs: []string{CompileStep},
		Env: map[string]string{"DSBUILD_GCC": tc.GCC, "PYTHONHASHSEED": "0"},
	}
	addCross(s.Env, tc)
	if tc.ABI == wheel.StableABI {
		s.Scripts = append(s.Scripts, "stable/loader.py")
		s.Env[abiVariable], s.Env["DSBUILD_CPU"] = string(wheel.StableABI), string(tc.CPU)
		s.Env["DSBUILD_GPU_OPS"] = strings.Join(tc.OpNames(true), " ")
	}
	var joined []string
	for _, part := range p.Parts[1:] {
		name, first := p.variant(part)
		step := CompileStep + "-" + name
		s.Inputs, joined = append(s.Inputs, step), append(joined, step+":"+name+":"+first)
	}
	if len(joined) > 0 {
		s.Title = "join the parts, " + s.Title
		s.Env["DSBUILD_VARIANTS"] = strings.Join(joined, " ")
	}
	if p.KeepDebug {
		s.Title, s.Env[wheel.KeepDebugVariable] = "compile the modules, record the installed packages", "1"
	}
	return s
}

// packStep has the format in its environment, so that it is part of the plan's digest.
func packStep(tc compat.Toolchain) Step {
	s := Step{
		Name: PackStep, Title: "tag, pin torch, add the manifest and the SBOM", Image: Local, Inputs: []string{StripStep},
		Env: map[string]string{"DSBUILD_PACK": wheel.PackFormat},
	}
	if tc.ABI == wheel.StableABI {
		s.Env["DSBUILD_PACK_STABLE"] = wheel.StablePackFormat
	}
	return s
}

// manifestEnv omits the variables for paths and speed, which do not change the wheel.
func manifestEnv(build map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range build {
		if strings.HasPrefix(k, "DS_") || k == "TORCH_CUDA_ARCH_LIST" || k == wheel.KeepDebugVariable {
			out[k] = v
		}
	}
	return out
}

// The names of steps that other code uses. The strip step writes BuildFile, which describes the
// build environment (a wheel.Build). The smoke step writes NotRunFile, with the reason, if it
// could not run the ops.
const (
	SourceStep  = "source"
	CompileStep = "compile"
	StripStep   = "strip"
	PackStep    = "pack"
	AuditStep   = "audit"
	SmokeStep   = "smoke"
	BuildFile   = "build.json"

	byteCodeFile = "bytecode.xz" // next to BuildFile, if listed there

	NotRunFile = "not-run"
)

// smokeStep passes the ops with device code to the script, because they load without a GPU, but do
// not run.
func (p *Plan) smokeStep() Step {
	tc := p.Toolchain()
	s := Step{
		Name: SmokeStep, Title: "install it in a fresh environment and load every op", Image: Runtime,
		Script: "smoke.sh", Scripts: []string{"smoke.py", "bytecode.py", "nogpu.py"}, Inputs: []string{CompileStep, PackStep},
		Env: map[string]string{
			"DS_ACCELERATOR":  "cuda",
			"DSBUILD_CPU":     string(tc.CPU),
			"DSBUILD_GPU_OPS": strings.Join(tc.OpNames(true), " "),
		},
		Args: tc.OpNames(false),
	}
	if tc.IsCross() {
		s.Image = Toolchain // which has a Python of the wheel's machine
	}
	addCross(s.Env, tc)
	if levels := p.Manifest.CPUs(); len(levels) > 1 {
		s.Env["DSBUILD_LEVELS"] = strings.Join(lists.Map(levels, wheel.CPULevel.Short), " ")
		s.Env["DSBUILD_LEVEL_OPS"] = strings.Join(p.Parts[len(p.Parts)-1].OpNames(false), " ")
	}
	return s
}

// addCross adds crossVariable to the environment of a step for a cross build.
func addCross(env map[string]string, tc compat.Toolchain) {
	if machine := crossMachine(tc); machine != "" {
		env[crossVariable] = machine
	}
}

// versionVariable is the local part of the version, for DeepSpeed's setup.py. An empty value means no local part for
// a release's sources.
const versionVariable = "DS_BUILD_STRING"

// buildEnv returns the environment of the compile step, without versionVariable.
func buildEnv(tc compat.Toolchain, keepDebug bool) map[string]string {
	env := map[string]string{
		// Without it, a machine without a GPU builds for the accelerator "cpu", which silently
		// omits utils.
		"DS_ACCELERATOR":  "cuda",
		"DS_ENABLE_NINJA": "1",
		"DSBUILD_CPU":     string(tc.CPU),
		"DSBUILD_GCC":     tc.GCC,
		"DSBUILD_OPS":     opArchs(tc),
		// DeepSpeed itself sets the C++ standard of the torch that it was released for.
		"DSBUILD_CXX_STANDARD": tc.Standard,
		// Extensions may require only the C and C++ libraries that torch has required since 2.7.
		// The base's libraries are newer.
		"DSBUILD_FLOOR":    wheel.PlatformFloors(compat.LinkGlibc, tc.CPU.Machine()).Versions(),
		"CCACHE_MAXSIZE":   "5G",
		"CCACHE_NOHASHDIR": "1",
		// ccache identifies a compiler by its bytes, not by its time of installation, so that a
		// recreated toolchain, also on another machine, finds the objects of an earlier one.
		"CCACHE_COMPILERCHECK": "content",
		// torch would run ccache before the wrapper, so that ccache would not see the wrapper's
		// changes.
		"TORCH_NO_COMPILER_WRAPPER": "1",
		"SOURCE_DATE_EPOCH":         epoch,
		"PYTHONHASHSEED":            "0",
	}
	if tc.Nvcc && !strings.HasPrefix(tc.Toolkit+".", tc.CUDA+".") {
		// Toolkits of one major version are compatible. DeepSpeed knows only the pairs that existed
		// when it was released.
		env["DS_SKIP_CUDA_CHECK"] = "1"
	}
	if len(tc.Archs) > 0 {
		env["TORCH_CUDA_ARCH_LIST"] = wheel.ArchList(tc.Archs)
	}
	for _, op := range tc.Ops {
		env[op.Variable] = "1"
	}
	if tc.ABI == wheel.StableABI {
		env[abiVariable], env["DSBUILD_TORCH_MIN"] = string(wheel.StableABI), compat.StableTorch
		// dsbuild's headers need C++20 with every torch.
		env["DSBUILD_CXX_STANDARD"] = "20"
	}
	addCross(env, tc)
	if names := tc.Patches(); len(names) > 0 {
		env["DSBUILD_PATCHES"] = strings.Join(names, " ")
	}
	if keepDebug {
		env[wheel.KeepDebugVariable] = "1"
	}
	return env
}

// opArchs returns the names of the ops. The archs follow the name of an op that is not built for
// all archs.
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

// auditContents opens the wheel at file and compares it with its own metadata and with the plan.
// An error about differences lists every one. If an extension needs
// newer libraries than requested, the error names the symbols.
func (p *Plan) auditContents(ctx context.Context, file string) (wheel.Contents, error) {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return wheel.Contents{}, err
	}
	if err := v.Contents.NameNewest(file, cmp.Or(p.Toolchain().Glibc, compat.LinkGlibc)); err != nil {
		return wheel.Contents{}, err
	}
	findings := append(p.auditFindings(v.Contents, p.Toolchain().Glibc), v.Findings()...)
	if v.Manifest == nil || v.Manifest.PlanDigest != p.Digest {
		findings = append(findings, "the manifest names another plan")
	}
	if len(findings) > 0 {
		return wheel.Contents{}, wheel.MismatchError(filepath.Base(file), findings)
	}
	return v.Contents, nil
}

// audit compares a finished wheel with its own metadata and with the plan, except the glibc, because the same wheel
// may have been built for other nodes.
func (p *Plan) audit(ctx context.Context, file string) error {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return err
	}
	if findings := append(p.auditFindings(v.Contents, ""), v.Findings()...); len(findings) > 0 {
		return wheel.MismatchError(filepath.Base(file), findings)
	}
	return nil
}

// auditFindings compares the content of a wheel with the plan. If glibc is empty, it is not
// compared.
func (p *Plan) auditFindings(c wheel.Contents, glibc string) []string {
	archs, tc := map[string][]wheel.Arch{}, p.Toolchain()
	for _, o := range tc.Ops {
		if o.DeviceCode {
			archs[o.Name] = o.Archs
		}
	}
	return wheel.Audit(c, wheel.Want{
		Ops: tc.OpNames(false), Archs: archs, Variants: p.Manifest.Variants, CPU: tc.CPU,
		Glibc: glibc, KeepDebug: p.KeepDebug, TorchABI: p.Manifest.TorchABI,
	})
}

// PrintSummary writes a human-readable summary of the plan, in about ten lines. builder describes the builder;
// stored reports a cache hit.
func (p *Plan) PrintSummary(w io.Writer, builder string, stored bool) error {
	var target [][]string
	for _, line := range p.target() {
		target = append(target, []string{line})
	}
	if err := ui.Table(w, nil, target); err != nil {
		return err
	}
	tc := p.Toolchain()
	toolchains, packages := string(tc.CUDASource), len(p.Packages)
	for _, image := range slices.Sorted(maps.Keys(p.Environments)) {
		toolchains += " and " + string(p.Environments[image].Toolchain.CUDASource)
		packages += len(p.Environments[image].Packages)
	}
	disk, took := "25 GB", p.duration()
	if p.Base.Host {
		disk = "15 GB" // without an engine and images
	}
	if stored {
		took = "about a second (cached)"
	}
	facts := [][]string{
		{""},
		{"builder", builder},
		{"base", fmt.Sprintf("%s: %s, glibc %s", p.Base.Ref, tc.Environment.Name, tc.Environment.Glibc)},
		{"toolchain", fmt.Sprintf("%s, and %d Python packages", toolchains, packages)},
		{"disk", "up to " + disk + " for a first build with this toolchain"},
		{"time", took},
	}
	for _, left := range tc.SkippedOps {
		facts = append(facts, []string{"skipped", left.Name + ": " + left.Why})
	}
	return ui.Table(w, nil, facts)
}

// duration describes the estimated time of a build.
func (p *Plan) duration() string {
	sets := 0 // builds of device code
	for _, part := range p.Parts {
		for _, op := range part.Ops {
			sets += len(op.Archs)
		}
	}
	if sets > 30 {
		return "1 to 2 hours on two cores (device code for many GPUs)"
	}
	return "a few minutes"
}

// line describes the wheel and the time of its build in one line.
func (p *Plan) line() string {
	return strings.Join(append(p.target(), "time "+p.duration()), "; ")
}

// target returns lines with the versions, ops and archs of the wheel.
func (p *Plan) target() []string {
	tc := p.Toolchain()
	torch, cuda, python := tc.Serves()
	if tc.ABI == wheel.StableABI {
		torch += " or newer (stable ABI, built with " + tc.Torch + ")"
		cuda = lists.And(p.Manifest.CUDAs())
	}
	if cuda != "" {
		torch += ", CUDA " + cuda
	}
	lines := []string{
		fmt.Sprintf("DeepSpeed %s for torch %s, Python %s, %s", tc.DeepSpeed, torch, python,
			lists.And(lists.Map(p.Manifest.CPUs(), func(l wheel.CPULevel) string { return string(l) }))),
		"ops " + strings.Join(tc.OpNames(false), ", "),
	}
	if len(tc.Archs) == 0 {
		lines = append(lines, "archs none: no op has device code")
	}
	for _, part := range p.Parts {
		if !part.HasDeviceCode() {
			continue
		}
		line := "archs " + wheel.ArchList(part.Archs)
		if len(p.Environments) > 0 {
			_, cuda, _ := part.Serves()
			line += " (CUDA " + cuda + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

// Print writes the complete plan in human-readable form: each step with its image, environment and
// command.
func (p *Plan) Print(w io.Writer) error {
	tc := p.Toolchain()
	var b strings.Builder
	b.WriteString(strings.Join(p.target(), "\n") + "\n")
	fmt.Fprintf(&b, "\nbase       %s\n             %s, glibc %s\n",
		strings.TrimSpace(p.Base.Ref+" "+p.Base.Digest), tc.Environment.Name, tc.Environment.Glibc)
	fmt.Fprintf(&b, "toolchain  %s\n", tc.CUDASource)
	printVariables(&b, p.Args)
	further := slices.Sorted(maps.Keys(p.Environments))
	for _, image := range further {
		fmt.Fprintf(&b, "%s %s\n", image, p.Environments[image].Toolchain.CUDASource)
		printVariables(&b, p.Environments[image].Args)
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%-10s %s (in %s)\n", s.Name, s.Title, s.Image)
		printVariables(&b, s.Env)
		if s.Image != Local {
			fmt.Fprintf(&b, "             $ %s\n", strings.Join(append([]string{s.Script}, s.Args...), " "))
		}
	}
	for _, image := range append([]Image{Toolchain}, further...) {
		packages, of := p.Environment(image).Packages, ""
		if image != Toolchain {
			of = " of " + string(image)
		}
		fmt.Fprintf(&b, "packages   %d Python packages%s, pinned by sha256\n", len(packages), of)
		for _, one := range packages {
			fmt.Fprintf(&b, "             %s  %s\n", one.SHA256, one)
		}
	}
	for _, left := range tc.SkippedOps {
		fmt.Fprintf(&b, "skipped    %s: %s\n", left.Name, left.Why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printVariables prints the variables that are not empty.
func printVariables(w io.Writer, variables map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(variables)) {
		if variables[k] != "" {
			fmt.Fprintf(w, "             %s=%s\n", k, variables[k])
		}
	}
}
