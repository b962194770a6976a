package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// The steps that create a wheelhouse.
const (
	CompanionsStep = "companions" // the copies of companions' sources
	WithStep       = "with"       // their wheels
	BundleStep     = "bundle"     // the requirements of all of them
)

// BundlePlan lists the steps that create a wheelhouse after the wheel is built. It is a separate
// plan with the same images, so that the wheel does not depend on it.
type BundlePlan struct {
	*Plan
	Companions []Companion
	wheel      *Plan
}

// NewBundlePlan lists the steps that build companions for the wheel of p. With dependencies, the
// last step collects the requirements of the wheel and its companions, except torch.
func NewBundlePlan(p *Plan, companions []Companion, dependencies bool) (*BundlePlan, error) {
	if p.Toolchain().IsCross() {
		return nil, fault.New(fault.Usage,
			"build the wheelhouse on such a machine with --builder host, or deploy a complete environment: dsbuild env deploy",
			"cannot build a wheelhouse for %s: packages are built and collected only for the build machine's architecture",
			p.Toolchain().CPU.Machine())
	}
	companions = slices.Clone(companions)
	slices.SortFunc(companions, func(a, b Companion) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(companions); i++ {
		if companions[i].Name == companions[i-1].Name {
			return nil, badSource(companions[i].Name, errors.New("specified twice with --with"), "specify each extra wheel once")
		}
	}
	own := *p
	own.Scripts, own.Digest, own.Steps = map[string]string{}, "", []Step{{
		Name: PackStep, Title: "copy the wheel of DeepSpeed", Image: Local, Env: map[string]string{"DSBUILD_PLAN": p.Digest},
	}}
	if len(companions) > 0 {
		sources := Step{
			Name: CompanionsStep, Title: "copy the sources of the extra wheels", Image: Local,
			Env: map[string]string{},
		}
		for _, c := range companions {
			if c.Source != nil {
				sources.Env[c.Name] = c.Source.SHA256
			}
		}
		own.Steps = append(own.Steps, sources, withStep(p, companions))
	}
	if dependencies {
		s := Step{
			Name: BundleStep, Title: "collect their requirements",
			Image: Toolchain, Script: "bundle.sh", Scripts: []string{siteScript, "wheels.py"},
			Inputs: []string{PackStep}, Network: true, Env: map[string]string{"SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"},
		}
		if len(companions) > 0 {
			s.Inputs = append(s.Inputs, WithStep)
		}
		own.Steps = append(own.Steps, s)
	}
	b := &BundlePlan{Plan: &own, Companions: companions, wheel: p}
	return b, b.setDigest()
}

// withStep builds companions with the compilers and the torch of the wheel, for
// its CPU and its GPUs.
func withStep(p *Plan, companions []Companion) Step {
	s := Step{
		Name: WithStep, Title: "build extra wheels", Image: Toolchain, Script: "with.sh",
		Scripts: []string{siteScript, "wheels.py", "cxx", "nvcc"},
		Inputs:  []string{CompanionsStep}, Network: true, Compile: true, Env: map[string]string{},
	}
	for _, step := range p.Steps {
		if step.Name != CompileStep {
			continue
		}
		for _, k := range []string{
			"DSBUILD_CPU", "DSBUILD_GCC", "TORCH_CUDA_ARCH_LIST", "TORCH_NO_COMPILER_WRAPPER",
			"CCACHE_MAXSIZE", "CCACHE_NOHASHDIR", "CCACHE_COMPILERCHECK", "SOURCE_DATE_EPOCH", "PYTHONHASHSEED",
		} {
			if v, ok := step.Env[k]; ok {
				s.Env[k] = v
			}
		}
	}
	var names, assumed []string
	for _, c := range companions {
		s.Args = append(s.Args, c.requirement())
		names = append(names, c.requirement())
		if c.Source != nil {
			assumed = append(assumed, c.Name+"="+c.assumedVersion())
		}
	}
	s.Title = "build extra wheels: " + strings.Join(names, ", ")
	s.Env["DSBUILD_ASSUMED"] = strings.Join(assumed, " ")
	return s
}

// PrintSteps writes the human-readable steps that follow the wheel's.
func (b *BundlePlan) PrintSteps(w io.Writer) error {
	text := strings.Builder{}
	text.WriteString("\nthe wheelhouse\n")
	for _, s := range b.Steps {
		fmt.Fprintf(&text, "%-10s %s (in %s)\n", s.Name, s.Title, s.Image)
		printVariables(&text, s.Env)
		if s.Image != Local {
			fmt.Fprintf(&text, "             $ %s\n", strings.Join(append([]string{s.Script}, s.Args...), " "))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// BundleFor collects the requirements of a plan's wheel in a separate wheelhouse, the directory name
// in Dir.
func (r Runner) BundleFor(ctx context.Context, name string, p *Plan, made wheel.Artifact) (*wheel.Bundle, error) {
	plan, err := NewBundlePlan(p, nil, true)
	if err != nil {
		return nil, err
	}
	r.Dir, r.Report = filepath.Join(r.Dir, name), ui.WithPrefix(r.Report, name)
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := r.Bundle(ctx, plan, made); err != nil {
		return nil, err
	}
	b, err := wheel.ReadBundle(ctx, filepath.Join(r.Dir, wheel.WheelhouseDir))
	return &b, err
}

// Bundle creates the wheelhouse of a plan next to the finished wheel a. It replaces an existing
// wheelhouse.
func (r Runner) Bundle(ctx context.Context, b *BundlePlan, a wheel.Artifact) (wheel.Bundle, error) {
	tmp, err := scratch.New("")
	if err != nil {
		return wheel.Bundle{}, err
	}
	defer tmp.Close()
	house := filepath.Join(tmp.Path, wheel.WheelhouseDir)
	_, err = r.withWorkspace(ctx, b.Plan, func(space Workspace, _ io.Writer) error {
		err := runSteps(ctx, b.Steps, space, func(_ context.Context, s Step) error {
			return b.importInputs(s, space, a, filepath.Join(tmp.Path, s.Name))
		})
		if err != nil {
			return err
		}
		return space.Export(ctx, b.Steps[len(b.Steps)-1].Name, house)
	})
	if err != nil {
		return wheel.Bundle{}, err
	}
	sources := map[string]*wheel.Source{}
	for _, c := range b.Companions {
		sources[c.Name] = nil
		if c.Source != nil {
			s := c.Source.Manifest()
			sources[c.Name] = &s
		}
	}
	bundle, err := wheel.WriteBundle(ctx, house, b.Toolchain().Python, sources)
	if err != nil {
		return wheel.Bundle{}, err
	}
	for _, c := range b.Companions {
		if !slices.ContainsFunc(bundle.Wheels, func(w wheel.BundleWheel) bool { return w.Name == c.Name }) {
			return wheel.Bundle{}, fmt.Errorf("extra wheel %s: the step %s built no wheel", c.Name, WithStep)
		}
	}
	to := filepath.Join(r.Dir, wheel.WheelhouseDir)
	for i := range bundle.Wheels {
		bundle.Wheels[i].Path = filepath.Join(to, bundle.Wheels[i].File)
	}
	return bundle, withLock(ctx, r.Dir, false, func() error {
		if err := copyBundle(house, bundle, to); err != nil {
			return fmt.Errorf("wheelhouse: %w", err)
		}
		return writeSums(r.Dir, wheel.WheelhouseDir)
	})
}

// importInputs imports the inputs of the first steps into the workspace: the wheel, or the copies
// of the companions' sources.
func (b *BundlePlan) importInputs(s Step, space Workspace, a wheel.Artifact, dir string) error {
	files := []string{a.Path}
	if s.Name == CompanionsStep {
		files = nil
		for _, c := range b.Companions {
			if c.Source != nil {
				files = append(files, c.Source.File)
			}
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := copyWhole(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			return err
		}
	}
	return space.Import(s.Name, dir)
}

// copyBundle atomically replaces a directory with the files of a wheelhouse.
func copyBundle(from string, bundle wheel.Bundle, to string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(to), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fresh, old := filepath.Join(tmp, "new"), filepath.Join(tmp, "old")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	files := []string{wheel.BundleName}
	for _, w := range bundle.Wheels {
		files = append(files, w.File)
	}
	for _, name := range files {
		if err := copyWhole(filepath.Join(from, name), filepath.Join(fresh, name)); err != nil {
			return err
		}
	}
	if err := os.Rename(to, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(fresh, to)
}

func copyWhole(from, to string) error {
	f, err := wheel.OpenRegular(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return atomicfile.Write(to, f, 0o644)
}
