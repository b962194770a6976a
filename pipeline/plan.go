// Package pipeline turns a resolved toolchain into a wheel: a pure, printable
// Plan, the builders that run one, and the store of finished wheels.
package pipeline

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

// Step is one command of a plan. It finds the outputs of earlier steps as
// directories /in/NAME, its scripts in /dsbuild, and leaves its own output
// in /out. Its environment holds nothing that differs from run to run.
type Step struct {
	Name    string            `json:"name"`
	Title   string            `json:"title"` // what it does, for people
	Image   Image             `json:"image"`
	Scripts []string          `json:"scripts,omitempty"`
	Inputs  []string          `json:"inputs,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Argv    []string          `json:"argv,omitempty"`
	Network bool              `json:"network,omitempty"` // fetches something
	Compile bool              `json:"compile,omitempty"` // has the object cache at /ccache
}

// Base is the root file system under the toolchain: an image reference, or a
// tar file when File is set.
type Base struct {
	Ref    string `json:"ref"`    // image reference, or the tar's base name
	File   string `json:"-"`      // path of a root file system or OCI tar
	Digest string `json:"digest"` // sha256:…; "" when only the registry knows
	OCI    bool   `json:"oci,omitempty"`
}

// Plan is everything that will be done for one wheel. Two plans with the same
// Digest give the same wheel.
type Plan struct {
	Toolchain  compat.Toolchain  `json:"-"`
	Options    Options           `json:"-"`
	Base       Base              `json:"base"`
	Dockerfile string            `json:"dockerfile"`
	Context    map[string]string `json:"context"` // files of the build context
	Args       map[string]string `json:"args"`    // build arguments of the Dockerfile
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

// Places inside the images. They are fixed, for they end up in bytes.
const (
	sourceDir = "/build/src"
	ccacheDir = "/ccache"
	// epoch stands for every time in the wheel: 2024-01-01T00:00:00Z.
	epoch = "1704067200"
)

// NewPlan lists the steps that make the wheel tc describes on base.
func NewPlan(tc compat.Toolchain, base Base, opt Options) (*Plan, error) {
	body, context, err := dockerfiles.Toolchain("cuda13")
	if err != nil {
		return nil, err
	}
	head := dockerfiles.FromImage(base.Ref)
	if base.File != "" {
		head = dockerfiles.FromRootfs()
	}
	p := &Plan{
		Toolchain: tc, Options: opt, Base: base, Dockerfile: head + body, Context: context,
		Args:    map[string]string{"TORCH": tc.Torch, "TOOLKIT": tc.Toolkit, "PYTHON": tc.Python},
		Scripts: map[string]string{},
	}
	env := buildEnv(tc, opt)
	p.Steps = []Step{
		sourceStep(tc), compileStep(env), stripStep(opt), packStep(), auditStep(), smokeStep(tc),
	}
	if err := p.seal(); err != nil {
		return nil, err
	}
	p.Manifest = wheel.Manifest{
		Source:       wheel.Source{Kind: "release", Ref: tc.DeepSpeed, SHA256: tc.Source},
		OpsRequested: tc.OpNames(false), ArchsRequested: wheel.Capabilities(tc.Archs, false),
		CPU: string(tc.CPU), Base: wheel.Base{Ref: base.Ref, Digest: base.Digest}, Env: manifestEnv(env),
		PlanDigest: p.Digest,
	}
	return p, nil
}

// seal reads the scripts the steps name and computes the digest.
func (p *Plan) seal() error {
	for _, s := range p.Steps {
		for _, name := range s.Scripts {
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

func sourceStep(tc compat.Toolchain) Step {
	return Step{
		Name: "source", Title: "fetch DeepSpeed " + tc.DeepSpeed, Image: Toolchain,
		Scripts: []string{"source.sh"}, Network: true,
		Env:  map[string]string{"DSBUILD_DEEPSPEED": tc.DeepSpeed, "DSBUILD_SHA256": tc.Source, "DS_ACCELERATOR": "cuda"},
		Argv: []string{"sh", "/dsbuild/source.sh"},
	}
}

func compileStep(env map[string]string) Step {
	return Step{
		Name: "compile", Title: "compile the ops", Image: Toolchain,
		Scripts: []string{"compile.sh", "cxx", "nvcc"}, Inputs: []string{"source"}, Compile: true,
		Env: env, Argv: []string{"sh", "/dsbuild/compile.sh"},
	}
}

func stripStep(opt Options) Step {
	s := Step{
		Name: StripStep, Title: "strip the ops, note what was installed", Image: Toolchain,
		Scripts: []string{"strip.py"}, Inputs: []string{"compile"},
		Argv: []string{"sh", "-c", "python /dsbuild/strip.py /in/compile/*.whl /out"},
	}
	if opt.KeepDebug {
		s.Title, s.Env = "note what was installed", map[string]string{wheel.KeepDebugVariable: "1"}
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
	StripStep = "strip"
	PackStep  = "pack"
	AuditStep = "audit"
	SmokeStep = "smoke"
	BuildFile = "build.json"

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
		Scripts: []string{"smoke.sh", "smoke.py"}, Inputs: []string{PackStep},
		Env:  map[string]string{"DS_ACCELERATOR": "cuda", "DSBUILD_CPU": string(tc.CPU)},
		Argv: append([]string{"sh", "/dsbuild/smoke.sh"}, tc.OpNames(false)...),
	}
}

// buildEnv is the environment of the compile step.
func buildEnv(tc compat.Toolchain, opt Options) map[string]string {
	env := map[string]string{
		// Without it a machine with no GPU builds for the accelerator "cpu",
		// where utils does not exist and is left out silently.
		"DS_ACCELERATOR":   "cuda",
		"DS_ENABLE_NINJA":  "1",
		"DS_BUILD_STRING":  "+" + wheel.LocalVersion(tc.Torch, tc.CUDA, tc.Archs, tc.HasDeviceCode(), tc.CPU),
		"DSBUILD_CPU":      string(tc.CPU),
		"DSBUILD_SRC":      sourceDir,
		"CCACHE_DIR":       ccacheDir,
		"CCACHE_BASEDIR":   sourceDir,
		"CCACHE_MAXSIZE":   "5G",
		"CCACHE_NOHASHDIR": "1",
		// torch would put ccache before the wrapper, where it cannot see what
		// the wrapper decides.
		"TORCH_NO_COMPILER_WRAPPER": "1",
		"SOURCE_DATE_EPOCH":         epoch,
		"PYTHONHASHSEED":            "0",
	}
	if len(tc.Archs) > 0 {
		env["TORCH_CUDA_ARCH_LIST"] = wheel.ArchList(tc.Archs)
	}
	for _, op := range tc.Ops {
		env[op.Variable] = "1"
	}
	if opt.KeepDebug {
		env[wheel.KeepDebugVariable] = "1"
	}
	return env
}

// Audit opens the wheel at file and compares it with its own words and with
// what the plan asks for; an error is a *wheel.AuditError with every difference.
func (p *Plan) Audit(ctx context.Context, file string) error {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return err
	}
	findings := append(p.compare(v.Contents), v.Findings()...)
	if v.Manifest == nil || v.Manifest.PlanDigest != p.Digest {
		findings = append(findings, "its manifest names another plan")
	}
	if len(findings) > 0 {
		return wheel.NotAsked(filepath.Base(file), findings)
	}
	return nil
}

func (p *Plan) compare(c wheel.Contents) []string {
	return wheel.Audit(c, wheel.Want{
		Ops: p.Toolchain.OpNames(false), DeviceOps: p.Toolchain.OpNames(true),
		Archs: p.Toolchain.Archs, CPU: p.Toolchain.CPU, KeepDebug: p.Options.KeepDebug,
	})
}

// Print writes the plan for people: each step with its image, environment and
// command.
func (p *Plan) Print(w io.Writer) error {
	tc := p.Toolchain
	var b strings.Builder
	fmt.Fprintf(&b, "DeepSpeed %s for torch %s, CUDA %s, Python %s, %s\n", tc.DeepSpeed, tc.Torch, tc.CUDA, tc.Python, tc.CPU)
	fmt.Fprintf(&b, "ops %s\narchs %s\n", strings.Join(tc.OpNames(false), ", "), archsOrNone(tc))
	fmt.Fprintf(&b, "\nbase       %s %s\n", p.Base.Ref, p.Base.Digest)
	fmt.Fprintf(&b, "toolchain  Dockerfile cuda13\n")
	for _, k := range slices.Sorted(maps.Keys(p.Args)) {
		fmt.Fprintf(&b, "             %s=%s\n", k, p.Args[k])
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%-10s %s (in %s)\n", s.Name, s.Title, s.Image)
		for _, k := range slices.Sorted(maps.Keys(s.Env)) {
			fmt.Fprintf(&b, "             %s=%s\n", k, s.Env[k])
		}
		if s.Image != Here {
			fmt.Fprintf(&b, "             $ %s\n", strings.Join(s.Argv, " "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func archsOrNone(tc compat.Toolchain) string {
	if len(tc.Archs) == 0 {
		return "none: no op has device code"
	}
	return wheel.ArchList(tc.Archs)
}
