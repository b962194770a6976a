package wheel

import (
	"fmt"
	"slices"
	"strings"
)

// Want is what an audit holds the contents against.
type Want struct {
	Ops       []string
	DeviceOps []string // those of Ops with device code
	Archs     []Arch
	CPU       CPULevel
	KeepDebug bool // debug information was asked for
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
	return &AuditError{wheel, findings, "the compile log names the ops DeepSpeed left out and why"}
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
	findings := w.auditCode(op, e)
	if slices.Contains(w.DeviceOps, op) {
		findings = append(findings, differ("op "+op, "SASS", e.SASS, Capabilities(w.Archs, false))...)
		findings = append(findings, differ("op "+op, "PTX", e.PTX, Capabilities(w.Archs, true))...)
	}
	if len(e.RPath) > 0 {
		findings = append(findings, fmt.Sprintf("op %s looks for libraries in %s", op, strings.Join(e.RPath, ", ")))
	}
	if !e.Stripped && !w.KeepDebug {
		findings = append(findings, fmt.Sprintf("op %s is not stripped", op))
	}
	return findings
}

// auditCode compares the instructions: DeepSpeed's ops choose nothing at run
// time, so the highest level found is what they need.
func (w Want) auditCode(op string, e Extension) []string {
	var findings []string
	switch {
	case e.CPU.Max == "":
		findings = append(findings, fmt.Sprintf("op %s holds no x86-64 code", op))
	case !w.CPU.Includes(e.CPU.Max):
		findings = append(findings, fmt.Sprintf("op %s holds %s instructions, asked for at most %s", op, e.CPU.Max, w.CPU))
	}
	if len(e.CPU.Beyond) > 0 {
		findings = append(findings, fmt.Sprintf("op %s holds instructions of no CPU level: %s", op, strings.Join(e.CPU.Beyond, ", ")))
	}
	return findings
}

func differ(what, kind string, have, want []string) []string {
	if slices.Equal(sortedArchs(have), sortedArchs(want)) {
		return nil
	}
	return []string{fmt.Sprintf("%s has %s for %s, asked for %s", what, kind, list(have), list(want))}
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
