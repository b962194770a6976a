package wheel

import (
	"fmt"
	"slices"
	"strings"
)

// Want is what an audit holds the contents against.
type Want struct {
	Ops       []string
	Archs     map[string][]Arch // of each op that is to have device code
	CPU       CPULevel
	Glibc     string // X.Y of the oldest machine that is to run it; "" where none was named
	KeepDebug bool   // debug information was asked for
}

// AuditError lists every way in which a wheel is not what it should be.
type AuditError struct {
	Wheel    string
	Findings []string
	hint     string
}

func (e *AuditError) Error() string {
	return e.Wheel + " is not what it should be:\n  " + strings.Join(e.Findings, "\n  ")
}

// Hint says what to try.
func (e *AuditError) Hint() string { return e.hint }

// ExitCode is that of a wheel that is not what was asked.
func (e *AuditError) ExitCode() int { return 4 }

// NotAsked is the error of a wheel that was built and is not what was asked.
func NotAsked(wheel string, findings []string) error {
	try := "the compile log names the ops DeepSpeed left out and why"
	if slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, askedGlibc) }) {
		try = "extensions are linked for glibc 2.28: the symbols named have no older version, and dsbuild does not define them; give an older --base, or leave --glibc out"
	}
	return &AuditError{wheel, findings, try}
}

// NotDeployable is the error of a wheel that must not be installed on nodes.
func NotDeployable(wheel, finding string) error {
	return &AuditError{wheel, []string{finding}, "build the wheel with dsbuild wheel"}
}

// Audit compares a wheel's contents with what was wanted and returns every
// difference in words, none if all is as asked.
func Audit(c Contents, w Want) []string {
	var findings []string
	found := map[string]int{}
	for _, e := range c.Extensions {
		found[e.Op()]++
		findings = append(findings, w.audit(e)...)
	}
	for _, op := range w.Ops {
		switch found[op] {
		case 0:
			findings = append(findings, fmt.Sprintf("op %s was asked for and is not inside", op))
		case 1:
		default:
			findings = append(findings, fmt.Sprintf("op %s is inside %d times", op, found[op]))
		}
	}
	return findings
}

// audit compares one extension with what is wanted of its op.
func (w Want) audit(e Extension) []string {
	op := e.Op()
	if !slices.Contains(w.Ops, op) {
		return []string{fmt.Sprintf("op %s is inside but was not asked for", op)}
	}
	findings := e.compareCPU("asked for at most", w.CPU)
	archs := w.Archs[op]
	findings = append(findings, e.compareArchs("asked for", Capabilities(archs, false), Capabilities(archs, true))...)
	if len(e.RPath) > 0 {
		findings = append(findings, fmt.Sprintf("op %s looks for libraries in %s", op, strings.Join(e.RPath, ", ")))
	}
	if !e.Stripped && !w.KeepDebug {
		findings = append(findings, fmt.Sprintf("op %s is not stripped", op))
	}
	return append(findings, e.compareGlibc(w.Glibc)...)
}

// askedGlibc is how every finding of compareGlibc and AuditTags ends, before the
// version.
const askedGlibc = ", asked for glibc "

// compareGlibc holds what an extension needs of the C and C++ libraries against
// the glibc of a machine. Newer parts of libstdc++ give the wheel a tag for which
// pip refuses it there, whatever the C library.
func (e Extension) compareGlibc(asked string) []string {
	if asked == "" {
		return nil
	}
	if compareVersions(e.Glibc, asked) > 0 {
		return []string{fmt.Sprintf("op %s needs glibc %s%s", e.Op(), e.Glibc, e.by()) + askedGlibc + asked}
	}
	f := Floors{e.Glibc, e.GLIBCXX, e.CXXABI, e.Libgcc}
	platform, err := Platform(f)
	if err != nil {
		return []string{fmt.Sprintf("op %s: %v", e.Op(), err) + askedGlibc + asked}
	}
	if !reaches(platform, asked) {
		return []string{fmt.Sprintf("op %s needs GLIBCXX %s, CXXABI %s and libgcc %s%s: that is %s",
			e.Op(), orNothing(f.GLIBCXX), orNothing(f.CXXABI), orNothing(f.Libgcc), e.by(), platform) + askedGlibc + asked}
	}
	return nil
}

// by names the symbols for which an extension needs what it needs, where they
// are known.
func (e Extension) by() string {
	if len(e.Newest) == 0 {
		return ""
	}
	return " (" + strings.Join(e.Newest, ", ") + ")"
}

// reaches reports whether pip takes a platform tag on a machine with a glibc.
func reaches(platform, glibc string) bool {
	needs, promised := platformGlibc(platform)
	return !promised || compareVersions(needs, glibc) <= 0
}

// AuditTags holds the tags of a finished wheel's name against the glibc that it
// was asked for; "" is any.
func AuditTags(name, glibc string) []string {
	f, err := ParseFileName(name)
	if err != nil || glibc == "" {
		return nil
	}
	for _, tag := range f.Tags {
		if platform := tag[strings.LastIndex(tag, "-")+1:]; !reaches(platform, glibc) {
			return []string{"it is tagged " + platform + askedGlibc + glibc}
		}
	}
	return nil
}

// compareCPU holds an extension's instructions against a level. DeepSpeed's ops
// choose nothing at run time, so the highest level found is what they need.
func (e Extension) compareCPU(says string, level CPULevel) []string {
	var findings []string
	switch {
	case e.CPU.Max == "":
		findings = append(findings, fmt.Sprintf("op %s holds no x86-64 code", e.Op()))
	case !level.Includes(e.CPU.Max):
		findings = append(findings, fmt.Sprintf("op %s holds %s instructions, %s %s", e.Op(), e.CPU.Max, says, level))
	}
	if len(e.CPU.Beyond) > 0 {
		findings = append(findings, fmt.Sprintf("op %s holds instructions of no CPU level: %s", e.Op(), strings.Join(e.CPU.Beyond, ", ")))
	}
	return findings
}

// compareArchs holds an extension's device code against what it should be for;
// says tells whose word that is.
func (e Extension) compareArchs(says string, sass, ptx []string) []string {
	var findings []string
	for _, c := range []struct {
		kind       string
		have, want []string
	}{{"SASS", e.SASS, sass}, {"PTX", e.PTX, ptx}} {
		if !slices.Equal(sortedArchs(c.have), sortedArchs(c.want)) {
			findings = append(findings, fmt.Sprintf("op %s has %s for %s, %s %s", e.Op(), c.kind, list(c.have), says, list(c.want)))
		}
	}
	return findings
}

func list(archs []string) string {
	return orNothing(strings.Join(sortedArchs(archs), ", "))
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
