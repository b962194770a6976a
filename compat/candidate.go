package compat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// candidate is one combination that may make a toolchain.
type candidate struct {
	torch  Torch
	road   RoadInfo
	ground Ground
	python string
}

// attempt is a candidate held against what is wanted. why lists all that
// speaks against it.
type attempt struct {
	*Tables
	*want
	candidate
	tc      Toolchain
	cuda    CUDA // the row of the toolkit that compiles
	why     []string
	ruled   bool // out: the road is never one for this ground
	remarks []string
	notes   []string
}

// try makes a toolchain of a candidate, or says why it makes none.
func (t *Tables) try(w *want, c candidate) *attempt {
	a := &attempt{Tables: t, want: w, candidate: c}
	a.tc = Toolchain{
		Road: c.road.Road, Ground: c.ground, Nvcc: c.road.Nvcc, Python: c.python,
		DeepSpeed: w.deepspeed.Version, Source: w.deepspeed.SHA256,
		Torch: c.torch.Version, CUDA: c.torch.CUDA, Index: c.torch.Index, TorchHash: c.torch.SHA256[c.python], Standard: c.torch.Standard, Toolkit: a.toolkit(), Pins: c.torch.pins(c.python), CPU: w.spec.CPU, Glibc: w.spec.Glibc,
	}
	if a.tc.CPU == "" {
		a.tc.CPU = wheel.CPUv3
	}
	a.checkGround()
	a.checkDriver()
	if a.ruled || !a.findCUDA() {
		return a
	}
	a.chooseOps()
	a.checkArchs()
	a.checkLimits()
	a.chooseGCC()
	return a
}

func (a *attempt) refuse(format string, args ...any) {
	a.why = append(a.why, fmt.Sprintf(format, args...))
}

func (a *attempt) remark(format string, args ...any) {
	a.remarks = append(a.remarks, fmt.Sprintf(format, args...))
}

func (a *attempt) note(format string, args ...any) {
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
}

func (t Torch) pins(python string) []string {
	var out []string
	for _, p := range t.Pins {
		if p.FromPython == "" || compareVersions(python, p.FromPython) >= 0 {
			out = append(out, p.Requirement)
		}
	}
	return out
}

// toolkit is the version of the headers and of nvcc.
func (a *attempt) toolkit() string {
	switch {
	case a.road.CUDA != "":
		return a.road.CUDA
	case a.road.Road == Found:
		return a.ground.CUDA
	case a.torch.Toolkit != "":
		return a.torch.Toolkit
	}
	return a.torch.CUDA
}

// serves reports whether a road is one for a torch at all: a toolkit of
// another major neither compiles for it nor is taken by it.
func (r RoadInfo) serves(torch Torch, g Ground) bool {
	if r.Road == Found {
		return g.CUDA != "" && major(g.CUDA) == major(torch.CUDA)
	}
	return r.TorchCUDA == major(torch.CUDA)
}

// checkGround compares the ground with what the road installs there.
func (a *attempt) checkGround() {
	a.ruled = a.road.Suite != "" && (a.ground.Host || a.ground.Suite != a.road.Suite)
	switch {
	case !a.ruled:
	case a.ground.Host:
		a.refuse("%s is installed by root with the distribution's own tools, which the host builder does not use", a.road.Title)
	default:
		a.refuse("%s", a.elsewhere())
	}
	if a.road.Road != Found && a.ground.CUDA != "" {
		a.note("%s has CUDA %s, which is not used: torch %s is built for CUDA %s", a.ground.Name, a.ground.CUDA, a.torch.Version, a.torch.CUDA)
	}
}

// checkDriver holds the CUDA of torch against the driver of the nodes.
func (a *attempt) checkDriver() {
	if !a.Drives(a.spec.Driver, a.torch.CUDA) {
		a.refuse("torch %s is built for CUDA %s, which takes driver %s or newer, not %s", a.torch.Version, a.torch.CUDA, a.release(a.torch.CUDA).Driver, a.spec.Driver)
	}
}

// elsewhere says why the one base that a road is for does not do.
func (a *attempt) elsewhere() string {
	home := a.Bases[slices.IndexFunc(a.Bases, func(b Base) bool { return b.Suite == a.road.Suite })]
	var but []string
	if a.given {
		but = append(but, "not that of "+a.ground.Name)
	}
	switch asked := a.spec.Python; {
	case asked != "" && !home.hasPython(asked):
		but = append(but, fmt.Sprintf("which has Python %s, not %s", listed(home.Pythons), asked))
	case len(home.pythons("", a.torch)) == 0:
		but = append(but, fmt.Sprintf("which has Python %s, for which torch %s has no wheels", listed(home.Pythons), a.torch.Version))
	}
	return fmt.Sprintf("%s (%s) is that of %s, %s", a.road.Title, a.road.CUDA, home.Name, strings.Join(but, " and "))
}

// findCUDA looks up the toolkit that compiles. One that is not in the tables
// counts as the newest before it, of the same major.
func (a *attempt) findCUDA() bool {
	version := firstTwo(a.tc.Toolkit)
	for _, c := range a.CUDAs {
		if major(c.Version) == major(version) && compareVersions(c.Version, version) <= 0 {
			a.cuda = c
			if c.Version != version {
				a.remark("CUDA %s is not in the tables of this dsbuild: it is taken for %s", version, c.Version)
			}
			a.cuda.Version = version
			return true
		}
	}
	a.refuse("CUDA %s is not in the tables of this dsbuild", version)
	return false
}

// whose says where the toolkit is from, for a sentence.
func (a *attempt) whose() string {
	switch a.road.Road {
	case Found:
		return "which " + a.ground.Name + " has"
	case Debian12:
		return "which is " + strings.TrimSuffix(a.road.Title, " CUDA toolkit")
	case Nvcc12:
		return "which is Debian's"
	default:
		return "which torch " + a.torch.Version + " is built for"
	}
}

// chooseOps takes the ops that can be built. One asked for by name that cannot
// be speaks against the candidate; others are left out.
func (a *attempt) chooseOps() {
	var withoutNvcc []string
	for i, op := range a.ops {
		why := a.fitOp(&op)
		switch {
		case why == "":
			a.tc.Ops = append(a.tc.Ops, op)
		case !a.byName[i] && !a.all: // this DeepSpeed does not bring it along
		case !a.byName[i]:
			a.tc.Left = append(a.tc.Left, LeftOp{op.Name, why})
		case op.DeviceCode && !a.road.Nvcc:
			withoutNvcc = append(withoutNvcc, op.Name)
		default:
			a.why = append(a.why, why)
		}
	}
	if len(withoutNvcc) > 0 {
		a.refuse("%s: device code needs nvcc, and the Python packages of CUDA %s bring none", listed(withoutNvcc), a.cuda.Version)
	}
	if len(a.tc.Ops) == 0 && a.all {
		a.refuse("none of all ops can be built")
	}
	if a.tc.HasDeviceCode() {
		a.tc.Archs = a.archs
	}
}

// fitOp gives an op its archs, or says why it cannot be built.
func (a *attempt) fitOp(op *Op) string {
	if why := op.absent(a.deepspeed.Version); why != "" {
		return why
	}
	if len(op.Needs.Roads) > 0 && !slices.Contains(op.Needs.Roads, a.road.Road) {
		return fmt.Sprintf("op %s was made to work with %s alone, not with %s", op.Name, listed(roadNames(op.Needs.Roads)), a.road.Road)
	}
	if op.DeviceCode && !a.road.Nvcc {
		return "device code needs nvcc, and the Python packages of CUDA " + a.torch.CUDA + " bring none"
	}
	for _, b := range op.Broken {
		if compareVersions(a.cuda.Version, b.From) >= 0 && (b.To == "" || compareVersions(a.cuda.Version, b.To) < 0) {
			return fmt.Sprintf("op %s cannot be built with CUDA %s: %s", op.Name, a.cuda.Version, b.Why)
		}
	}
	if !op.DeviceCode || a.loose {
		return ""
	}
	var left []string
	for _, arch := range a.archs {
		if op.takes(arch.Capability()) {
			op.Archs = append(op.Archs, arch)
		} else {
			left = append(left, arch.Capability())
		}
	}
	switch {
	case len(op.Archs) == 0 && len(a.archs) > 0:
		return op.archsRefused(left)
	case len(left) > 0:
		a.remark("%s is compiled for %s and not for %s: it %s", op.Name, listed(wheel.Capabilities(op.Archs, false)), listed(left), op.archRange())
	}
	return ""
}

func (o Op) takes(capability string) bool {
	return (o.MinArch == "" || !older(capability, o.MinArch)) && (o.MaxArch == "" || !older(o.MaxArch, capability))
}

func (o Op) archRange() string {
	switch {
	case o.MinArch != "" && o.MaxArch != "":
		return "takes archs " + o.MinArch + " to " + o.MaxArch
	case o.MinArch != "":
		return "takes archs from " + o.MinArch + " on"
	}
	return "takes archs up to " + o.MaxArch
}

func (o Op) archsRefused(archs []string) string {
	return fmt.Sprintf("op %s %s, which leaves none of %s", o.Name, o.archRange(), strings.Join(archs, ", "))
}

func roadNames(roads []Road) []string {
	var out []string
	for _, r := range roads {
		out = append(out, string(r))
	}
	return out
}

// checkArchs holds the arch list against what nvcc compiles for.
func (a *attempt) checkArchs() {
	if len(a.archs) == 0 && a.device() && !a.loose { // also where such ops would be left out
		a.refuse("no arch is given and %s has device code", Toolchain{Ops: a.ops}.OpNames(true)[0])
	}
	for _, arch := range a.archs {
		c := arch.Capability()
		switch {
		case a.tc.HasDeviceCode() && slices.Contains(a.road.MoreArchs, c) && arch.PTX:
			a.refuse("%s makes machine code for arch %s, and no PTX", a.road.Road, a.called(c))
		case a.tc.HasDeviceCode() && !slices.Contains(a.cuda.Archs, c) && !slices.Contains(a.road.MoreArchs, c):
			a.refuse("CUDA %s, %s, compiles nothing for arch %s; %s", a.cuda.Version, a.whose(), a.called(c), a.whoCompiles(c))
		case len(a.gpus[c]) > 0 && !a.torch.runsOn(arch):
			a.refuse("torch %s itself has no code for arch %s and does not run there; %s", a.torch.Version, a.called(c), a.whoRuns(arch))
		}
	}
}

// checkLimits holds torch and the archs against the release of DeepSpeed.
func (a *attempt) checkLimits() {
	release := a.deepspeed.Version
	for _, l := range a.Limits {
		if compareVersions(release, l.Until) >= 0 {
			continue
		}
		if l.TorchFrom != "" && compareVersions(a.torch.Version, l.TorchFrom) >= 0 {
			a.refuse("DeepSpeed %s does not work with torch %s: %s; DeepSpeed from %s on does", release, a.torch.Version, l.Why, l.Until)
		}
		for _, arch := range a.tc.Archs {
			if l.MaxArch != "" && older(l.MaxArch, arch.Capability()) {
				a.refuse("DeepSpeed %s is not compiled for arch %s: %s; DeepSpeed from %s on is", release, a.called(arch.Capability()), l.Why, l.Until)
			}
		}
	}
}

// whoRuns names the torches that run on an arch, which some do.
func (t *Tables) whoRuns(arch wheel.Arch) string {
	with := slices.DeleteFunc(slices.Clone(t.Torches), func(r Torch) bool { return !r.runsOn(arch) })
	switch newest, oldest := with[0].Version, with[len(with)-1].Version; {
	case newest == t.Torches[0].Version:
		return "torch from " + oldest + " on does"
	case oldest == t.Torches[len(t.Torches)-1].Version:
		return "torch up to " + newest + " does"
	default:
		return "torch " + oldest + " to " + newest + " does"
	}
}

// whoCompiles names the CUDAs that compile for an arch, which some do.
func (t *Tables) whoCompiles(capability string) string {
	with := t.Compilers(capability)
	switch newest, oldest := t.CUDAs[0].Version, t.CUDAs[len(t.CUDAs)-1].Version; {
	case with[0] == newest:
		return "CUDA from " + with[len(with)-1] + " on does"
	case with[len(with)-1] == oldest:
		return "CUDA up to " + with[0] + " does"
	}
	return "CUDA " + with[len(with)-1] + " to " + with[0] + " does"
}

// Compilers lists the CUDAs that compile for an arch, newest first.
func (t *Tables) Compilers(capability string) []string {
	var with []string
	for _, c := range t.CUDAs {
		if slices.Contains(c.Archs, capability) {
			with = append(with, c.Version)
		}
	}
	return with
}

// NewestTorch returns the newest release of torch whose own binaries run on an
// arch; "" if there is none.
func (t *Tables) NewestTorch(capability string) string {
	for _, r := range t.Torches {
		if r.runsOn(archOf(capability)) {
			return r.Version
		}
	}
	return ""
}

// runsOn reports whether torch's own binaries have code that runs on an arch:
// for it, or for a lower minor of the same major. Where it is not known what
// they hold, it is taken that they do.
func (t Torch) runsOn(arch wheel.Arch) bool {
	return len(t.Archs) == 0 || slices.ContainsFunc(t.Archs, func(have string) bool {
		major, minor := parts(have)
		return major == arch.Major && minor <= arch.Minor
	})
}

// chooseGCC picks the first gcc of the ground that torch's headers and nvcc
// both take; nvcc does not mind without device code. GCCs that are not known
// refuse nothing.
func (a *attempt) chooseGCC() {
	gccs := a.ground.GCCs
	if fixed := a.road.GCC; fixed != "" {
		a.tc.GCC = fixed
		if len(gccs) > 0 && !slices.Contains(gccs, fixed) {
			a.refuse("%s needs gcc %s, %s has %s", a.road.Title, fixed, a.ground.Name, listed(gccs))
		}
		return
	}
	newest := a.cuda.NewestGCC
	if !a.tc.HasDeviceCode() {
		newest = "999"
	}
	for i, g := range gccs {
		if number(g) >= number(a.torch.OldestGCC) && number(g) <= number(newest) {
			if i > 0 {
				a.tc.GCC = g
			}
			return
		}
	}
	if len(gccs) > 0 {
		limit := ""
		if a.tc.HasDeviceCode() {
			limit = fmt.Sprintf(", and CUDA %s takes none newer than %s", a.cuda.Version, newest)
		}
		a.refuse("torch %s needs gcc %s or newer%s; %s has gcc %s", a.torch.Version, a.torch.OldestGCC, limit, a.ground.Name, listed(gccs))
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // of the tables: a number
	return n
}

// toolchain finishes an attempt that nothing speaks against.
func (a *attempt) toolchain() Toolchain {
	tc := a.tc
	device := tc.HasDeviceCode()
	if n := len(tc.Archs); n > 0 && tc.Archs[0].Major <= 7 && tc.Archs[n-1].Major > 7 {
		a.remark("arch %s in the list switches BF16 off in the CUDA ops for every arch: better build a wheel of its own for it", tc.Archs[0].Capability())
	}
	if tc.Index != "" {
		a.note("torch %s for CUDA %s comes from torch's own index, %s", tc.Torch, tc.CUDA, tc.Index)
	}
	if !device && len(a.archs) > 0 {
		a.note("none of these ops has device code: the wheel is the same for every GPU that torch %s runs on", tc.Torch)
	}
	if device && a.cuda.Version != tc.CUDA {
		a.note("nvcc is %s and torch %s is built for CUDA %s: the same major, which works; torch warns of it while it builds", a.cuda.Version, tc.Torch, tc.CUDA)
	}
	if device {
		var made []string
		for _, arch := range tc.Archs {
			if c := arch.Capability(); slices.Contains(a.road.MoreArchs, c) && !slices.Contains(a.cuda.Archs, c) {
				made = append(made, a.called(c))
			}
		}
		if len(made) > 0 {
			a.note("nvcc %s does not know arch %s: a newer ptxas makes its code of PTX for 9.0", a.cuda.Version, listed(made))
		}
	}
	for _, arch := range a.unserved() { // of --arch alone: a torch of one's own may have it
		a.remark("torch %s itself has no code for arch %s", tc.Torch, a.called(arch))
	}
	tc.Remarks = a.remarks
	tc.Notes = append(slices.Clone(a.want.notes), a.notes...)
	return tc
}

// unserved lists the archs asked for that torch's own binaries do not run on.
func (a *attempt) unserved() []string {
	var out []string
	for _, arch := range a.archs {
		if !a.torch.runsOn(arch) {
			out = append(out, arch.Capability())
		}
	}
	return out
}
