package wheel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Want holds the expectations that an audit compares with a wheel's contents.
type Want struct {
	Ops       []string
	Archs     map[string][]Arch // of each op that is to have device code
	Variants  []Variant         // of the ops with several builds, with the archs and the level of each
	CPU       CPULevel          // of the others
	Glibc     string            // X.Y of the oldest target machine; empty if unspecified
	KeepDebug bool              // debug information was requested
	TorchABI  *TorchABI         // nil: any
}

// auditError lists every way in which a wheel differs from the expectation.
func auditError(wheel string, findings []string, hint string) error {
	return fault.New(fault.Wheel, hint, "%s failed verification:\n  %s", wheel, strings.Join(findings, "\n  "))
}

// MismatchError returns the error for a finished wheel that differs from the request.
func MismatchError(wheel string, findings []string) error {
	try := "see the compile log for the ops that DeepSpeed skipped, and why"
	if slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, askedGlibc) }) {
		try = "dsbuild links extensions for glibc 2.28: these symbols have no older version, " +
			"and dsbuild does not define them; use an older --base, or omit --target-glibc"
	}
	return auditError(wheel, findings, try)
}

// Audit describes every difference between a wheel's contents and w.
func Audit(c Contents, w Want) []string {
	var findings []string
	found := map[string]int{}
	for _, e := range c.Extensions {
		op := e.Op()
		found[e.title()]++
		if !slices.Contains(w.Ops, op) {
			findings = append(findings, fmt.Sprintf("op %s is in the wheel but was not requested", op))
			continue
		}
		v, _ := variantOf(w.Variants, e)
		findings = append(findings, e.compareCPU("requested at most", cmp.Or(CPULevel(v.CPU), w.CPU))...)
		code := DeviceCode{Capabilities(w.Archs[op], false), Capabilities(w.Archs[op], true)}
		if v.CUDA != "" {
			code = v.code(op)
		}
		findings = append(findings, e.compareArchs("requested", code)...)
		if len(e.RPath) > 0 {
			findings = append(findings, fmt.Sprintf("op %s has an RPATH: %s", op, strings.Join(e.RPath, ", ")))
		}
		if !e.Stripped && !w.KeepDebug {
			findings = append(findings, fmt.Sprintf("op %s is not stripped", op))
		}
		findings = append(findings, e.compareTorchABI(w.TorchABI)...)
		findings = append(findings, e.compareGlibc(w.Glibc)...)
	}
	for _, op := range w.Ops {
		if !slices.ContainsFunc(c.Extensions, func(e Extension) bool { return e.Op() == op }) {
			findings = append(findings, fmt.Sprintf("op %s was requested but is missing", op))
		}
	}
	for _, title := range slices.Sorted(maps.Keys(found)) {
		if n := found[title]; n > 1 {
			findings = append(findings, fmt.Sprintf("%s occurs %d times", title, n))
		}
	}
	return append(findings, c.compareVariants("requested", w.Variants)...)
}

// askedGlibc ends every finding of compareGlibc and AuditTags, before the version.
const askedGlibc = ", requested glibc "

// compareGlibc compares the C and C++ library versions that an extension needs with a machine's
// glibc. libstdc++ matters because it can require a newer platform tag, which pip on that machine
// rejects.
func (e Extension) compareGlibc(asked string) []string {
	if asked == "" {
		return nil
	}
	if CompareVersions(e.Glibc, asked) > 0 {
		return []string{fmt.Sprintf("%s needs glibc %s%s", e.title(), e.Glibc, e.newestSymbols()) + askedGlibc + asked}
	}
	platform, err := Platform(e.Floors, e.Machine)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", e.title(), err) + askedGlibc + asked}
	}
	if !acceptedOnGlibc(platform, asked) {
		needs := fmt.Sprintf("%s needs %s%s, which requires %s", e.title(), e.libraries(), e.newestSymbols(), platform)
		return []string{needs + askedGlibc + asked}
	}
	return nil
}

// newestSymbols lists the symbols that cause an extension's library requirement, if known.
func (e Extension) newestSymbols() string {
	if len(e.Newest) == 0 {
		return ""
	}
	return " (" + strings.Join(e.Newest, ", ") + ")"
}

// acceptedOnGlibc reports whether pip accepts a platform tag on a machine with a glibc.
func acceptedOnGlibc(platform, glibc string) bool {
	needs, _ := SplitPlatform(platform)
	return needs == "" || CompareVersions(needs, glibc) <= 0
}

// AuditTags compares the tags in a finished wheel's name with the requested glibc. An empty glibc
// accepts all tags.
func AuditTags(name, glibc string) []string {
	f, err := ParseFileName(name)
	if err != nil || glibc == "" {
		return nil
	}
	for _, tag := range f.Tags {
		if platform := tag[strings.LastIndex(tag, "-")+1:]; !acceptedOnGlibc(platform, glibc) {
			return []string{"tagged " + platform + askedGlibc + glibc}
		}
	}
	return nil
}

// armPage is the largest page of the kernels of 64-bit Arm machines, in bytes. NVIDIA
// recommends kernels with such pages for GH200.
const armPage = 64 << 10

// compareCPU compares an extension's instructions with a level, and its page size with Arm
// kernels'. DeepSpeed's ops choose no code at run time, so they need the highest level found.
func (e Extension) compareCPU(says string, level CPULevel) []string {
	var findings []string
	switch {
	case e.Machine != level.Machine():
		return []string{fmt.Sprintf("%s has code for %s, %s %s", e.title(), e.Machine, says, level)}
	case e.CPU.Max == "":
		findings = append(findings, fmt.Sprintf("%s has no readable code", e.title()))
	case !level.Includes(e.CPU.Max):
		findings = append(findings, fmt.Sprintf("%s has %s instructions, %s %s", e.title(), e.CPU.Max, says, level))
	}
	if e.Machine == Arm && e.align < armPage && e.CPU.Max != "" {
		findings = append(findings, fmt.Sprintf("%s is aligned to pages of %d bytes, but Arm kernels can have pages of %d", e.title(), e.align, armPage))
	}
	if len(e.CPU.Beyond) > 0 {
		findings = append(findings, fmt.Sprintf("%s has instructions outside all CPU levels: %s", e.title(), strings.Join(e.CPU.Beyond, ", ")))
	}
	return findings
}

// compareArchs compares the architectures of an extension's device code with the expected
// architectures. In a finding, says precedes the expected architectures and states their source.
func (e Extension) compareArchs(says string, want DeviceCode) []string {
	var findings []string
	for _, c := range []struct {
		kind       string
		have, want []string
	}{{"SASS", e.SASS, want.Archs}, {"PTX", e.PTX, want.PTX}} {
		if !slices.Equal(sortedArchs(c.have), sortedArchs(c.want)) {
			findings = append(findings, fmt.Sprintf("%s has %s for %s, %s %s", e.title(), c.kind, archList(c.have), says, archList(c.want)))
		}
	}
	return findings
}

func archList(archs []string) string {
	return cmp.Or(strings.Join(sortedArchs(archs), ", "), "nothing")
}
