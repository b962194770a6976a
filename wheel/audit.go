package wheel

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Contents is what the compiled part of a wheel holds.
type Contents struct {
	Extensions []Extension `json:"extensions"`
}

// Extension is one shared object of a wheel.
type Extension struct {
	Path     string   `json:"path"`
	Size     int64    `json:"size"`
	SASS     []string `json:"sass"`
	PTX      []string `json:"ptx"`
	CPU      CPU      `json:"cpu"`
	Glibc    string   `json:"glibc"`
	Needs    []string `json:"needs"`
	RPath    []string `json:"rpath"`
	Stripped bool     `json:"stripped"`
}

// CPU is the instruction set an extension uses.
type CPU struct {
	Max CPULevel `json:"max"` // the highest level found
	// Beyond are mnemonics of extensions that belong to no level (AES, SHA,
	// VNNI …), which a CPU of that level may lack.
	Beyond []string `json:"beyond"`
}

// ParseContents reads the JSON of Contents.
func ParseContents(data []byte) (Contents, error) {
	var c Contents
	if err := json.Unmarshal(data, &c); err != nil {
		return Contents{}, fmt.Errorf("contents: %w", err)
	}
	return c, nil
}

// Op returns the name of the op an extension is: DeepSpeed calls the file
// <op>_op, and leaves out the suffix for a few (async_io, utils).
func (e Extension) Op() string {
	name, _, _ := strings.Cut(path.Base(e.Path), ".")
	return strings.TrimSuffix(name, "_op")
}

// Want is what an audit holds the contents against.
type Want struct {
	Ops       []string
	DeviceOps []string // those of Ops with device code
	Archs     []Arch
	CPU       CPULevel
}

// AuditError lists every way in which a wheel is not what was asked.
type AuditError struct {
	Wheel    string
	Findings []string
}

func (e *AuditError) Error() string {
	return e.Wheel + " is not what was asked:\n  " + strings.Join(e.Findings, "\n  ")
}

// Hint says where to look.
func (e *AuditError) Hint() string {
	return "the compile log names the ops DeepSpeed left out and why"
}

// ExitCode is that of a wheel that is not what was asked.
func (e *AuditError) ExitCode() int { return 4 }

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
	var findings []string
	if slices.Contains(w.DeviceOps, op) {
		findings = append(findings, differ(op, "SASS", e.SASS, Capabilities(w.Archs, false))...)
		findings = append(findings, differ(op, "PTX", e.PTX, Capabilities(w.Archs, true))...)
	}
	if !w.CPU.Includes(e.CPU.Max) {
		findings = append(findings, fmt.Sprintf("op %s holds %s instructions, asked for at most %s", op, e.CPU.Max, w.CPU))
	}
	if len(e.CPU.Beyond) > 0 {
		findings = append(findings, fmt.Sprintf("op %s holds instructions of no CPU level: %s", op, strings.Join(e.CPU.Beyond, ", ")))
	}
	return findings
}

func differ(op, kind string, have, want []string) []string {
	if slices.Equal(sortedArchs(have), sortedArchs(want)) {
		return nil
	}
	return []string{fmt.Sprintf("op %s has %s for %s, asked for %s", op, kind, list(have), list(want))}
}

func list(archs []string) string {
	if len(archs) == 0 {
		return "nothing"
	}
	return strings.Join(sortedArchs(archs), ", ")
}

func sortedArchs(archs []string) []string {
	out := append([]string{}, archs...)
	slices.SortFunc(out, compareVersions)
	return slices.Compact(out)
}

// compareVersions orders dotted numbers, a missing part being lowest; a
// suffix (9.0a) orders behind its number.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < max(len(as), len(bs)); i++ {
		var x, y string
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		if len(x) != len(y) {
			return len(x) - len(y)
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
	return 0
}
