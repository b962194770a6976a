package compat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verdict is whether a wheel runs on a node. Reasons lists everything that prevents it,
// Notes other things worth knowing.
type Verdict struct {
	Reasons []string
	Notes   []string
	hint    func() string
}

// OK reports whether there is no reason against the wheel.
func (v Verdict) OK() bool { return len(v.Reasons) == 0 }

// Hint suggests how to get a wheel that fits, or another remedy if this one does not. It searches
// for a wheel, which takes longer than the verdict.
func (v Verdict) Hint() string {
	if v.OK() || v.hint == nil {
		return ""
	}
	return v.hint()
}

// fitCheck compares one wheel with one node.
type fitCheck struct {
	*Tables
	m    wheel.Manifest
	f    node.Facts
	tags [][3]string // Python, ABI and platform in the wheel's name; empty if the name is not a wheel's
	// other is the package of a wheel that is not DeepSpeed's, such as a companion. Only the files of such a wheel
	// are known.
	other string
	Verdict
}

// Fit compares a wheel, of DeepSpeed or another package, with a node. Facts that the probe could not find
// are ignored, unless the wheel cannot run without them (Python, torch).
func (t *Tables) Fit(m wheel.Manifest, f node.Facts) Verdict {
	c := &fitCheck{Tables: t, m: m, f: f}
	if name, err := wheel.ParseFileName(m.Name); err == nil {
		if pypi.CanonPackageName(name.Name) != "deepspeed" {
			c.other = name.Name
		}
		for _, tag := range name.Tags {
			if parts := strings.Split(tag, "-"); len(parts) == 3 {
				c.tags = append(c.tags, [3]string(parts))
			}
		}
	}
	if c.checkMachine(); len(c.Reasons) > 0 { // all else follows from that
		c.hint = c.buildHint
		return c.Verdict
	}
	for _, rule := range []func(){
		c.checkPython, c.checkTorch, c.checkCUDA, c.checkABI, c.checkGlibc, c.checkLibstdcxx, c.checkCPU,
	} {
		rule()
	}
	if !c.m.TorchABI.IsStable() || f.Torch == "" || f.TorchCUDA != "" { // else no device code is loaded
		c.m, _ = m.ForCUDA(f.TorchCUDA)
		c.checkGPUs()
		c.checkDriver()
	}
	c.hint = c.buildHint
	return c.Verdict
}

// FitTorch is Fit for a node that gets this torch from a package index, such as 2.10.0 or 2.10.0+cu126. If torch is
// empty, the node gets no torch.
func (t *Tables) FitTorch(m wheel.Manifest, f node.Facts, torch string) Verdict {
	release, local, _ := strings.Cut(torch, "+")
	f.Torch, f.TorchBuild, f.TorchCUDA, f.CXX11ABI = release, local, t.TorchCUDA(torch, machineOf(f.Platform)), nil
	i := slices.IndexFunc(t.Torches, func(r Torch) bool { return r.Version == release })
	if all := m.CUDAs(); i < 0 && local == "" && len(all) > 0 { // the tables lack it, so its CUDA is no reason
		f.TorchCUDA = all[len(all)-1]
	}
	if i >= 0 {
		newABI := !t.Torches[i].OldABI
		f.CXX11ABI = &newABI
	}
	return t.Fit(m, f)
}

func (c *fitCheck) addReason(format string, args ...any) {
	c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...))
}

func (c *fitCheck) addNote(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// checkMachine compares the machine and C library of the wheel's code, or else the platform in its name, with the node's.
func (c *fitCheck) checkMachine() {
	var built []string
	for _, tag := range c.tags {
		if _, machine := wheel.SplitPlatform(tag[2]); machine != "" && !slices.Contains(built, machine) {
			built = append(built, machine)
		}
	}
	if c.m.CPU != "" {
		built = []string{wheel.CPULevel(c.m.CPU).Machine()}
	}
	if c.m.Musl && c.f.Glibc != "" {
		c.addReason("built for musl, but this node has glibc %s", c.f.Glibc)
	}
	if have := machineOf(c.f.Platform); len(built) > 0 && have != "" && !slices.Contains(built, have) {
		c.addReason("built for %s, but this node is %s", lists.And(built), have)
	}
}

func (c *fitCheck) checkPython() {
	if c.f.Python == "" {
		c.addReason("this node has no Python at the configured interpreter")
		return
	}
	if c.takesPython() {
		return
	}
	tags := lists.Map(c.tags, func(tag [3]string) string { return tag[0] })
	built, have := cmp.Or(c.m.Python, lists.And(appendMissing(nil, tags))), c.f.Python
	if i := slices.IndexFunc(c.tags, func(tag [3]string) bool { return wheel.FreeThreaded(tag[1]) }); i >= 0 {
		built += " (" + c.tags[i][1] + ")"
	}
	if wheel.FreeThreaded(c.f.Tag) {
		have += " without the GIL (" + c.f.Tag + ")"
	}
	c.addReason("built for Python %s, but this node has %s", built, have)
}

// takesPython compares the tags with the node's Python, as installers do. Without tags it uses
// the manifest.
func (c *fitCheck) takesPython() bool {
	f := c.f
	f.Tag = cmp.Or(f.Tag, cpythonTag(firstTwo(f.Python)))
	stable, isStable := strings.CutSuffix(c.m.Python, "+") // of that version or a newer one
	switch {
	case isStable && olderMinor(f.Python, stable):
		return false
	case c.other != "" && c.m.Python != "" && !isStable && firstTwo(f.Python) != c.m.Python &&
		!slices.ContainsFunc(c.tags, func(tag [3]string) bool { return tag[0] == cpythonTag(c.m.Python) }):
		return false // its modules are for another Python than its tags
	case len(c.tags) > 0:
		return slices.ContainsFunc(c.tags, func(tag [3]string) bool { return installsPython(tag[0], tag[1], f) })
	case isStable:
		return installsPython(cpythonTag(stable), "abi3", f)
	}
	return c.m.Python == "" || f.Tag == cpythonTag(c.m.Python)
}

// cpythonTag returns the tag of a Python X.Y: "cp311".
func cpythonTag(python string) string { return "cp" + strings.ReplaceAll(python, ".", "") }

// usesTorch reports whether the code of the wheel needs torch. A wheel of DeepSpeed without ops works with any torch.
func (c *fitCheck) usesTorch() bool {
	if c.other != "" {
		return c.m.TorchABI != nil
	}
	return c.m.Torch != ""
}

// checkTorch compares minor versions: DeepSpeed does not load ops built for a different one. For most other
// packages, only loading them shows for which torch they were built.
func (c *fitCheck) checkTorch() {
	switch {
	case c.f.Python == "" || !c.usesTorch():
	case c.f.Torch == "" && c.m.Torch == "":
		c.addReason("uses torch, but this node's environment has no torch")
	case c.f.Torch == "":
		c.addReason("built against torch %s, but this node's environment has no torch", firstTwo(c.m.Torch))
	case c.m.TorchABI.IsStable():
		switch oldest := c.m.TorchABI.Min; {
		case olderMinor(c.f.Torch, oldest):
			c.addReason("built for torch %s or newer, but this node has %s", oldest, firstTwo(c.f.Torch))
		case preRelease(c.f.Torch) && firstTwo(c.f.Torch) == firstTwo(oldest):
			c.addNote("this node's torch %s is not a release: ops built for torch %s may not load with it", c.f.TorchVersion(), oldest)
		}
	case c.m.Torch == "":
	case firstTwo(c.f.Torch) != firstTwo(c.m.Torch):
		c.addReason("built against torch %s, but this node has %s", firstTwo(c.m.Torch), firstTwo(c.f.Torch))
	case preRelease(c.f.Torch):
		c.addNote("this node's torch %s is not a release: ops built against torch %s may not load with it",
			c.f.TorchVersion(), c.m.Torch)
	}
}

// preRelease reports whether a version is a pre-release: 2.15.0a0, 2.16.0.dev20261101, 2.15.0rc2.
func preRelease(version string) bool {
	public, _, _ := strings.Cut(version, "+")
	return strings.ContainsAny(public, "abcdefghijklmnopqrstuvwxyz")
}

// checkCUDA compares the wheel's CUDA with torch's. Ops that load CUDA's runtime need torch's, with the
// same major version, and DeepSpeed rejects a different minor version if it sees a GPU. Other ops load
// under any CUDA. With the stable ABI, a node whose torch has no CUDA uses only these.
func (c *fitCheck) checkCUDA() {
	built, have := lists.And(c.m.CUDAs()), c.f.TorchCUDA
	if c.f.Python == "" || c.f.Torch == "" || !c.usesTorch() || built == "" {
		return
	}
	if c.m.TorchABI.IsStable() && c.other == "" {
		switch lost := c.unloadable(have); {
		case len(lost) == 0:
		case have == "" && len(lost) < len(c.m.Ops):
			c.addNote("this node's torch has no CUDA: %s cannot be loaded there", lists.And(lost))
		case have == "":
			c.addReason("built for CUDA %s, but this node's torch has none", built)
		case slices.Contains(c.m.CUDAs(), wheel.Major(have)):
			c.addNote("%s has no code for CUDA %s, which this node's torch is built for", lists.And(lost), wheel.Major(have))
		default:
			c.addReason("built for CUDA %s, but this node's torch is built for %s", built, have)
		}
		return
	}
	if !c.boundToCUDA() {
		if have == "" && len(c.m.Ops) > 0 {
			c.addNote("this node's torch has no CUDA: DeepSpeed uses the wheel's ops only with DS_ACCELERATOR=cuda")
		}
		return
	}
	switch {
	case have == "":
		c.addReason("built for CUDA %s, but this node's torch has none", built)
	case !slices.Contains(lists.Map(c.m.CUDAs(), wheel.Major), wheel.Major(have)), c.other == "" &&
		strings.Contains(built, ".") && firstTwo(have) != firstTwo(built) && len(c.f.GPUs) > 0:
		c.addReason("built for CUDA %s, but this node's torch is built for %s", built, have)
	case c.other == "" && strings.Contains(built, ".") && firstTwo(have) != firstTwo(built):
		c.addNote("built for CUDA %s, but this node's torch is built for %s: DeepSpeed rejects this if the node has a GPU",
			built, have)
	}
}

// boundToCUDA reports whether any op loads only with a torch for its CUDA. It is true for ops that
// the tables lack.
func (c *fitCheck) boundToCUDA() bool {
	if c.other != "" { // it loads the runtime of this CUDA
		return true
	}
	return c.hasDeviceCode() || slices.ContainsFunc(c.m.Ops, func(name string) bool {
		i := slices.IndexFunc(c.Ops, func(o Op) bool { return o.Name == name })
		return i < 0 || c.Ops[i].boundToCUDA(c.m.Version)
	})
}

// unloadable lists the ops of a wheel of the stable ABI that do not load with a torch for a CUDA, or without CUDA. If
// no variant lists the ops with device code, the tables do, and an op that they lack is treated as such an op.
func (c *fitCheck) unloadable(cuda string) []string {
	named := slices.ContainsFunc(c.m.Variants, func(v wheel.Variant) bool { return v.CUDA != "" })
	loads := c.m.OpsFor(cuda)
	if !named && c.hasDeviceCode() && wheel.Major(cuda) != wheel.Major(c.m.CUDA) {
		loads = slices.DeleteFunc(loads, func(name string) bool {
			i := slices.IndexFunc(c.Ops, func(o Op) bool { return o.Name == name })
			return i < 0 || c.Ops[i].inRelease(c.m.Version).DeviceCode
		})
	}
	return slices.DeleteFunc(slices.Clone(c.m.Ops), func(op string) bool { return slices.Contains(loads, op) })
}

func (c *fitCheck) hasDeviceCode() bool { return len(c.m.Archs)+len(c.m.PTX) > 0 }

// checkABI compares the wheel's C++ ABI with torch's: code compiled for one std::string finds
// no function of a torch compiled for the other.
func (c *fitCheck) checkABI() {
	if c.m.TorchABI.IsStable() {
		return
	}
	if c.f.CXX11ABI == nil || !c.usesTorch() || c.other == "" && len(c.m.Ops) == 0 || *c.f.CXX11ABI == c.m.CXX11ABI {
		return
	}
	words := map[bool]string{true: "the new std::string (CXX11 ABI)", false: "the old std::string"}
	c.addReason("built for torch with %s, but this node's torch has %s", words[c.m.CXX11ABI], words[*c.f.CXX11ABI])
}

// checkGlibc compares two versions with the node's glibc: the version that the code's symbols need,
// and the minimum in the name's platform tag, which installers enforce. The second can be higher,
// because it also stands for libstdc++.
func (c *fitCheck) checkGlibc() {
	promised := ""
	for i, tag := range c.tags {
		if glibc, _ := wheel.SplitPlatform(tag[2]); i == 0 || olderMinor(glibc, promised) {
			promised = glibc
		}
	}
	need := c.m.Glibc
	if olderMinor(need, promised) {
		need = promised
	}
	switch have := c.f.Glibc; {
	case have == "" || need == "" || !olderMinor(have, need):
	case c.m.Glibc != "" && !olderMinor(have, c.m.Glibc):
		c.addReason("tagged for glibc %s or newer, which pip requires, but this node has %s", need, have)
	default:
		c.addReason("needs glibc %s, but this node has %s", need, have)
	}
}

func (c *fitCheck) checkLibstdcxx() {
	if need, have := c.m.GLIBCXX, c.f.Libstdcxx; need != "" && have != "" && compareVersions(have, need) < 0 {
		c.addReason("needs GLIBCXX %s of libstdc++, but this node has %s", need, have)
	}
}

func (c *fitCheck) checkCPU() {
	need, have := wheel.CPULevel(c.m.CPU), wheel.CPULevel(c.f.CPU)
	if need != "" && have != "" && !have.Includes(need) {
		short := have.Short()
		if have == wheel.CPUv1 { // which has no number
			short = "v1"
		}
		c.addReason("needs %s, but this CPU has %s", need, short)
	}
}

// torchLacks reports whether the node's torch is from the package index and has no code for a GPU. Nothing is known
// about other builds of torch, whose local version is not the wheels' cu124.
func (c *fitCheck) torchLacks(arch string) bool {
	if c.f.TorchBuild != "cu"+strings.ReplaceAll(c.f.TorchCUDA, ".", "") {
		return false
	}
	i := slices.IndexFunc(c.Torches, func(r Torch) bool { return r.Version == c.f.Torch && r.CUDA == c.f.TorchCUDA })
	return i >= 0 && !c.torchRunsOn(c.Torches[i], archOf(arch), machineOf(c.f.Platform))
}

// checkGPUs compares the device code with every GPU, each kind once.
func (c *fitCheck) checkGPUs() {
	if !c.hasDeviceCode() {
		return
	}
	// Over the stable ABI the loader finds out.
	loads := c.m.TorchABI.IsStable() && len(c.unloadable("")) < len(c.m.Ops)
	if len(c.f.GPUs) == 0 && c.other == "" && !loads {
		c.addNote("no GPU is visible on this node: DeepSpeed uses the wheel's ops only with DS_ACCELERATOR=cuda")
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
			c.addNote("the compute capability of %s is unknown; the code for %s may not run there",
				ShortGPU(g.Name), c.deviceCodeNames())
			continue
		}
		c.checkGPU(name, arch)
	}
}

func (c *fitCheck) checkGPU(name, arch string) {
	if c.torchLacks(arch) {
		c.addReason("this node's torch %s has no code for %s, so torch does not run on it", c.f.TorchVersion(), name)
	}
	if c.hasSASS(c.m.Archs, arch) {
		c.noteMissingOps(name, arch)
		return
	}
	ptx := newestPTX(c.m.PTX, arch)
	toolkit := cmp.Or(c.m.Toolchain.Toolkit, c.m.CUDA)
	floor := cudaRow(c.CUDAs, toolkit).PTXDriver
	switch {
	case ptx == "":
		c.needGPU("built for %s, but this node has %s", c.deviceCodeNames(), name)
	case olderDriver(c.f.Driver, floor):
		c.needGPU("built for %s, but this node has %s, and PTX of CUDA %s needs driver %s or newer, but this node has %s",
			c.deviceCodeNames(), name, firstTwo(toolkit), floor, c.f.Driver)
	default:
		c.addNote("%s uses the PTX for %s, which the driver compiles on first use (slow)", name, ptx)
		c.noteMissingOps(name, arch)
	}
}

// needGPU adds a reason why GPUs do not run the wheel's code. For a package that does not use torch it adds a note,
// because the package may also have code for CPUs.
func (c *fitCheck) needGPU(format string, args ...any) {
	if c.other != "" && !c.usesTorch() {
		c.addNote(format, args...)
		return
	}
	c.addReason(format, args...)
}

// noteMissingOps names the ops without code for a GPU that other ops have code for.
func (c *fitCheck) noteMissingOps(name, arch string) {
	for _, op := range slices.Sorted(maps.Keys(c.m.OpArchs)) {
		has := c.m.OpArchs[op]
		if len(has.Archs)+len(has.PTX) > 0 && !c.hasSASS(has.Archs, arch) && newestPTX(has.PTX, arch) == "" {
			c.addNote("op %s has no code for %s", op, name)
		}
	}
}

// hasSASS reports whether machine code for one of archs runs on a GPU, by runsCodeFor. With an a (9.0a)
// it runs only on that very GPU. An f (10.0f) means a family, the rest of the major version in any case.
func (t *Tables) hasSASS(archs []string, gpu string) bool {
	return slices.ContainsFunc(archs, func(a string) bool {
		code, on := archOf(a), archOf(gpu)
		return code == on || !strings.HasSuffix(a, "a") && t.runsCodeFor(code, on)
	})
}

// newestPTX returns the PTX that the driver compiles for a GPU: the newest for an arch that is
// not newer than the GPU. PTX with an a is for one GPU, PTX with an f for a family; other PTX is
// for all later GPUs.
func newestPTX(ptx []string, gpu string) string {
	best := ""
	for _, p := range ptx {
		fits := !olderMinor(gpu, p)
		switch {
		case strings.HasSuffix(p, "a"):
			fits = firstTwo(p) == firstTwo(gpu)
		case strings.HasSuffix(p, "f"):
			fits = fits && wheel.Major(p) == wheel.Major(gpu)
		}
		if fits && (best == "" || olderMinor(best, p)) {
			best = p
		}
	}
	return best
}

// deviceCodeNames names the device code as nvcc does: "sm_80, sm_90a and PTX for 9.0".
func (c *fitCheck) deviceCodeNames() string {
	out := lists.Map(c.m.Archs, func(a string) string { return "sm_" + strings.ReplaceAll(a, ".", "") })
	for _, p := range c.m.PTX {
		out = append(out, "PTX for "+p)
	}
	return lists.And(out)
}

// checkDriver compares the node's driver with the oldest driver for the wheel's CUDA, or torch's if the wheel has no
// device code. A CUDA runs on the first driver of its major version and every newer one.
func (c *fitCheck) checkDriver() {
	cuda := c.f.TorchCUDA
	if c.hasDeviceCode() {
		cuda = c.m.CUDA
	}
	floor := cudaRow(c.CUDAs, cuda).Driver
	switch {
	case len(c.f.GPUs) == 0 || !olderDriver(c.f.Driver, floor):
	case c.hasDeviceCode():
		c.needGPU("built for CUDA %s, which needs driver %s or newer, but this node has %s", cuda, floor, c.f.Driver)
	case c.other == "":
		c.addNote("CUDA %s needs driver %s or newer, but this node has %s: torch may not see the GPUs", cuda, floor, c.f.Driver)
	}
}

// olderDriver reports whether a driver is older than another. It is false for an unknown driver,
// or one that is not a number.
func olderDriver(have, floor string) bool {
	known := have != "" && have[0] >= '0' && have[0] <= '9'
	return known && floor != "" && compareVersions(have, floor) < 0
}

// DriverSupports reports whether a driver runs a CUDA. It is true for an unknown driver.
func (t *Tables) DriverSupports(driver, cuda string) bool {
	return !olderDriver(driver, cudaRow(t.CUDAs, cuda).Driver)
}

// cudaRow returns a CUDA's entry. If the tables lack it, cudaRow returns the entry of the newest older
// CUDA with the same major version, or else of the oldest.
func cudaRow(all []CUDA, cuda string) CUDA {
	var found CUDA
	for _, c := range all { // newest first
		if cuda != "" && wheel.Major(c.Version) == wheel.Major(cuda) {
			if found = c; compareVersions(c.Version, firstTwo(cuda)) <= 0 {
				break
			}
		}
	}
	return found
}

// archOfGPU returns the compute capability of a device. If the node did not report it, archOfGPU
// looks up the device's name, and returns "" if the tables lack the name or it can mean two.
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

// firstTwo cuts a version to X.Y, without patch level and local part.
func firstTwo(version string) string {
	n := releaseNumbers(version)
	return fmt.Sprintf("%d.%d", n[0], n[1])
}

func olderMinor(a, b string) bool {
	x, y := releaseNumbers(a), releaseNumbers(b)
	return slices.Compare(x[:2], y[:2]) < 0
}

// buildHint returns the command for a wheel that would fit, or another remedy.
func (c *fitCheck) buildHint() string {
	if c.other != "" {
		return "use a wheel of " + c.other + " that was built for these nodes and their torch"
	}
	if _, hint := unusable(c.f); hint != "" {
		return hint
	}
	var want wheel.Request
	release, _, _ := strings.Cut(c.m.Version, "+")
	i := slices.IndexFunc(c.DeepSpeeds, func(d DeepSpeed) bool { return d.Version == release })
	if i > 0 { // the newest is the default
		want.DeepSpeed = release
	}
	for _, op := range c.Ops {
		if slices.Contains(c.m.Ops, op.Name) {
			want.Ops = append(want.Ops, op.Name)
		}
	}
	if byDefault := wheel.DefaultOps(); len(want.Ops) == len(byDefault) && hasAll(want.Ops, byDefault) {
		want.Ops = nil
	}
	stable := want
	stable.ABI = wheel.StableABI
	attempts := []attempt{{Request: stable}, {Request: want}, {want, c.images}}
	if !c.m.TorchABI.IsStable() {
		attempts = attempts[1:]
	}
	for _, a := range attempts {
		g := c.group([]Member{{Name: "this node", Facts: c.f}}, a)
		if len(g.Groups) == 0 {
			continue
		}
		a.Request = g.Groups[0].Request
		e, flags := c.find(a), flagsOf(a.Request)
		abi := a.ABI
		a.ABI = ""
		if byDefault := c.find(a); byDefault != nil && byDefault.toolchain.ABI == abi {
			flags = without(flags, "--abi "+string(abi))
		}
		if a.hosts != nil {
			flags = append(flags, "--base "+e.host.Ref)
		}
		return strings.Join(append([]string{"build a wheel that fits it: dsbuild wheel"}, flags...), " ")
	}
	g, _ := c.newGrouper(nil, attempt{Request: want})
	return g.nodeHint(c.f)
}

// flagsOf writes a request as flags of a command line.
func flagsOf(s wheel.Request) []string {
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
		add("--gpu", QuoteFlag(name))
	}
	add("--abi", string(s.ABI))
	add("--ops", strings.Join(s.Ops, ","))
	add("--deepspeed", s.DeepSpeed)
	add("--torch", s.Torch)
	if s.Torch == "" { // else it decides
		add("--cuda", s.CUDA)
	}
	add("--python", s.Python)
	switch {
	case s.CPU == wheel.CPUArm:
		add("--machine", wheel.Arm)
	case s.CPU != wheel.CPUv3 || s.ABI != wheel.TorchMinor: // else it is the default
		add("--cpu", string(s.CPU))
	}
	add("--target-glibc", s.Glibc)
	return out
}
