package compat

import (
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verdict says whether a wheel runs on a node. Reasons holds every refusal in
// words; Remarks what is worth knowing but refuses nothing.
type Verdict struct {
	Reasons []string
	Remarks []string
}

// OK reports whether nothing speaks against the wheel.
func (v Verdict) OK() bool { return len(v.Reasons) == 0 }

func (v *Verdict) refuse(format string, args ...any) {
	v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
}

// Fit compares what a wheel was built for with what a node has. A fact the
// probe could not learn refuses nothing, unless the wheel cannot run without
// what it stands for (Python, torch).
func Fit(m wheel.Manifest, f node.Facts) Verdict {
	var v Verdict
	fitMachine(&v, m, f)
	fitPython(&v, m, f)
	fitTorch(&v, m, f)
	if f.Glibc != "" && m.Glibc != "" && older(f.Glibc, m.Glibc) {
		v.refuse("needs glibc %s, this node has %s", m.Glibc, f.Glibc)
	}
	if f.CPU != "" && m.CPU != "" && !wheel.CPULevel(f.CPU).Includes(wheel.CPULevel(m.CPU)) {
		v.refuse("needs a %s CPU, this node's is %s", m.CPU, f.CPU)
	}
	for _, g := range f.GPUs {
		fitGPU(&v, m, g)
	}
	return v
}

// fitMachine: what was compiled was compiled for x86_64. A wheel without a CPU
// level has no machine code.
func fitMachine(v *Verdict, m wheel.Manifest, f node.Facts) {
	if m.CPU != "" && f.Platform != "" && !strings.HasSuffix(f.Platform, "_"+x86) {
		v.refuse("built for x86_64, this node is %s", f.Platform)
	}
}

func fitPython(v *Verdict, m wheel.Manifest, f node.Facts) {
	switch {
	case f.Python == "":
		v.refuse("this node has no Python at the interpreter the inventory names")
	case strings.HasSuffix(m.Python, "+"): // the stable ABI: of that version or a newer one
		if older(f.Python, m.Python) {
			v.refuse("built for Python %s, this node has %s", m.Python, f.Python)
		}
	case m.Python != "" && f.Tag != "" && f.Tag != "cp"+strings.ReplaceAll(m.Python, ".", ""):
		v.refuse("built for Python %s, this node has %s", m.Python, f.Python)
	}
}

// fitTorch compares minors: DeepSpeed refuses to load ops built for another
// minor of torch or, for device code, another CUDA. A wheel without ops is
// bound to neither.
func fitTorch(v *Verdict, m wheel.Manifest, f node.Facts) {
	switch {
	case f.Python == "" || m.Torch == "":
	case f.Torch == "":
		v.refuse("built for torch %s, this node's environment has no torch", m.Torch)
	case firstTwo(f.Torch) != firstTwo(m.Torch):
		v.refuse("built for torch %s, this node has %s", m.Torch, f.Torch)
	case m.CUDA != "" && f.TorchCUDA != firstTwo(m.CUDA):
		v.refuse("built for CUDA %s, this node's torch is built for %s", m.CUDA, orWord(f.TorchCUDA, "the CPU alone"))
	}
}

// fitGPU: SASS runs on the same major with an equal or higher minor, PTX is
// compiled on the node for anything newer; either with an a ("9.0a") is for
// that GPU alone.
func fitGPU(v *Verdict, m wheel.Manifest, g node.GPU) {
	if len(m.Archs) == 0 && len(m.PTX) == 0 || g.Arch == "" {
		return
	}
	major, minor := parts(g.Arch)
	for _, a := range m.Archs {
		if x, y := parts(a); x == major && (y == minor || y < minor && !strings.HasSuffix(a, "a")) {
			return
		}
	}
	for _, p := range m.PTX {
		if !older(g.Arch, p) && (!strings.HasSuffix(p, "a") || p == g.Arch+"a") {
			v.Remarks = append(v.Remarks, fmt.Sprintf("PTX for %s is compiled for %s (%s) on the node at first use", p, g.Name, g.Arch))
			return
		}
	}
	v.refuse("built for %s, this node has %s (%s)", strings.Join(m.Archs, ", "), g.Name, g.Arch)
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// firstTwo cuts a version to X.Y: local parts and patch levels do not count.
func firstTwo(version string) string {
	x, y := parts(version)
	return fmt.Sprintf("%d.%d", x, y)
}

func older(a, b string) bool {
	ax, ay := parts(a)
	bx, by := parts(b)
	return ax < bx || ax == bx && ay < by
}

// parts returns the first two numbers of a version; what is no number is 0.
func parts(version string) (major, minor int) {
	var numbers [2]int
	place, within := -1, false
	for _, r := range version {
		digit := r >= '0' && r <= '9'
		if digit && !within {
			place++
		}
		within = digit
		if place >= len(numbers) {
			break
		}
		if digit {
			numbers[place] = numbers[place]*10 + int(r-'0')
		}
	}
	return numbers[0], numbers[1]
}
