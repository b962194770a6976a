package wheel

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// Kind is a group of builds that can share an index page, where installers select the highest version and, of equal
// versions, the highest build tag.
type Kind string

// The kinds of wheels.
const (
	KindComplete Kind = "complete" // all default ops of a release, for every GPU, CUDA and CPU level of the stable ABI
	KindAllOps   Kind = "all-ops"  // the same with all ops
	KindCustom   Kind = "custom"   // other wheels of the stable ABI
	KindTorch    Kind = "torch"    // for one torch minor version
)

// allOpsLabel is the label of builds with all ops.
const allOpsLabel = "allops"

// completeCUDAs lists the CUDA major versions of a complete build for a machine. No toolchain of CUDA 12 compiles for
// aarch64.
func completeCUDAs(machine string) []string {
	if machine == Arm {
		return []string{"13"}
	}
	return []string{"12", "13"}
}

// KindOf returns the kind of a wheel. A wheel whose version does not follow from its manifest is custom.
func KindOf(m Manifest) Kind {
	_, local, _ := strings.Cut(m.Version, "+")
	switch {
	case !m.TorchABI.IsStable():
		return KindTorch
	case m.Source.Kind != "release" || local != m.Label(local == allOpsLabel):
		return KindCustom
	case local == "":
		return KindComplete
	case local == allOpsLabel:
		return KindAllOps
	}
	return KindCustom
}

// Label returns the local part of a stable-ABI wheel's version, without the part for the sources: how it differs
// from a complete build. It is "" for a complete build.
func (m Manifest) Label(allOps bool) string {
	var parts []string
	ops, byDefault := slices.Sorted(slices.Values(m.OpsRequested)), slices.Sorted(slices.Values(DefaultOps()))
	switch {
	case allOps:
		parts = append(parts, allOpsLabel)
	case !slices.Equal(ops, byDefault):
		sum := sha256.Sum256([]byte(strings.Join(ops, ",")))
		parts = append(parts, fmt.Sprintf("ops%x", sum[:4]))
	}
	archs, _ := ParseArchs(m.ArchsRequested) // none if a hostile manifest is invalid
	parts = append(parts, archLabels(archs)...)
	machine := CPULevel(m.CPU).Machine()
	if levels := m.CPUs(); !slices.Equal(levels, m.completeLevels(machine)) {
		parts = append(parts, lists.Map(levels, CPULevel.Short)...)
	}
	if cudas := m.CUDAs(); len(cudas) > 0 && !slices.Equal(cudas, completeCUDAs(machine)) {
		parts = append(parts, "cu"+strings.Join(cudas, ".cu"))
	}
	if m.Env[KeepDebugVariable] != "" {
		parts = append(parts, "debug")
	}
	return strings.Join(parts, ".")
}

// completeLevels returns the CPU levels of a complete build: all levels if it has vector code, else the
// lowest.
func (m Manifest) completeLevels(machine string) []CPULevel {
	levels := CPULevels(machine)
	if slices.ContainsFunc(m.OpsRequested, HasLevels) {
		return levels
	}
	return levels[:1]
}

// HasAllOps reports whether all ops were requested for a wheel of the stable ABI, by its version.
func (m Manifest) HasAllOps() bool {
	_, local, _ := strings.Cut(m.Version, "+")
	return slices.Contains(strings.Split(local, "."), allOpsLabel)
}

// checkLabel compares the local part of the version with the manifest.
func (m Manifest) checkLabel() []string {
	sources, label, ok := splitLabel(m.Version)
	if !m.TorchABI.IsStable() || ok && label == m.Label(m.HasAllOps()) && (sources == "") == (m.Source.Kind == "release") {
		return nil
	}
	return []string{fmt.Sprintf("version %s does not match the manifest, which has sources of kind %s and the label %q",
		m.Version, m.Source.Kind, m.Label(m.HasAllOps()))}
}

// BuildTag returns the build tag in the wheel's file name (PEP 427): the number of the recipe and the first digits of
// the plan's digest. It is "" for a wheel for one torch minor version. Installers compare the number.
func (m Manifest) BuildTag() string {
	if m.Recipe == 0 {
		return ""
	}
	return fmt.Sprintf("%d_%.8s", m.Recipe, m.PlanDigest)
}

// labelForm matches the local part of a version that dsbuild gives: first the sources, if they are not a release, then
// the targets.
var labelForm = regexp.MustCompile(`^((?:[gs][0-9a-f]{7}(?:\.|$))*)` +
	`(torch\d.*|(?:(?:allops|ops[0-9a-f]{8}|sm\d+|ptx\d+|v\d|cu\d\d|debug)(?:\.|$))*)$`)

// splitLabel returns the parts of a version's local part that identify the sources and the targets. ok is false for a
// version that dsbuild does not give.
func splitLabel(version string) (sources, targets string, ok bool) {
	_, local, _ := strings.Cut(version, "+")
	m := labelForm.FindStringSubmatch(local)
	if m == nil {
		return "", "", false
	}
	return strings.TrimSuffix(m[1], "."), m[2], true
}

// SourceVersion returns the part of a DeepSpeed version that identifies the sources. It is equal for two
// wheels of the same sources for different GPUs. A version that dsbuild does not give is returned unchanged.
func SourceVersion(version string) string {
	release, _, _ := strings.Cut(version, "+")
	switch sources, _, ok := splitLabel(version); {
	case !ok:
		return version
	case sources != "":
		return release + "+" + sources
	}
	return release
}

// Release returns the release of DeepSpeed that the wheel was built from. It returns "" for other sources, such as a
// commit or changed files. If dsbuild did not build the wheel, its version decides.
func (m Manifest) Release() string {
	if m.Source.Kind == "release" {
		return m.Source.Ref
	}
	if sources := SourceVersion(m.Version); m.Source.Kind == "" && !strings.Contains(sources, "+") {
		return sources
	}
	return ""
}

// LocalVersion returns the local part of the version of a wheel for one torch minor version, which lists the
// wheel's targets: torch2.15.cu132.sm80.ptx90.v3. If everyGPU is true, "all" replaces the archs. A wheel without
// device code has no archs.
func LocalVersion(torch, cuda string, archs []Arch, everyGPU bool, cpu CPULevel) string {
	parts := []string{"torch" + Minor(torch), "cu" + strings.ReplaceAll(Minor(cuda), ".", "")}
	if everyGPU && len(archs) > 0 {
		parts, archs = append(parts, "all"), nil
	}
	parts = append(parts, archLabels(archs)...)
	return strings.Join(append(parts, cpu.Short()), ".")
}

// archLabels returns archs as parts of a version: those with machine code, then those with PTX.
func archLabels(archs []Arch) []string {
	var sass, ptx []string
	for _, a := range archs {
		sass = append(sass, a.SM())
		if a.PTX {
			ptx = append(ptx, strings.Replace(a.SM(), "sm", "ptx", 1))
		}
	}
	return append(sass, ptx...)
}
