package compat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verdict says whether a wheel runs on a node. Reasons holds every refusal in
// words; Remarks what is worth knowing but refuses nothing.
type Verdict struct {
	Reasons []string
	Remarks []string
	hint    func() string
}

// OK reports whether nothing speaks against the wheel.
func (v Verdict) OK() bool { return len(v.Reasons) == 0 }

// Hint says how to get a wheel that fits, where this one does not, or what else
// would help. It looks for one, which takes longer than the verdict.
func (v Verdict) Hint() string {
	if v.OK() || v.hint == nil {
		return ""
	}
	return v.hint()
}

// fitting is a wheel held against a node.
type fitting struct {
	*Tables
	m    wheel.Manifest
	f    node.Facts
	tags [][3]string // Python, ABI and platform by the wheel's name; none where that is no name of a wheel
	Verdict
}

// Fit compares what a wheel was built for with what a node has. A fact the
// probe could not learn refuses nothing, unless the wheel cannot run without
// what it stands for (Python, torch).
func (t *Tables) Fit(m wheel.Manifest, f node.Facts) Verdict {
	c := &fitting{Tables: t, m: m, f: f}
	if name, err := wheel.ParseFileName(m.Name); err == nil {
		for _, tag := range name.Tags {
			if parts := strings.Split(tag, "-"); len(parts) == 3 {
				c.tags = append(c.tags, [3]string(parts))
			}
		}
	}
	for _, rule := range []func(){c.machine, c.python, c.torch, c.cuda, c.abi, c.glibc, c.libstdcxx, c.cpu, c.gpus, c.driver} {
		rule()
	}
	c.hint = c.remedy
	return c.Verdict
}

func (c *fitting) refuse(format string, args ...any) {
	c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...))
}

func (c *fitting) remark(format string, args ...any) {
	c.Remarks = append(c.Remarks, fmt.Sprintf(format, args...))
}

// machine: the name's platform says what code is for. A wheel without such a
// name has x86_64 code if it has a CPU level, and else no machine code.
func (c *fitting) machine() {
	var built []string
	for _, tag := range c.tags {
		if _, machine := splitPlatform(tag[2]); machine != "" && !slices.Contains(built, machine) {
			built = append(built, machine)
		}
	}
	if len(built) == 0 && c.m.CPU != "" {
		built = []string{x86}
	}
	if have := machineOf(c.f.Platform); len(built) > 0 && have != "" && !slices.Contains(built, have) {
		c.refuse("built for %s, this node is %s", listed(built), have)
	}
}

func (c *fitting) python() {
	if c.f.Python == "" {
		c.refuse("this node has no Python at the interpreter the inventory names")
		return
	}
	if c.takesPython() {
		return
	}
	built, have := cmp.Or(c.m.Python, c.pythonTags()), c.f.Python
	if i := slices.IndexFunc(c.tags, func(tag [3]string) bool { return freeThreaded(tag[1]) }); i >= 0 {
		built += " (" + c.tags[i][1] + ")"
	}
	if freeThreaded(c.f.Tag) {
		have += " without the global lock (" + c.f.Tag + ")"
	}
	c.refuse("built for Python %s, this node has %s", built, have)
}

// takesPython goes by the tags, as installers do; without any by the manifest.
func (c *fitting) takesPython() bool {
	f := c.f
	f.Tag = cmp.Or(f.Tag, cpython(firstTwo(f.Python)))
	stable, isStable := strings.CutSuffix(c.m.Python, "+") // of that version or a newer one
	switch {
	case len(c.tags) > 0:
		return slices.ContainsFunc(c.tags, func(tag [3]string) bool { return installsPython(tag[0], tag[1], f) })
	case isStable:
		return installsPython(cpython(stable), "abi3", f)
	}
	return c.m.Python == "" || f.Tag == cpython(c.m.Python)
}

// cpython is the tag of a Python X.Y: "cp311".
func cpython(python string) string { return "cp" + strings.ReplaceAll(python, ".", "") }

func (c *fitting) pythonTags() string {
	var out []string
	for _, tag := range c.tags {
		if !slices.Contains(out, tag[0]) {
			out = append(out, tag[0])
		}
	}
	return listed(out)
}

// torch compares minors: DeepSpeed refuses to load ops built for another one. A
// wheel without ops is bound to none.
func (c *fitting) torch() {
	switch {
	case c.f.Python == "" || c.m.Torch == "":
	case c.f.Torch == "":
		c.refuse("built against torch %s, this node's environment has no torch", firstTwo(c.m.Torch))
	case firstTwo(c.f.Torch) != firstTwo(c.m.Torch):
		c.refuse("built against torch %s, node has %s", firstTwo(c.m.Torch), firstTwo(c.f.Torch))
	case preRelease(c.f.Torch):
		c.remark("this node's torch %s is no release: what is built against torch %s may not load under it", c.f.Torch, c.m.Torch)
	}
}

// preRelease reports whether a version is one: 2.15.0a0, 2.16.0.dev20261101, 2.15.0rc2.
func preRelease(version string) bool {
	public, _, _ := strings.Cut(version, "+")
	return strings.ContainsAny(public, "abcdefghijklmnopqrstuvwxyz")
}

// cuda: ops that load CUDA's runtime need that of torch, of the same major, and
// DeepSpeed refuses another minor where it sees a GPU. The rest does not mind.
func (c *fitting) cuda() {
	built, have := c.m.CUDA, c.f.TorchCUDA
	if c.f.Python == "" || c.f.Torch == "" || c.m.Torch == "" || built == "" {
		return
	}
	if !c.bound() {
		if have == "" && len(c.m.Ops) > 0 {
			c.remark("this node's torch has no CUDA: there DeepSpeed uses the wheel's operators only with DS_ACCELERATOR=cuda")
		}
		return
	}
	switch {
	case have == "":
		c.refuse("built for CUDA %s, this node's torch has none", built)
	case major(have) != major(built), strings.Contains(built, ".") && firstTwo(have) != firstTwo(built) && len(c.f.GPUs) > 0:
		c.refuse("built for CUDA %s, this node's torch is built for %s", built, have)
	case strings.Contains(built, ".") && firstTwo(have) != firstTwo(built):
		c.remark("built for CUDA %s, this node's torch is built for %s: DeepSpeed refuses that as soon as there is a GPU", built, have)
	}
}

// bound reports whether any op is loaded only under a torch of its CUDA. One
// that is not in the tables is taken to be.
func (c *fitting) bound() bool {
	return c.device() || slices.ContainsFunc(c.m.Ops, func(name string) bool {
		i := slices.IndexFunc(c.Ops, func(o Op) bool { return o.Name == name })
		return i < 0 || c.Ops[i].bound(c.m.Version)
	})
}

// device reports whether the wheel has device code.
func (c *fitting) device() bool { return len(c.m.Archs)+len(c.m.PTX) > 0 }

// abi: what is compiled for one std::string finds none of the functions of the
// other in torch.
func (c *fitting) abi() {
	if c.f.CXX11ABI == nil || c.m.Torch == "" || len(c.m.Ops) == 0 || *c.f.CXX11ABI == c.m.CXX11ABI {
		return
	}
	words := map[bool]string{true: "the new std::string (CXX11 ABI)", false: "the old std::string"}
	c.refuse("built for torch with %s, this node's has %s", words[c.m.CXX11ABI], words[*c.f.CXX11ABI])
}

// glibc: the code's symbols need one, and the name's platform promises one,
// below which no installer takes the wheel. That can be the higher: it stands
// for libstdc++ too.
func (c *fitting) glibc() {
	promised := ""
	for i, tag := range c.tags {
		if glibc, _ := splitPlatform(tag[2]); i == 0 || older(glibc, promised) {
			promised = glibc
		}
	}
	need := c.m.Glibc
	if older(need, promised) {
		need = promised
	}
	switch have := c.f.Glibc; {
	case have == "" || need == "" || !older(have, need):
	case c.m.Glibc != "" && !older(have, c.m.Glibc):
		c.refuse("tagged for glibc %s, below which pip does not install it, this node has %s", need, have)
	default:
		c.refuse("needs glibc %s, this node has %s", need, have)
	}
}

func (c *fitting) libstdcxx() {
	if need, have := c.m.GLIBCXX, c.f.Libstdcxx; need != "" && have != "" && compareVersions(have, need) < 0 {
		c.refuse("needs GLIBCXX %s of libstdc++, this node has %s", need, have)
	}
}

func (c *fitting) cpu() {
	need, have := wheel.CPULevel(c.m.CPU), wheel.CPULevel(c.f.CPU)
	if need != "" && have != "" && !have.Includes(need) {
		c.refuse("needs %s, this CPU has %s", need, shortLevel(have))
	}
}

// shortLevel is "v3" for x86-64-v3; the lowest has no number of its own.
func shortLevel(l wheel.CPULevel) string {
	if l == wheel.CPUv1 {
		return "v1"
	}
	return l.Short()
}

// gpus holds the device code against every GPU, each kind once.
func (c *fitting) gpus() {
	if !c.device() {
		return
	}
	if len(c.f.GPUs) == 0 {
		c.remark("no GPU is seen on this node: there DeepSpeed uses the wheel's operators only with DS_ACCELERATOR=cuda")
	}
	var seen []string
	for _, g := range c.f.GPUs {
		arch := c.archOfGPU(g)
		name := fmt.Sprintf("%s (%s)", ShortGPU(g.Name), arch)
		if slices.Contains(seen, name) {
			continue
		}
		seen = append(seen, name)
		if arch == "" {
			c.remark("the compute capability of %s is not known: whether the code for %s runs there is not either", ShortGPU(g.Name), c.builtFor())
			continue
		}
		c.gpu(name, arch)
	}
}

func (c *fitting) gpu(name, arch string) {
	if c.hasSASS(c.m.Archs, arch) {
		c.partly(name, arch)
		return
	}
	ptx := newestPTX(c.m.PTX, arch)
	toolkit := cmp.Or(c.m.Toolchain.Toolkit, c.m.CUDA)
	floor := c.release(toolkit).PTXDriver
	switch {
	case ptx == "":
		c.refuse("built for %s, this node has %s", c.builtFor(), name)
	case olderDriver(c.f.Driver, floor):
		c.refuse("built for %s, this node has %s, and PTX of CUDA %s takes driver %s or newer, this node has %s", c.builtFor(), name, firstTwo(toolkit), floor, c.f.Driver)
	default:
		c.remark("%s gets the PTX for %s: the driver compiles it at first use, which takes a while", name, ptx)
		c.partly(name, arch)
	}
}

// partly names the ops that have not the code that others have.
func (c *fitting) partly(name, arch string) {
	for _, op := range slices.Sorted(maps.Keys(c.m.OpArchs)) {
		if has := c.m.OpArchs[op]; !c.hasSASS(has.Archs, arch) && newestPTX(has.PTX, arch) == "" {
			c.remark("operator %s has no code for %s", op, name)
		}
	}
}

// hasSASS reports whether machine code for one of archs runs on a GPU: of the
// same major with an equal or lower minor. With an a (9.0a) it is for that very
// GPU; an f (10.0f), its family, is the rest of its major in any case. Nothing
// runs across the line between Tegra, the GPUs on one chip with their CPU, and
// the others, nor on another Tegra.
func (t *Tables) hasSASS(archs []string, gpu string) bool {
	major, minor := parts(gpu)
	return slices.ContainsFunc(archs, func(a string) bool {
		x, y := parts(a)
		same := x == major && y == minor
		if strings.HasSuffix(a, "a") || t.tegra(gpu) || t.tegra(a) {
			return same
		}
		return x == major && y <= minor
	})
}

// tegra reports whether an arch is that of a Jetson.
func (t *Tables) tegra(arch string) bool {
	return slices.ContainsFunc(t.GPUs, func(g GPU) bool { return g.Class == jetson && g.Arch == firstTwo(arch) })
}

const jetson = "Jetson"

// newestPTX returns the PTX that the driver compiles for a GPU: the newest for
// an arch that is not newer. That with an a is for one GPU, that with an f for a
// family; other PTX is for all that come after.
func newestPTX(ptx []string, gpu string) string {
	best := ""
	for _, p := range ptx {
		fits := !older(gpu, p)
		switch {
		case strings.HasSuffix(p, "a"):
			fits = firstTwo(p) == firstTwo(gpu)
		case strings.HasSuffix(p, "f"):
			fits = fits && major(p) == major(gpu)
		}
		if fits && (best == "" || older(best, p)) {
			best = p
		}
	}
	return best
}

// builtFor names the device code as nvcc does: "sm_80, sm_90a and PTX for 9.0".
func (c *fitting) builtFor() string {
	var out []string
	for _, a := range c.m.Archs {
		out = append(out, "sm_"+strings.ReplaceAll(a, ".", ""))
	}
	for _, p := range c.m.PTX {
		out = append(out, "PTX for "+p)
	}
	return listed(out)
}

// driver: a CUDA runs on every driver from the first of its major on.
func (c *fitting) driver() {
	floor := c.release(c.m.CUDA).Driver
	if len(c.f.GPUs) == 0 || !olderDriver(c.f.Driver, floor) {
		return
	}
	if c.device() {
		c.refuse("built for CUDA %s, which takes driver %s or newer, this node has %s", c.m.CUDA, floor, c.f.Driver)
		return
	}
	c.remark("CUDA %s takes driver %s or newer, this node has %s: its torch may see no GPU", c.m.CUDA, floor, c.f.Driver)
}

// olderDriver reports whether a driver is older than another. One that is not
// known, or no number, is not.
func olderDriver(have, floor string) bool {
	known := have != "" && have[0] >= '0' && have[0] <= '9'
	return known && floor != "" && compareVersions(have, floor) < 0
}

// Drives reports whether a driver runs a CUDA. One that is not known does.
func (t *Tables) Drives(driver, cuda string) bool {
	return !olderDriver(driver, t.release(cuda).Driver)
}

// release is the row of a CUDA; of one that is not in the tables that of the
// newest before it, or else the oldest, of the same major.
func (t *Tables) release(cuda string) CUDA {
	var found CUDA
	for _, c := range t.CUDAs { // newest first
		if cuda != "" && major(c.Version) == major(cuda) {
			if found = c; compareVersions(c.Version, firstTwo(cuda)) <= 0 {
				break
			}
		}
	}
	return found
}

// archOfGPU is the compute capability of a device; by its name where the node
// did not say, "" where the tables do not know that or it can mean two.
func (t *Tables) archOfGPU(g node.GPU) string {
	if g.Arch != "" {
		return g.Arch
	}
	arch := ""
	for _, row := range t.GPUsNamed(g.Name) {
		if arch != "" && row.Arch != arch {
			return ""
		}
		arch = row.Arch
	}
	return arch
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

// remedy is a wheel that would fit, or what else would help.
func (c *fitting) remedy() string {
	var want wheel.Spec
	release, _, _ := strings.Cut(c.m.Version, "+")
	if i := slices.IndexFunc(c.DeepSpeeds, func(d DeepSpeed) bool { return d.Version == release }); i > 0 { // the newest is the default
		want.DeepSpeed = release
	}
	for _, op := range c.Ops {
		if slices.Contains(c.m.Ops, op.Name) {
			want.Ops = append(want.Ops, op.Name)
		}
	}
	if byDefault := wheel.DefaultOps(); len(want.Ops) == len(byDefault) && !slices.ContainsFunc(byDefault, func(name string) bool { return !slices.Contains(want.Ops, name) }) {
		want.Ops = nil
	}
	g := c.Group([]Member{{Name: "this node", Facts: c.f}}, want)
	if len(g.Groups) == 1 {
		return "build one that fits it: dsbuild wheel " + strings.Join(flags(g.Groups[0].Spec), " ")
	}
	return g.Left[0].Hint
}

// flags are what to say on a command line for a Spec.
func flags(s wheel.Spec) []string {
	var out []string
	add := func(flag, value string) {
		if value != "" {
			out = append(out, flag+" "+value)
		}
	}
	for _, a := range s.Archs {
		add("--arch", a.String())
	}
	for _, name := range s.GPUs {
		add("--gpu", quoted(name))
	}
	add("--ops", strings.Join(s.Ops, ","))
	add("--deepspeed", s.DeepSpeed)
	add("--torch", s.Torch)
	add("--python", s.Python)
	if s.CPU != wheel.CPUv3 {
		add("--cpu", string(s.CPU))
	}
	add("--glibc", s.Glibc)
	return out
}
