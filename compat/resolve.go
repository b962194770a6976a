package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// basePython is the Python of the default base.
const basePython = "3.11"

// AllOps asks for every op in the tables.
const AllOps = "all"

// ConflictError lists every reason why no toolchain exists for a Spec.
type ConflictError struct {
	Conflicts []Conflict
}

// Conflict is one reason, and the nearest choice that works.
type Conflict struct {
	What string
	Try  string
}

func (e *ConflictError) Error() string {
	lines := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		lines[i] = c.What
	}
	if len(lines) == 1 {
		return "no toolchain for this wheel: " + lines[0]
	}
	return "no toolchain for this wheel:\n  " + strings.Join(lines, "\n  ")
}

// Hint joins the nearest choices that work.
func (e *ConflictError) Hint() string {
	var tries []string
	for _, c := range e.Conflicts {
		if c.Try != "" && !slices.Contains(tries, c.Try) {
			tries = append(tries, c.Try)
		}
	}
	return strings.Join(tries, "; ")
}

// ExitCode is that of a configuration for which no toolchain exists.
func (e *ConflictError) ExitCode() int { return 2 }

// Resolve chooses the toolchain for s, or returns a *ConflictError that names
// every conflict at once.
func (t *Tables) Resolve(s wheel.Spec) (Toolchain, error) {
	var bad conflicts
	tc := Toolchain{Road: CUDA13, Nvcc: true, CPU: s.CPU, Archs: s.Archs, Ground: Ground{Name: "Debian 12 (bookworm)", Ref: "debian:bookworm-slim", Suite: "bookworm", Glibc: "2.36", Pythons: []string{"3.11"}, GCCs: []string{"12", "11"}}}
	release := t.deepspeed(s, &bad)
	tc.DeepSpeed, tc.Source = release.Version, release.SHA256
	if tc.CPU == "" {
		tc.CPU = wheel.CPUv3
	}
	torch := t.torch(s, &bad)
	tc.Torch, tc.CUDA, tc.Toolkit = torch.Version, torch.CUDA, torch.Toolkit
	tc.Python = python(s, torch, &bad)
	tc.Ops = t.ops(s, &bad)
	t.archs(&tc, &bad)
	for i := range tc.Ops {
		if tc.Ops[i].DeviceCode {
			tc.Ops[i].Archs = tc.Archs
		}
	}
	if len(bad) > 0 {
		return Toolchain{}, &ConflictError{bad}
	}
	return tc, nil
}

type conflicts []Conflict

func (c *conflicts) add(try, format string, args ...any) {
	*c = append(*c, Conflict{fmt.Sprintf(format, args...), try})
}

// deepspeed picks the release asked for, else the newest.
func (t *Tables) deepspeed(s wheel.Spec, bad *conflicts) DeepSpeed {
	newest := t.DeepSpeeds[0]
	for _, d := range t.DeepSpeeds {
		if s.DeepSpeed == "" || s.DeepSpeed == d.Version {
			return d
		}
	}
	bad.add("--deepspeed "+newest.Version, "DeepSpeed %s is not in the tables of this dsbuild", s.DeepSpeed)
	return newest
}

// torch picks the newest release that is, or agrees with, what was asked.
func (t *Tables) torch(s wheel.Spec, bad *conflicts) Torch {
	newest := t.Torches[0]
	if s.Torch == "" && s.CUDA == "" {
		return newest
	}
	for _, r := range t.Torches {
		if (s.Torch == "" || s.Torch == r.Version) && (s.CUDA == "" || s.CUDA == r.CUDA) {
			return r
		}
	}
	asked := strings.TrimSpace(or("torch ", s.Torch) + or(" with CUDA ", s.CUDA))
	bad.add("--torch "+newest.Version, "%s is not in the tables of this dsbuild (there is torch %s with CUDA %s)", asked, newest.Version, newest.CUDA)
	return newest
}

func or(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func python(s wheel.Spec, torch Torch, bad *conflicts) string {
	if s.Python == "" || s.Python == basePython {
		return basePython
	}
	if !slices.Contains(torch.Pythons, s.Python) {
		bad.add("--python "+basePython, "torch %s has no wheel for Python %s (it has %s)", torch.Version, s.Python, strings.Join(torch.Pythons, ", "))
	} else {
		bad.add("--python "+basePython, "the base in use has Python %s, not %s", basePython, s.Python)
	}
	return s.Python
}

// ops returns the table's rows for the ops asked, each once, in table order.
func (t *Tables) ops(s wheel.Spec, bad *conflicts) []Op {
	asked := s.Ops
	if len(asked) == 0 {
		asked = wheel.DefaultOps()
	}
	var known []string
	var out []Op
	for _, op := range t.Ops {
		known = append(known, op.Name)
		if slices.Contains(asked, op.Name) || slices.Contains(asked, AllOps) {
			out = append(out, op)
		}
	}
	for _, name := range asked {
		if name != AllOps && !slices.Contains(known, name) {
			bad.add("--ops takes "+strings.Join(known, ","), "op %q is not one dsbuild can build", name)
		}
	}
	return out
}

// archs checks the arch list against what the CUDA compiles for.
func (t *Tables) archs(tc *Toolchain, bad *conflicts) {
	i := slices.IndexFunc(t.CUDAs, func(c CUDA) bool { return c.Version == tc.CUDA })
	if i < 0 {
		bad.add("", "CUDA %s is not in the tables of this dsbuild", tc.CUDA)
		return
	}
	cuda := t.CUDAs[i]
	for _, a := range tc.Archs {
		if !slices.Contains(cuda.Archs, a.Capability()) {
			bad.add("--arch takes "+strings.Join(cuda.Archs, ", "), "CUDA %s, which torch %s needs, compiles nothing for arch %s", cuda.Version, tc.Torch, a.Capability())
		}
	}
	if n := len(tc.Archs); n > 0 && tc.Archs[0].Major <= 7 && tc.Archs[n-1].Major > 7 {
		tc.Remarks = append(tc.Remarks, fmt.Sprintf(
			"arch %s in the list switches BF16 off in the CUDA ops for every arch: better build a wheel of its own for it", tc.Archs[0].Capability()))
	}
	device := slices.ContainsFunc(tc.Ops, func(o Op) bool { return o.DeviceCode })
	switch {
	case device && len(tc.Archs) == 0:
		bad.add("--arch 8.0 (A100), --arch 9.0 (H100)", "no arch is given and %s has device code", firstDevice(tc.Ops))
	case !device && len(tc.Archs) > 0:
		tc.Remarks = append(tc.Remarks, "--arch changes nothing here: none of these ops has device code, the wheel fits every GPU")
		tc.Archs = nil
	}
}

func firstDevice(ops []Op) string {
	for _, o := range ops {
		if o.DeviceCode {
			return o.Name
		}
	}
	return ""
}
