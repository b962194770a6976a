package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// evaluation compares a candidate with the requirements.
type evaluation struct {
	*Tables
	*requirements
	candidate
	// What is known before the conflicts, lower is better, and the first that differs decides: the archs asked for
	// that torch's own binaries do not run on; 1 if all ops are asked for and there is no nvcc; 1 if the build host
	// has a toolkit that is not used; the torch's place in the table; 1 if the toolkit is not of exactly torch's CUDA.
	preference []int
	toolchain  Toolchain
	cuda       CUDA         // the row of the toolkit that compiles
	targets    []wheel.Arch // archs asked for, or all of the toolkit
	conflicts  []string
	impossible bool // this build environment can never use the CUDA source
	warnings   []string
	notes      []string
	made       *wheel.Manifest // see manifest
}

// evaluate makes a toolchain of the candidate, or notes the conflicts that prevent it.
func (a *evaluation) evaluate() {
	a.toolchain = Toolchain{
		CUDASource: a.source.Source, Environment: a.host, Nvcc: a.source.Nvcc, Python: a.python,
		DeepSpeed: a.deepspeed.Version, Source: a.deepspeed.SHA256, Torch: a.torch.Version, CUDA: a.torch.CUDA,
		Index: a.torch.Index, TorchHash: a.torch.SHA256[a.python], Standard: a.torch.Standard, Toolkit: a.toolkitVersion(),
		Pins: a.pins(), CPU: cmp.Or(a.request.CPU, wheel.DefaultCPU(a.machine)), Glibc: a.request.Glibc,
		AllOps: a.allOps,
	}
	a.chooseABI()
	if a.toolchain.ABI == wheel.StableABI && a.request.CPU == "" {
		a.toolchain.CPU = wheel.CPULevels(a.machine)[0]
	}
	a.checkMachine()
	a.checkHost()
	if !a.DriverSupports(a.request.Driver, a.torch.CUDA) {
		a.addConflict("torch %s is built for CUDA %s, which needs driver %s or newer, not %s",
			a.torch.Version, a.torch.CUDA, cudaRow(a.CUDAs, a.torch.CUDA).Driver, a.request.Driver)
	}
	if a.impossible || !a.findCUDA() {
		return
	}
	a.chooseArchs()
	a.chooseOps()
	a.checkArchs()
	a.checkLimits()
	a.chooseGCC()
	ptx := wheel.Capabilities(slices.DeleteFunc(slices.Clone(a.toolchain.Archs), func(arch wheel.Arch) bool { return !arch.PTX }), false)
	if len(ptx) > 0 && olderDriver(a.request.Driver, a.cuda.PTXDriver) {
		a.addWarning("PTX of CUDA %s needs driver %s or newer, not %s: newer GPUs than arch %s cannot use it with that driver",
			firstTwo(a.toolchain.Toolkit), a.cuda.PTXDriver, a.request.Driver, lists.And(ptx))
	}
}

func (a *evaluation) addConflict(format string, args ...any) {
	a.conflicts = append(a.conflicts, fmt.Sprintf(format, args...))
}

func (a *evaluation) addWarning(format string, args ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, args...))
}

func (a *evaluation) addNote(format string, args ...any) {
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
}

// pins lists the requirements that replace those of all toolchains: of this torch, and of this
// release of DeepSpeed.
func (a *evaluation) pins() []string {
	all := slices.Clone(a.torch.Pins)
	for _, l := range a.limits() {
		all = append(all, l.Pins...)
	}
	return pinsFor(a.python, all)
}

// PinsFor lists the requirements that a torch needs otherwise than all toolchains, for a Python.
func (t Torch) PinsFor(python string) []string { return pinsFor(python, t.Pins) }

func pinsFor(python string, all []Pin) []string {
	var out []string
	for _, p := range all {
		if (p.FromPython == "" || compareVersions(python, p.FromPython) >= 0) && !slices.Contains(out, p.Requirement) {
			out = append(out, p.Requirement)
		}
	}
	return out
}

// toolkitVersion returns the version of the headers and of nvcc.
func (a *evaluation) toolkitVersion() string {
	switch {
	case a.source.CUDA != "":
		return a.source.CUDA
	case a.source.Source == FoundCUDA:
		return a.host.CUDA
	case a.torch.Toolkit != "":
		return a.torch.Toolkit
	}
	return a.torch.CUDA
}

// fitsTorch reports whether a CUDA source can serve a torch at all. Torch rejects a toolkit with a
// different major version, which cannot compile for it.
func (r CUDASourceInfo) fitsTorch(torch Torch, g BuildHost) bool {
	if r.Source == FoundCUDA {
		return g.CUDA != "" && wheel.Major(g.CUDA) == wheel.Major(torch.CUDA)
	}
	return r.TorchCUDA == wheel.Major(torch.CUDA)
}

// checkHost rejects a build environment in which the CUDA source cannot be
// installed.
func (a *evaluation) checkHost() {
	a.impossible = a.source.Suite != "" && (a.host.Host || a.host.Suite != a.source.Suite)
	switch {
	case !a.impossible:
	case a.host.Host:
		a.addConflict("%s needs root and the distribution's package manager, which the host builder does not use",
			a.source.Title)
	default:
		a.addConflict("%s", a.otherBaseConflict())
	}
	if a.host.Runtime != "" {
		a.addNote("CUDA %s of %s is not used: the image has no nvcc; torch %s is built for CUDA %s",
			a.host.Runtime, a.host.Name, a.torch.Version, a.torch.CUDA)
	}
	if a.source.Source != FoundCUDA && a.host.CUDA != "" {
		a.addNote("CUDA %[2]s of %[1]s is not used: torch %[3]s is built for CUDA %[4]s",
			a.host.Name, a.host.CUDA, a.torch.Version, a.torch.CUDA)
	}
}

// checkMachine rejects what is impossible for aarch64 wheels and for cross builds.
func (a *evaluation) checkMachine() {
	switch {
	case !a.torch.hasCUDAFor(a.machine):
		a.addConflict("%s", whyNoCUDA(a.torch, a.Torches))
	case !a.toolchain.IsCross():
	case a.toolchain.ABI != wheel.StableABI:
		a.addConflict("a wheel for one torch minor version needs that torch's libraries, so "+
			"one for %s can only be built on such a machine; "+
			"cross builds for %[1]s require the stable ABI", a.machine)
	case a.source.Source != CUDA13:
		a.addConflict("wheels for %s can only be built with %s, whose CUDA comes from Python packages", a.machine, CUDA13)
	}
}

// hasCUDAFor reports whether torch's wheel for a machine has CUDA.
func (t Torch) hasCUDAFor(machine string) bool { return machine != wheel.Arm || t.ArmArchs != nil }

// whyNoCUDA explains that a torch has no CUDA for aarch64, and which torches do.
func whyNoCUDA(of Torch, all []Torch) string {
	why := fmt.Sprintf("torch %s has no CUDA in its wheel for %s", of.Version, wheel.Arm)
	if does := torchesThat(all, func(r Torch) bool { return r.hasCUDAFor(wheel.Arm) }); does != "" {
		why += "; " + does
	}
	return why
}

// otherBaseConflict returns the reason why the only base of a CUDA source cannot be used.
func (a *evaluation) otherBaseConflict() string {
	home := a.Bases[slices.IndexFunc(a.Bases, func(b Base) bool { return b.Suite == a.source.Suite })]
	var but []string
	if a.hostsNamed {
		but = append(but, "not from "+a.host.Name)
	}
	switch asked := a.request.Python; {
	case asked != "" && !home.hasPython(asked):
		but = append(but, fmt.Sprintf("which has Python %s, not %s", lists.And(home.Pythons), asked))
	case len(home.pythonsFor("", a.torch)) == 0:
		but = append(but, fmt.Sprintf("which has Python %s, for which torch %s has no wheels",
			lists.And(home.Pythons), a.torch.Version))
	}
	return fmt.Sprintf("%s (%s) comes from %s, %s", a.source.Title, a.source.CUDA, home.Name, strings.Join(but, " and "))
}

// chooseArchs chooses the requested archs, or else all that the toolkit compiles for: on x86_64 those of
// GPUs in x86_64 machines, on aarch64 those that torch itself has code for, each time with PTX of the newest
// for future GPUs. A wheel of the stable ABI also has the archs that the CUDA source compiles with another ptxas.
func (a *evaluation) chooseArchs() {
	a.targets = a.archs
	if len(a.targets) > 0 || !a.wantsDeviceCode() {
		return
	}
	tooNew := func(c string) bool {
		return slices.ContainsFunc(a.limits(), func(l Limit) bool { return l.MaxArch != "" && olderMinor(l.MaxArch, c) })
	}
	for _, c := range a.cuda.Archs {
		exists := slices.ContainsFunc(a.GPUs, func(g GPU) bool { return g.Arch == c && g.Machine == "" })
		if a.machine == wheel.Arm {
			exists = slices.Contains(a.torch.ArmArchs, c)
		}
		if exists && !tooNew(c) {
			a.targets = append(a.targets, archOf(c))
		}
	}
	if n := len(a.targets); n > 0 {
		a.targets[n-1].PTX = true
	}
	if a.toolchain.ABI == wheel.StableABI { // any torch of this CUDA may run it
		more := slices.DeleteFunc(slices.Clone(a.source.MoreArchs), tooNew)
		a.targets = append(a.targets, lists.Map(more, archOf)...)
	}
}

// findCUDA looks up the toolkit that compiles. A toolkit that the tables lack is treated as the
// newest older toolkit with the same major version.
func (a *evaluation) findCUDA() bool {
	version := firstTwo(a.toolchain.Toolkit)
	for _, c := range a.CUDAs {
		if wheel.Major(c.Version) == wheel.Major(version) && compareVersions(c.Version, version) <= 0 {
			a.cuda = c
			if c.Version != version {
				a.addWarning("CUDA %s is not in dsbuild's tables, which treat it like %s", version, c.Version)
			}
			a.cuda.Version = version
			return true
		}
	}
	a.addConflict("CUDA %s is not in dsbuild's tables", version)
	return false
}

// toolkitOrigin returns the origin of the toolkit, in words for a sentence.
func (a *evaluation) toolkitOrigin() string {
	switch a.source.Source {
	case FoundCUDA:
		return "which " + a.host.Name + " has"
	case Debian12:
		return "which is " + strings.TrimSuffix(a.source.Title, " CUDA toolkit")
	case Nvcc12:
		return "which is Debian's"
	default:
		return "which torch " + a.torch.Version + " is built for"
	}
}

// chooseOps chooses the ops that can be built. A named op that cannot be built is a conflict. Other such ops are
// omitted.
func (a *evaluation) chooseOps() {
	omitted := 0
	for i, op := range a.ops {
		if a.leavesOut(i) {
			omitted++
			continue
		}
		why := a.fitOp(&op)
		switch {
		case why == "":
			a.toolchain.Ops = append(a.toolchain.Ops, op)
		case a.byName[i]:
			a.conflicts = appendMissing(a.conflicts, []string{why})
		case a.allOps: // otherwise a default op, which this DeepSpeed lacks
			a.toolchain.SkippedOps = append(a.toolchain.SkippedOps, SkippedOp{op.Name, why})
		}
	}
	switch {
	case len(a.toolchain.Ops) > 0:
	case a.allOps:
		a.addConflict("none of the ops can be built")
	case len(a.ops) > 0 && omitted == len(a.ops):
		a.addConflict("%s", a.whyChanged(a.ops[0])) // and so do the others
	}
	if a.toolchain.HasDeviceCode() {
		a.toolchain.Archs, a.toolchain.EveryGPU = a.targets, len(a.archs) == 0
	}
}

// fitOp sets the op's archs, or returns the reason why it cannot be built.
func (a *evaluation) fitOp(op *Op) string {
	if why := op.absentFrom(a.deepspeed.Version); why != "" {
		return why
	}
	if op.X86Only != "" && a.machine != wheel.X86 {
		return fmt.Sprintf("op %s cannot be built for %s: %s", op.Name, a.machine, op.X86Only)
	}
	if why := op.unprovenAs(a.toolchain.ABI, a.torch.Version); why != "" {
		return why
	}
	if a.toolchain.ABI == wheel.StableABI && a.changed[op.Name] != "" {
		return a.whyChanged(*op)
	}
	var left []string
	why := op.archRange()
	if op.DeviceCode {
		for _, arch := range a.targets {
			c := arch.Capability()
			switch {
			case op.MinArch != "" && olderMinor(c, op.MinArch), op.MaxArch != "" && olderMinor(op.MaxArch, c):
				left = append(left, c)
			case op.BF16 && arch.Major <= 7 && len(a.archs) == 0:
				left, why = append(left, c), "would lose BF16 on all archs"
			default:
				op.Archs = append(op.Archs, arch)
			}
		}
		if len(op.Archs) == 0 && len(left) > 0 {
			return fmt.Sprintf("op %s %s, but not %s",
				op.Name, op.archRange(), strings.Join(lists.Map(left, a.archWithGPUs), ", "))
		}
	}
	if len(op.Needs.CUDASources) > 0 && !slices.Contains(op.Needs.CUDASources, a.source.Source) {
		sources := lists.Map(op.Needs.CUDASources, func(r CUDASource) string { return string(r) })
		return fmt.Sprintf("op %s works only with %s, not with %s", op.Name, lists.And(sources), a.source.Source)
	}
	if op.DeviceCode && !a.source.Nvcc {
		return "device code needs nvcc, which the Python packages of CUDA " + a.torch.CUDA + " do not include"
	}
	for _, b := range op.Incompatible {
		if compareVersions(a.cuda.Version, b.From) >= 0 && (b.To == "" || compareVersions(a.cuda.Version, b.To) < 0) {
			return fmt.Sprintf("op %s cannot be built with CUDA %s: %s", op.Name, a.cuda.Version, b.Why)
		}
	}
	if len(left) > 0 {
		a.addWarning("%s is compiled for %s, but not for %s: it %s",
			op.Name, lists.And(wheel.Capabilities(op.Archs, false)), lists.And(left), why)
	}
	return ""
}

func (o Op) archRange() string {
	switch {
	case o.MinArch != "" && o.MaxArch != "":
		return "supports archs " + o.MinArch + " to " + o.MaxArch
	case o.MinArch != "":
		return "supports archs " + o.MinArch + " and newer"
	}
	return "supports archs up to " + o.MaxArch
}

// checkArchs compares the arch list with the archs that nvcc compiles for.
func (a *evaluation) checkArchs() {
	for _, arch := range a.archs {
		c := arch.Capability()
		switch {
		case a.toolchain.HasDeviceCode() && slices.Contains(a.source.MoreArchs, c) && arch.PTX:
			a.addConflict("%s makes machine code for arch %s, but no PTX", a.source.Source, a.archWithGPUs(c))
		case a.toolchain.HasDeviceCode() && !slices.Contains(a.cuda.Archs, c) && !slices.Contains(a.source.MoreArchs, c):
			those := rangeWords(Compilers(a.CUDAs, c), lists.Map(a.CUDAs, func(c CUDA) string { return c.Version }))
			a.addConflict("CUDA %s, %s, cannot compile for arch %s; CUDA %s can",
				a.cuda.Version, a.toolkitOrigin(), a.archWithGPUs(c), those)
		case len(a.gpus[c]) > 0 && a.torch.hasCUDAFor(a.machine) && !a.torchRunsOn(a.torch, arch, a.machine):
			does := torchesThat(a.Torches, func(r Torch) bool { return a.torchRunsOn(r, arch, a.machine) })
			a.addConflict("torch %s has no code for arch %s and does not run on it; %s",
				a.torch.Version, a.archWithGPUs(c), cmp.Or(does, "no torch for "+a.machine+" does"))
		}
	}
}

// limits lists the limits of the release of DeepSpeed.
func (a *evaluation) limits() []Limit {
	return slices.DeleteFunc(slices.Clone(a.Limits), func(l Limit) bool { return !l.contains(a.deepspeed.Version) })
}

// checkLimits compares torch and the archs with the limits of the release of DeepSpeed.
func (a *evaluation) checkLimits() {
	release := a.deepspeed.Version
	for _, l := range a.limits() {
		if with := l.refuses(a.torch.Version, a.python); with != "" {
			a.addConflict("DeepSpeed %s does not work with %s: %s%s", release, with, l.Why, l.laterWords("does"))
		}
		for _, arch := range a.toolchain.Archs {
			if l.MaxArch != "" && olderMinor(l.MaxArch, arch.Capability()) {
				a.addConflict("DeepSpeed %s is not compiled for arch %s: %s; DeepSpeed %s or newer is",
					release, a.archWithGPUs(arch.Capability()), l.Why, l.Until)
			}
		}
	}
}

// laterWords names the first release of DeepSpeed without a fault: "; DeepSpeed 0.18.9
// or newer does". It returns "" if there is none.
func (s Span) laterWords(does string) string {
	if s.Until == "" {
		return ""
	}
	return fmt.Sprintf("; DeepSpeed %s or newer %s", s.Until, does)
}

// torchesThat lists the torches that do something ("torch 2.11.0 or newer does"). It returns "" if none do.
func torchesThat(all []Torch, do func(Torch) bool) string {
	with := slices.DeleteFunc(slices.Clone(all), func(r Torch) bool { return !do(r) })
	if len(with) == 0 {
		return ""
	}
	return "torch " + rangeWords(torchVersions(with), torchVersions(all)) + " does"
}

// rangeWords describes which part of all versions a list is; both are newest first.
func rangeWords(list, all []string) string {
	switch newest, oldest := list[0], list[len(list)-1]; {
	case newest == all[0]:
		return oldest + " or newer"
	case oldest == all[len(all)-1]:
		return "up to " + newest
	default:
		return oldest + " to " + newest
	}
}

// Compilers lists the CUDAs that compile for an arch, newest first.
func Compilers(all []CUDA, capability string) []string {
	var with []string
	for _, c := range all {
		if slices.Contains(c.Archs, capability) {
			with = append(with, c.Version)
		}
	}
	return with
}

// NewestTorch returns the newest release of torch whose own binaries for a machine run on an
// arch, or "".
func (t *Tables) NewestTorch(capability, machine string) string {
	for _, r := range t.Torches {
		if t.torchRunsOn(r, archOf(capability), machine) {
			return r.Version
		}
	}
	return ""
}

// torchRunsOn reports whether torch's own binaries for a machine have code that runs on an arch. It is
// true if the archs of the binaries are not known.
func (t *Tables) torchRunsOn(r Torch, arch wheel.Arch, machine string) bool {
	archs := r.Archs
	if machine == wheel.Arm {
		archs = r.ArmArchs
	}
	if !r.hasCUDAFor(machine) {
		return false
	}
	return len(archs) == 0 || slices.ContainsFunc(archs, func(have string) bool {
		return t.runsCodeFor(archOf(have), arch)
	})
}

// chooseGCC picks the first gcc of the build environment that torch's headers and nvcc both
// accept. Without device code, nvcc does not limit the gcc. An unknown gcc is always accepted.
func (a *evaluation) chooseGCC() {
	gccs := a.host.GCCs
	if fixed := a.source.GCC; fixed != "" {
		a.toolchain.GCC = fixed
		if len(gccs) > 0 && !slices.Contains(gccs, fixed) {
			a.addConflict("%s needs gcc %s, %s has %s", a.source.Title, fixed, a.host.Name, lists.And(gccs))
		}
		return
	}
	newest := a.cuda.NewestGCC
	if !a.toolchain.HasDeviceCode() {
		newest = "999"
	}
	for i, g := range gccs {
		if numberOf(g) >= numberOf(a.torch.OldestGCC) && numberOf(g) <= numberOf(newest) {
			if i > 0 {
				a.toolchain.GCC = g
			}
			return
		}
	}
	if len(gccs) > 0 {
		limit := ""
		if a.toolchain.HasDeviceCode() {
			limit = fmt.Sprintf(", and CUDA %s supports no gcc newer than %s", a.cuda.Version, newest)
		}
		a.addConflict("torch %s needs gcc %s or newer%s; %s has gcc %s",
			a.torch.Version, a.torch.OldestGCC, limit, a.host.Name, lists.And(gccs))
	}
}

func numberOf(s string) int {
	n, _ := strconv.Atoi(s) // of the tables: a number
	return n
}

// finishedToolchain completes the toolchain of a candidate without conflicts.
func (a *evaluation) finishedToolchain() Toolchain {
	tc := a.toolchain
	device := tc.HasDeviceCode()
	withBF16 := Toolchain{Ops: slices.DeleteFunc(slices.Clone(a.ops), func(o Op) bool { return !o.BF16 })}.OpNames(true)
	if len(withBF16) > 0 && len(a.archs) > 0 && tc.Archs[0].Major <= 7 && tc.Archs[len(tc.Archs)-1].Major > 7 {
		a.addWarning("arch %s disables BF16 in %s for the whole wheel: build a separate wheel for this arch",
			tc.Archs[0].Capability(), lists.And(withBF16))
	}
	if tc.Index != "" {
		a.addNote("torch %s for CUDA %s comes from PyTorch's index, %s", tc.Torch, tc.CUDA, tc.Index)
	}
	if !device && len(a.archs) > 0 {
		a.addNote("none of these ops has device code: the wheel is the same for every GPU that torch %s runs on", tc.Torch)
	}
	if device && a.cuda.Version != tc.CUDA {
		a.addNote("compiling with nvcc %s for torch %s, which is built for CUDA %s: compatible (same CUDA major version), "+
			"but torch prints a warning during the build", a.cuda.Version, tc.Torch, tc.CUDA)
	}
	if device {
		a.remarkArchsWithoutMachine()
		var made []string
		for _, arch := range tc.Archs {
			if c := arch.Capability(); slices.Contains(a.source.MoreArchs, c) && !slices.Contains(a.cuda.Archs, c) {
				made = append(made, a.archWithGPUs(c))
			}
		}
		if len(made) > 0 {
			a.addNote("nvcc %s does not support arch %s: a newer ptxas compiles its code from PTX for 9.0",
				a.cuda.Version, lists.And(made))
		}
	}
	for _, arch := range a.archsTorchLacks() { // of --arch alone: a torch of one's own may have it
		a.addWarning("torch %s has no code for arch %s", tc.Torch, a.archWithGPUs(arch))
	}
	a.remarkProofs()
	tc.Warnings = a.warnings
	tc.Notes = append(slices.Clone(a.requirements.notes), a.notes...)
	return tc
}

// remarkArchsWithoutMachine lists the requested archs that no GPU in an x86_64 machine has.
func (a *evaluation) remarkArchsWithoutMachine() {
	if a.machine != wheel.X86 {
		return
	}
	for _, arch := range a.toolchain.Archs {
		c := arch.Capability()
		var names []string
		for _, g := range a.GPUs {
			if g.Arch == c {
				names = append(names, g.Name)
			}
			if g.Arch == c && g.Machine == "" {
				names = nil
				break
			}
		}
		if len(names) > 0 {
			a.addWarning("arch %s (%s) is never paired with an x86_64 CPU: no machine can run this code",
				c, names[0])
		}
	}
}

// archsTorchLacks lists the archs asked for that torch's own binaries do not run on.
func (a *evaluation) archsTorchLacks() []string {
	var out []string
	for _, arch := range a.archs {
		if !a.torchRunsOn(a.torch, arch, a.machine) {
			out = append(out, arch.Capability())
		}
	}
	return out
}
