package compat

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// AllOps requests every op in the tables, and ProvenOps the ops that do the same over torch's stable ABI
// and the C++ interface. Ops of either that cannot be built for the request are omitted.
const (
	AllOps    = "all"
	ProvenOps = "proven"
)

// Latest asks for the newest release of DeepSpeed.
const Latest = "latest"

// requirements is a request whose values were found in the tables. Tables.search finds out whether
// they are compatible.
type requirements struct {
	request    wheel.Request // without the values that the tables lack
	hosts      []BuildHost
	hostsNamed bool // by the caller; else hosts are the tables'
	machine    string
	deepspeed  DeepSpeed
	archs      []wheel.Arch
	ops        []Op                // in the order of the table
	byName     []bool              // whether the user named the op
	allOps     bool                // whether ops that cannot be built are omitted
	provenOps  bool                // whether the unnamed ops come from ProvenOps
	defaults   bool                // whether no op was named
	changed    map[string]string   // the first file in which an op differs from all that was proven, by the op's name
	gpus       map[string][]string // names of GPUs by arch
	notes      []string
}

// lookup finds the values of a request in the tables, each by itself.
type lookup struct {
	*Tables
	*requirements
	bad conflictList
}

// lookUp finds every value of a request in the tables and reports those that they lack.
func (t *Tables) lookUp(asked attempt) (*requirements, []Conflict) {
	l := &lookup{
		Tables: t,
		requirements: &requirements{
			request: asked.Request,
			hosts:   asked.hosts, hostsNamed: len(asked.hosts) > 0,
			gpus: map[string][]string{},
		},
	}
	if !l.hostsNamed {
		for _, b := range t.Bases {
			if !b.NamedOnly {
				l.hosts = append(l.hosts, b.BuildHost)
			}
		}
	}
	for _, find := range []func(){
		l.findDeepSpeed, l.findTorch, l.findCUDA, l.findPython, l.checkGlibc, l.checkDriver,
		l.findMachine, l.findArchs, l.findGPUs, l.checkGPUDrivers, l.findOps,
	} {
		find()
	}
	return l.requirements, l.bad
}

func (l *lookup) findDeepSpeed() {
	if l.Sources != nil {
		l.deepspeed = *l.Sources
		return
	}
	v := l.request.DeepSpeed
	l.deepspeed = l.newestDeepSpeed()
	if i := slices.IndexFunc(l.DeepSpeeds, func(d DeepSpeed) bool { return d.Version == v }); i >= 0 {
		l.deepspeed = l.DeepSpeeds[i]
	} else if v != "" && v != Latest {
		l.request.DeepSpeed = ""
		all := releases(l.DeepSpeeds)
		l.bad.add("DeepSpeed %s is not in dsbuild's tables, which cover %s to %s", v, all[len(all)-1], all[0])
	}
}

// newestDeepSpeed returns the newest release that works with the requested Python.
func (l *lookup) newestDeepSpeed() DeepSpeed {
	limitOf := func(d DeepSpeed) int {
		return slices.IndexFunc(l.Limits, func(m Limit) bool {
			return l.request.Python != "" && m.contains(d.Version) && m.TorchFrom+m.TorchBefore == "" &&
				m.refuses("", l.request.Python) != ""
		})
	}
	newest := l.DeepSpeeds[0]
	first := limitOf(newest)
	if first < 0 {
		return newest
	}
	i := slices.IndexFunc(l.DeepSpeeds, func(d DeepSpeed) bool { return limitOf(d) < 0 })
	if i < 0 {
		return newest
	}
	l.notes = append(l.notes, fmt.Sprintf("DeepSpeed %s is the newest for Python %s: %s",
		l.DeepSpeeds[i].Version, l.request.Python, l.Limits[first].Why))
	return l.DeepSpeeds[i]
}

// isTorch reports whether a release matches the request: X.Y matches any patch.
func isTorch(asked string, r Torch) bool {
	return asked == "" || asked == r.Version || strings.Count(asked, ".") == 1 && strings.HasPrefix(r.Version, asked+".")
}

// isCUDA reports whether a CUDA matches the request: X matches any minor version.
func isCUDA(asked, cuda string) bool {
	return asked == "" || asked == cuda || asked == wheel.Major(cuda)
}

func (l *lookup) findTorch() {
	asked := l.request.Torch
	if slices.ContainsFunc(l.Torches, func(r Torch) bool { return isTorch(asked, r) }) {
		return
	}
	l.request.Torch = ""
	_, local, _ := strings.Cut(asked, "+")
	switch all := torchVersions(l.Torches); {
	case isPlain(asked):
		l.bad.add("torch %s is not in dsbuild's tables, which cover %s to %s", asked, all[len(all)-1], all[0])
	case otherTorches.MatchString(local):
		l.bad.add("torch %s is not for NVIDIA GPUs, the only ones that dsbuild supports", asked)
		l.bad.advise("use a CUDA build of torch, or build with DeepSpeed's setup.py")
	default:
		l.bad.add("torch %s is not a CUDA release", asked)
		l.bad.advise("build for an environment with this torch: --env PYTHON")
	}
}

// otherTorches matches the local version of a torch without CUDA.
var otherTorches = regexp.MustCompile(`^(cpu|rocm|xpu|mps|git.*rocm)`)

// isPlain reports whether a version is only numbers: no pre-release, no local version.
func isPlain(version string) bool { return strings.Trim(version, "0123456789.") == "" }

func (l *lookup) findCUDA() {
	asked := l.request.CUDA
	if !slices.ContainsFunc(l.Torches, func(r Torch) bool { return isCUDA(asked, r.CUDA) }) {
		all := torchCUDAs(l.Torches)
		slices.Reverse(all)
		l.bad.add("the package index has no torch for CUDA %s, only for %s", asked, lists.And(all))
		l.request.CUDA = ""
	}
}

func (l *lookup) findPython() {
	asked := l.request.Python
	if all := allPythons(l.Torches); asked != "" && !slices.Contains(all, asked) {
		l.bad.add("no torch release has wheels for Python %s, only for %s", asked, lists.And(all))
		l.request.Python = ""
	}
}

func (l *lookup) checkGlibc() {
	switch asked := l.request.Glibc; {
	case asked == "" || xy.MatchString(asked) && !olderMinor(asked, LinkGlibc):
		return
	case !xy.MatchString(asked):
		l.bad.add("glibc %q is not a version such as 2.28 ('ldd --version' on the oldest node prints it)", asked)
	default:
		l.bad.add("glibc %s is too old: extensions require glibc %s or newer, as torch does since 2.7",
			asked, LinkGlibc)
	}
	l.request.Glibc = ""
}

func (l *lookup) checkDriver() {
	known := oldestDrivers(l.CUDAs)
	oldest := known[len(known)-1]
	switch asked := l.request.Driver; {
	case asked == "" || driverForm.MatchString(asked) && !olderDriver(asked, oldest):
		return
	case !driverForm.MatchString(asked):
		l.bad.add("driver %q is not a version such as 550.54.15 (nvidia-smi on the oldest node prints it)", asked)
	default:
		l.bad.add("driver %s supports no CUDA in dsbuild's tables, which require driver %s or newer",
			asked, oldest)
	}
	l.request.Driver = ""
}

// checkGPUDrivers compares the oldest driver with the drivers for the GPUs. Some nodes may have a newer driver, so the
// oldest is too old only if each GPU needs a newer one.
func (l *lookup) checkGPUDrivers() {
	driver := l.request.Driver
	var tooOld [][2]string // arch, its first driver
	for _, arch := range l.archs {
		c := arch.Capability()
		i := slices.IndexFunc(l.Drivers, func(d Drivers) bool { return d.Arch == c })
		if i < 0 || driver == "" {
			continue
		}
		if d := l.Drivers[i]; d.Last != "" && compareVersions(wheel.Major(driver), d.Last) > 0 {
			l.bad.add("driver %s does not support arch %s: R%s is the last branch that does", driver, l.archWithGPUs(c), d.Last)
			l.request.Driver = ""
		} else if olderDriver(driver, d.First) {
			tooOld = append(tooOld, [2]string{l.archWithGPUs(c), d.First})
		}
	}
	if len(tooOld) == len(l.archs) {
		for _, old := range tooOld {
			l.bad.add("arch %s needs driver %s or newer, not %s", old[0], old[1], driver)
			l.request.Driver = ""
		}
	}
}

// findArchs keeps the archs that at least one CUDA compiles for.
func (l *lookup) findArchs() {
	var good []wheel.Arch
	for _, a := range l.request.Archs {
		if len(Compilers(l.CUDAs, a.Capability())) > 0 {
			good = append(good, a)
			continue
		}
		l.bad.add("no CUDA in dsbuild's tables compiles for arch %s", a.Capability())
	}
	l.request.Archs, l.archs = good, slices.Clone(good)
}

// addArch puts an arch into a sorted list.
func addArch(list []wheel.Arch, a wheel.Arch) []wheel.Arch {
	out := slices.Clone(list)
	for i, have := range out {
		if have.Capability() == a.Capability() {
			out[i].PTX = have.PTX || a.PTX
			return out
		}
	}
	out = append(out, a)
	slices.SortFunc(out, func(a, b wheel.Arch) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	return out
}

// findMachine chooses the requested machine, else the CPU level's, else that of a GPU which is sold with its
// CPU, else the build environment's.
func (l *lookup) findMachine() {
	l.machine = cmp.Or(l.request.Machine, l.request.CPU.Machine())
	own := ""
	for _, name := range SplitNames(l.request.GPUs) {
		for _, g := range l.GPUsNamed(name) {
			if l.machine == "" && g.Machine != "" {
				l.machine, own = g.Machine, name
			}
		}
	}
	for _, name := range SplitNames(l.request.GPUs) {
		if rows := l.GPUsNamed(name); own != "" && len(rows) > 0 && rows[0].Machine == "" {
			l.bad.add("GPU %s is sold with an %s CPU, and GPU %s is not: one wheel cannot serve both %s and %s",
				own, l.machine, name, l.machine, wheel.X86)
			l.bad.advise(fmt.Sprintf("build a wheel for each, or pass --machine %s if %s is in such a machine too", l.machine, name))
		}
	}
	if l.machine == "" {
		l.machine = wheel.X86
		if l.hostsNamed && l.hosts[0].Machine == wheel.Arm {
			l.machine = wheel.Arm
		}
	}
}

// findGPUs adds the archs of the GPUs named.
func (l *lookup) findGPUs() {
	var good []string
	for _, name := range SplitNames(l.request.GPUs) {
		rows := l.GPUsNamed(name)
		if c, wrong := l.gpuConflict(name, rows, l.machine); wrong {
			l.bad = append(l.bad, c)
			continue
		}
		good = append(good, name)
		l.archs = addArch(l.archs, archOf(rows[0].Arch))
		l.gpus[rows[0].Arch] = append(l.gpus[rows[0].Arch], name)
	}
	l.request.GPUs = good
}

// SplitNames splits "A100,H100" into two names and drops repeated ones.
func SplitNames(list []string) []string {
	var out []string
	for _, names := range list {
		for _, name := range strings.Split(names, ",") {
			if name = strings.TrimSpace(name); (name != "" || names == "") && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// CheckGPU returns a *ConflictError if no wheel can be built for a GPU of this name: it is not in the
// tables, can mean several GPUs, or no torch for its machine runs on it.
func (t *Tables) CheckGPU(name string) error {
	if _, wrong := t.gpuConflict(name, t.GPUsNamed(name), ""); !wrong {
		return nil
	}
	return t.conflict(attempt{Request: wheel.Request{GPUs: []string{name}}})
}

// gpuConflict returns why a GPU's name cannot be used for a wheel for a machine, if it
// cannot. An empty machine means the GPU's own machine.
func (t *Tables) gpuConflict(name string, rows []GPU, machine string) (c Conflict, wrong bool) {
	if len(rows) == 0 {
		return t.unknownGPU(name), true
	}
	for _, g := range rows {
		if g.Arch != rows[0].Arch {
			c.What = fmt.Sprintf("GPU %q can be %s (%s) or %s (%s)", name, rows[0].Name, rows[0].Arch, g.Name, g.Arch)
			c.Advice = didYouMean(QuoteFlag(rows[0].Name), QuoteFlag(g.Name))
			return c, true
		}
		if machine != "" && g.Machine != "" && g.Machine != machine {
			c.What = fmt.Sprintf("GPU %s (arch %s) has an %s CPU, but the wheel is for %s", name, g.Arch, g.Machine, machine)
			c.Advice = []string{"omit --machine and --cpu"}
			if g.Class == "data center" { // the others are one piece with their CPU
				c.Advice = append(c.Advice,
					fmt.Sprintf("if the node has an %s CPU, pass --arch %s instead of the GPU", machine, g.Arch))
			}
			return c, true
		}
		if on := cmp.Or(machine, g.Machine, wheel.X86); t.NewestTorch(g.Arch, on) == "" {
			c.What = fmt.Sprintf("no torch for %[3]s in dsbuild's tables has code for GPU %[1]s (arch %[2]s)",
				name, g.Arch, on)
			flags := "--arch " + g.Arch
			if on != wheel.X86 {
				flags += " --machine " + on
			}
			if _, err := t.Resolve(wheel.Request{Archs: []wheel.Arch{archOf(g.Arch)}, Machine: machine}); err == nil {
				c.Advice = []string{fmt.Sprintf("build torch from source for arch %s, then pass %s", g.Arch, flags)}
			}
			return c, true
		}
	}
	return c, false
}

// unknownGPU names the products that a name is similar to.
func (t *Tables) unknownGPU(name string) Conflict {
	const all = "list all GPUs: dsbuild gpus; or pass a compute capability with --arch"
	what := fmt.Sprintf("GPU %q is not in dsbuild's tables", name)
	if arch, ok := wheel.ParseArchAlias(name); ok {
		what = fmt.Sprintf("%q is a compute capability, not a GPU", name)
		return Conflict{what, didYouMean("--arch " + arch.String())}
	}
	if otherMakers.MatchString(strings.TrimSpace(name)) {
		return Conflict{
			What:   fmt.Sprintf("GPU %q is not an NVIDIA GPU, the only ones that dsbuild supports", name),
			Advice: []string{"build with DeepSpeed's setup.py on a machine with that GPU"},
		}
	}
	if several := t.names().several(name); several != "" {
		return Conflict{
			What:   fmt.Sprintf("%q names several GPUs", name),
			Advice: []string{"separate them with commas: --gpu " + QuoteFlag(several)},
		}
	}
	if archs := t.names().archsOf(name); len(archs) > 0 {
		return Conflict{
			What:   fmt.Sprintf("%q is a GPU generation, not a GPU", name),
			Advice: []string{"specify the GPU, or pass the generation's archs: --arch " + QuoteFlag(strings.Join(archs, ";"))},
		}
	}
	if g := t.names().otherGeneration(name); g != nil {
		return Conflict{
			What: fmt.Sprintf("GPU %q does not exist: %s has arch %s, a different generation",
				name, g.Name, g.Arch),
			Advice: []string{all},
		}
	}
	near := t.usableGPUs(name)
	if len(near) == 0 {
		return Conflict{What: what, Advice: []string{all}}
	}
	what += " (similar: " + lists.And(near) + ")"
	return Conflict{what, didYouMean(lists.Map(near, QuoteFlag)...)}
}

// otherMakers matches accelerators that are not NVIDIA's.
var otherMakers = regexp.MustCompile(`(?i)^(` +
	`(amd|intel|habana|apple|google|huawei|cambricon|aws|tpu|inferentia|max 1[0-9]{3})\b|` +
	`instinct|radeon|mi ?[0-9]{2,3}[a-z]?\b|gfx[0-9]|` +
	`rx ?[0-9]|gaudi|hpu|arc\b|xpu|pvc\b|ponte|ascend|trainium|trn[0-9]|mlu[0-9]|m[0-9] ?(max|pro|ultra))`)

// severalNames returns the known names that a text joins by blanks or other signs, joined by commas as for
// flags. It returns "" if the text does not join several.
func severalNames(text string, known func(string) bool) string {
	parts := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ;/+&|", r) })
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "and" || p == "or" })
	if len(parts) < 2 || slices.ContainsFunc(parts, func(p string) bool { return !known(p) }) {
		return ""
	}
	return strings.Join(parts, ",")
}

// usableGPUs lists the products with a similar name that there is a wheel for.
func (t *Tables) usableGPUs(name string) []string {
	return slices.DeleteFunc(t.names().nearest(name), func(n string) bool {
		_, wrong := t.gpuConflict(n, t.GPUsNamed(n), "")
		return wrong
	})
}

// QuoteFlag quotes a value with spaces for the command line.
func QuoteFlag(s string) string {
	if strings.ContainsAny(s, " ;") {
		return `"` + s + `"`
	}
	return s
}

// findOps looks up the ops, except default ops that DeepSpeed lacks.
func (l *lookup) findOps() {
	asked := l.request.Ops
	byDefault := len(asked) == 0
	if byDefault {
		asked = l.defaultOps()
	}
	l.selectOps(asked)
	l.defaults = byDefault
	l.findChanges()
	for _, name := range asked {
		if hasOp(l.Ops, name) {
			continue
		}
		l.bad = append(l.bad, l.unknownOp(name))
		l.request.Ops = without(l.request.Ops, name)
	}
	if len(l.requirements.ops) == 0 && !byDefault { // search for the default ops
		l.selectOps(l.defaultOps())
		l.findChanges()
	}
}

// findChanges finds the ops that have changed. An op shares classes with the ops that it implies, so they change
// together.
func (l *lookup) findChanges() {
	l.changed = map[string]string{}
	for _, op := range l.ops {
		if why := l.deepspeed.Changed[l.machine][op.Name]; why != "" && op.Stable != nil {
			l.changed[op.Name] = why
		}
	}
	for range l.ops { // until it reaches the last one
		for _, op := range l.ops {
			for _, name := range op.Implies {
				why := cmp.Or(l.changed[op.Name], l.changed[name])
				if why != "" && op.Stable != nil && slices.ContainsFunc(l.ops, func(o Op) bool { return o.Name == name && o.Stable != nil }) {
					l.changed[op.Name], l.changed[name] = cmp.Or(l.changed[op.Name], why), cmp.Or(l.changed[name], why)
				}
			}
		}
	}
}

// selectOps selects the requested ops, and the ops that DeepSpeed builds with them.
func (l *lookup) selectOps(asked []string) {
	l.provenOps = slices.Contains(asked, ProvenOps) && !slices.Contains(asked, AllOps)
	l.allOps = l.provenOps || slices.Contains(asked, AllOps)
	for _, op := range l.Ops {
		named := slices.Contains(asked, op.Name)
		brought := slices.ContainsFunc(l.Ops, func(o Op) bool {
			return slices.Contains(asked, o.Name) && slices.Contains(o.Implies, op.Name)
		})
		if named || brought || l.allOps && (!l.provenOps || op.doesTheSame()) {
			l.ops, l.byName = append(l.ops, op.inRelease(l.deepspeed.Version)), append(l.byName, named)
			for _, f := range op.Wrong {
				if f.contains(l.deepspeed.Version) {
					l.notes = append(l.notes, fmt.Sprintf("%s of DeepSpeed %s computes wrong numbers: %s%s",
						op.Name, l.deepspeed.Version, f.Why, f.laterWords("is fixed")))
				}
			}
		}
	}
}

// defaultOps lists the default ops of the requested DeepSpeed.
func (l *lookup) defaultOps() []string {
	return slices.DeleteFunc(wheel.DefaultOps(), func(name string) bool {
		i := slices.IndexFunc(l.Ops, func(o Op) bool { return o.Name == name })
		why := ""
		if i >= 0 {
			why = l.Ops[i].absentFrom(l.deepspeed.Version)
		}
		if why != "" {
			l.notes = append(l.notes, fmt.Sprintf("%s is omitted: %s", name, why))
		}
		return why != ""
	})
}

// absentFrom returns why a release of DeepSpeed lacks the op, or has it in a form that cannot be built. It returns
// "" otherwise.
func (o Op) absentFrom(deepspeed string) string {
	switch {
	case o.Since != "" && compareVersions(deepspeed, o.Since) < 0:
		return fmt.Sprintf("op %s requires DeepSpeed %s or newer, not %s", o.Name, o.Since, deepspeed)
	case o.Until != "" && compareVersions(deepspeed, o.Until) >= 0:
		return fmt.Sprintf("op %s was removed in DeepSpeed %s and is not in %s", o.Name, o.Until, deepspeed)
	}
	for _, f := range o.Faults {
		if f.contains(deepspeed) {
			return fmt.Sprintf("op %s of DeepSpeed %s cannot be built: %s%s",
				o.Name, deepspeed, f.Why, f.laterWords("is fixed"))
		}
	}
	return ""
}

// wantsDeviceCode reports whether any requested op has device code.
func (w *requirements) wantsDeviceCode() bool {
	return slices.ContainsFunc(w.ops, func(o Op) bool { return o.DeviceCode })
}

// archWithGPUs returns an arch with the requested GPUs: "7.0 (V100)".
func (w *requirements) archWithGPUs(capability string) string {
	if by := w.gpus[capability]; len(by) > 0 {
		return capability + " (" + strings.Join(by, ", ") + ")"
	}
	return capability
}
