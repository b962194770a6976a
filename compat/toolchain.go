package compat

import (
	"cmp"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// CUDASource is the source of a toolchain's CUDA. One Dockerfile, toolchain.Dockerfile, makes the
// image of each: its scripts compilers.sh and build.sh, which get the name as CUDA_SOURCE, install what differs.
type CUDASource string

// The CUDA sources, in the order in which they are preferred.
const (
	CUDA13    CUDASource = "cuda13"   // nvcc and headers from Python packages
	CUDA12    CUDASource = "cuda12"   // headers from Python packages, no nvcc: C++ ops alone
	Nvcc12    CUDASource = "nvcc12"   // nvcc 12.4 of Debian's package, unpacked; headers from Python packages
	Debian12  CUDASource = "debian12" // Debian 12's own, 11.8 with gcc 11
	FoundCUDA CUDASource = "found"    // a toolkit that the build environment has
)

// BuildHost describes the place of a build: a base, or this machine.
type BuildHost struct {
	Name     string   `json:"name"`            // for people: "Debian 12 (bookworm)"
	Ref      string   `json:"image,omitempty"` // image reference, where dsbuild chooses it
	Suite    string   `json:"suite,omitempty"` // code name of the distribution's release: "bookworm"
	Host     bool     `json:"-"`               // this machine, for the host builder
	Glibc    string   `json:"glibc"`           // X.Y
	Pythons  []string `json:"pythons"`         // X.Y that it has or its distribution offers, best first
	GCCs     []string `json:"gccs"`            // major versions, best first
	CUDA     string   `json:"cuda,omitempty"`  // X.Y of its CUDA toolkit with nvcc
	CUDAHome string   `json:"cuda_home,omitempty"`
	Runtime  string   `json:"-"`                 // X.Y of its CUDA without nvcc
	Machine  string   `json:"machine,omitempty"` // uname -m (default x86_64)
	// its distribution also has compilers for aarch64, and packages for it at the same address
	Cross bool `json:"cross,omitempty"`
}

func (g BuildHost) machine() string { return cmp.Or(g.Machine, wheel.X86) }

// builds reports whether wheels for a machine can be built on g: for its own machine, and in x86_64
// containers also for aarch64, with a cross compiler.
func (g BuildHost) builds(machine string) bool {
	own := g.machine()
	return own == machine && (own == wheel.X86 || own == wheel.Arm) ||
		own == wheel.X86 && machine == wheel.Arm && g.Cross && !g.Host
}

// LinkGlibc is the glibc of the manylinux platform for which extensions are
// linked, on every base: torch's own since 2.7.
const LinkGlibc = "2.28"

// StableTorch is the oldest torch, X.Y, that has all of the stable ABI that dsbuild's headers use
// (pipeline/scripts/stable): a function of the dispatcher, strings, streams of CUDA.
const StableTorch = "2.10"

// Toolchain holds all choices for a build, resolved: no step chooses anything later.
type Toolchain struct {
	CUDASource  CUDASource
	Environment BuildHost
	DeepSpeed   string         // release; of other sources, the version they say
	Source      string         // sha256 of a release's source distribution, hex
	Torch       string         // X.Y.Z
	CUDA        string         // X.Y that torch is built for
	Index       string         // torch's own index that has it ("cu126"), or "" for the package index
	TorchHash   string         // sha256 of its wheel, hex; empty for a release of the table
	Standard    string         // C++ standard that torch's headers need: "17", "20"
	Toolkit     string         // of the headers and nvcc: X.Y, or X.Y.Z where packages are pinned
	Nvcc        bool           // whether there is a real nvcc, not a stand-in
	GCC         string         // major version to use (default: the build environment's own)
	Python      string         // X.Y
	ABI         wheel.ABI      // TorchMinor or StableABI
	PythonFrom  string         // X.Y of the oldest Python for StableABI; empty for TorchMinor
	Pins        []string       // requirements that this torch needs otherwise than pinned: "numpy==1.26.4"
	CPU         wheel.CPULevel //
	Glibc       string         // X.Y of the oldest node, which the audit checks; empty if unspecified
	Archs       []wheel.Arch   // empty when no op has device code
	EveryGPU    bool           // no arch was asked for: Archs are all of the toolkit
	AllOps      bool           // AllOps or ProvenOps was asked for
	Ops         []Op           // in the order of the table
	SkippedOps  []SkippedOp    // of --ops all: the ops that cannot be built here
	Warnings    []string       // consequences that may be unwelcome
	Notes       []string       // other things worth knowing
}

// Op is one of DeepSpeed's operators: a row of the table and, once resolved,
// the archs it is compiled for.
type Op struct {
	Name         string         `json:"name"`
	Variable     string         `json:"variable"`           // the variable that makes setup.py build it
	DeviceCode   bool           `json:"device_code"`        // whether it holds code for the GPU
	MinArch      string         `json:"min_arch,omitempty"` // DeepSpeed leaves lower ones out
	MaxArch      string         `json:"max_arch,omitempty"` // its libraries have no higher ones
	Since        string         `json:"since,omitempty"`    // first release of DeepSpeed that has it
	Until        string         `json:"until,omitempty"`    // first release that no longer has it
	Needs        Needs          `json:"needs"`
	Faults       []Fault        `json:"faults,omitempty"`  // releases in whose sources it cannot be built
	Wrong        []Fault        `json:"wrong,omitempty"`   // releases in which it computes wrong numbers
	Also         []string       `json:"also,omitempty"`    // other names that people use for it
	Implies      []string       `json:"implies,omitempty"` // ops that DeepSpeed adds to it
	Incompatible []Incompatible `json:"incompatible,omitempty"`
	// releases of DeepSpeed that load it only under a torch of its CUDA; an op with device code
	// always needs such a torch
	NeedsCUDA *Span     `json:"needs_cuda,omitempty"`
	Patch     string    `json:"patch,omitempty"` // correction to DeepSpeed's sources, by name (pipeline/scripts)
	Overrides *Override `json:"overrides,omitempty"`
	Stable    *Proof    `json:"stable,omitempty"`   // the proof with torch's stable ABI, or nil
	X86Only   string    `json:"x86_only,omitempty"` // why it cannot be built for aarch64, if so
	BF16      bool      `json:"bf16,omitempty"`     // DeepSpeed builds it without BF16 if an arch is older than 8.0
	Kind      string    `json:"kind,omitempty"`     // a short description for the printed table

	Archs []wheel.Arch `json:"-"`
}

// Needs lists packages that an op needs in addition to every toolchain's.
type Needs struct {
	Python      []string     `json:"python,omitempty"`     // requirements
	Node        []string     `json:"node,omitempty"`       // requirements that a node must meet too, to run the op
	Toolkit     []string     `json:"toolkit,omitempty"`    // components of the CUDA toolkit: the extras of cuda-toolkit
	CUDASources []CUDASource `json:"toolchains,omitempty"` // the only sources with which it works; none: with all
}

// Override describes an op in the releases of DeepSpeed before Until, if it differs there from the
// rest of its row.
type Override struct {
	Until      string   `json:"until"`
	DeviceCode bool     `json:"device_code"`
	Toolkit    []string `json:"toolkit,omitempty"` // components of the CUDA toolkit that it needs
}

// inRelease returns the op with its properties in a release of DeepSpeed.
func (o Op) inRelease(deepspeed string) Op {
	if e := o.Overrides; e != nil && compareVersions(deepspeed, e.Until) < 0 {
		o.DeviceCode = e.DeviceCode
		o.Needs.Toolkit = appendMissing(o.Needs.Toolkit, e.Toolkit)
	}
	return o
}

// ToolkitParts returns the components of the CUDA toolkit that the op needs in any release of DeepSpeed.
func (o Op) ToolkitParts() []string {
	if o.Overrides == nil {
		return o.Needs.Toolkit
	}
	return appendMissing(o.Needs.Toolkit, o.Overrides.Toolkit)
}

// Fault is what is wrong with an op in some releases of DeepSpeed.
type Fault struct {
	Span
	Why string `json:"why"`
}

// MissingOp is an op of DeepSpeed that dsbuild does not build.
type MissingOp struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Span is a range of versions; either end can be open.
type Span struct {
	Since string `json:"since,omitempty"` // from this on
	Until string `json:"until,omitempty"` // up to before this
}

func (s Span) contains(version string) bool {
	return (s.Since == "" || compareVersions(version, s.Since) >= 0) &&
		(s.Until == "" || compareVersions(version, s.Until) < 0)
}

// boundToCUDA reports whether a release of DeepSpeed loads the op only with a torch
// for the CUDA that it was compiled for.
func (o Op) boundToCUDA(deepspeed string) bool {
	return o.DeviceCode || o.NeedsCUDA != nil && o.NeedsCUDA.contains(deepspeed)
}

// Incompatible is a toolkit with which an op cannot be compiled.
type Incompatible struct {
	From string `json:"from"` // CUDA X.Y, from this on
	To   string `json:"to"`   // before this; if empty, no limit
	Why  string `json:"why"`
}

// SkippedOp is an omitted op, and why.
type SkippedOp struct {
	Name, Why string
}

// HasDeviceCode reports whether any op of the toolchain has device code.
func (tc Toolchain) HasDeviceCode() bool {
	return slices.ContainsFunc(tc.Ops, func(o Op) bool { return o.DeviceCode })
}

// BuildMachine returns the machine that builds the wheel.
func (tc Toolchain) BuildMachine() string { return tc.Environment.machine() }

// IsCross reports whether the wheel is for a different machine than its build machine.
func (tc Toolchain) IsCross() bool { return tc.CPU.Machine() != tc.BuildMachine() }

// Serves returns the torch, the CUDA and the Python that the wheel is for, as in its manifest. For the
// stable ABI these are the oldest torch, the CUDA major version if an op needs CUDA, and the oldest Python.
func (tc Toolchain) Serves() (torch, cuda, python string) {
	if tc.ABI == wheel.StableABI {
		// Ops without device code need CUDA if they are linked with another library of the toolkit.
		if slices.ContainsFunc(tc.Ops, func(o Op) bool { return o.DeviceCode || len(o.Needs.Toolkit) > 0 }) {
			cuda = wheel.Major(tc.CUDA)
		}
		return StableTorch, cuda, tc.PythonFrom + "+"
	}
	return tc.Torch, tc.CUDA, tc.Python
}

// OpNames lists the names of the toolchain's ops; with device only those that
// have device code.
func (tc Toolchain) OpNames(device bool) []string {
	names := []string{}
	for _, o := range tc.Ops {
		if o.DeviceCode || !device {
			names = append(names, o.Name)
		}
	}
	return names
}

// Needs joins the needs of the ops, each once.
func (tc Toolchain) Needs() Needs {
	var n Needs
	for _, o := range tc.Ops {
		n.Python = append(n.Python, o.Needs.Python...)
		n.Node = append(n.Node, o.Needs.Node...)
		n.Toolkit = append(n.Toolkit, o.Needs.Toolkit...)
	}
	for _, list := range []*[]string{&n.Python, &n.Node, &n.Toolkit} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return n
}

// importFixed is the first release of DeepSpeed that can be imported on a node with a GPU and no CUDA toolkit.
const importFixed = "0.19.5"

// Patches lists the corrections to DeepSpeed's sources that the release and the ops need, each
// once.
func (tc Toolchain) Patches() []string {
	var names []string
	if tc.DeepSpeed != "" && compareVersions(tc.DeepSpeed, importFixed) < 0 {
		names = append(names, "import_check")
	}
	for _, o := range tc.Ops {
		if o.Patch != "" && !slices.Contains(names, o.Patch) {
			names = append(names, o.Patch)
		}
	}
	return names
}
