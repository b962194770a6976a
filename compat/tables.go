package compat

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

//go:embed data/*.json
var data embed.FS

// DeepSpeed is one release of DeepSpeed.
type DeepSpeed struct {
	Version string `json:"deepspeed"`
	SHA256  string `json:"sha256"` // of the source distribution
	// Changed are the ops that differ from all that was proven with torch's stable ABI. It is nil if they were not
	// compared.
	Changed evidence.Changes `json:"changed,omitempty"`
}

// Limit is a reason why some releases of DeepSpeed cannot be built for some archs, do not work with some torches and
// Pythons, or need other pins. Versions of torch and Python that it does not name are no condition.
type Limit struct {
	Span                // of releases of DeepSpeed
	MaxArch      string `json:"max_arch,omitempty"` // no higher one with device code
	TorchFrom    string `json:"torch_from,omitempty"`
	TorchBefore  string `json:"torch_before,omitempty"`
	PythonFrom   string `json:"python_from,omitempty"`
	PythonBefore string `json:"python_before,omitempty"`
	Pins         []Pin  `json:"pins,omitempty"` // requirements that they need otherwise than pinned
	Why          string `json:"why"`
}

// refuses describes the torch and the Python that the limit excludes together. It returns "" if they are allowed.
func (l Limit) refuses(torch, python string) string {
	byTorch, byPython := l.TorchFrom+l.TorchBefore != "", l.PythonFrom+l.PythonBefore != ""
	switch {
	case !byTorch && !byPython,
		byTorch && !(Span{Since: l.TorchFrom, Until: l.TorchBefore}).contains(torch),
		byPython && !(Span{Since: l.PythonFrom, Until: l.PythonBefore}).contains(python):
		return ""
	case !byPython:
		return "torch " + torch
	case !byTorch:
		return "Python " + python
	}
	return "torch " + torch + " and Python " + python
}

// Torch is one release of torch, described by its wheels on the package index.
type Torch struct {
	Version   string   `json:"torch"`
	CUDA      string   `json:"cuda"`              // X.Y
	Toolkit   string   `json:"toolkit,omitempty"` // X.Y.Z of the cuda-toolkit packages it pins, of CUDA 13 and newer
	Pythons   []string `json:"pythons"`
	OldABI    bool     `json:"old_abi,omitempty"` // its std::string is from before GCC 5
	OldestGCC string   `json:"oldest_gcc"`        // major that compiles its headers
	Standard  string   `json:"cxx_standard"`      // C++ standard that its headers need: two digits
	Pins      []Pin    `json:"pins,omitempty"`    // requirements that differ from the pins of all toolchains
	Archs     []string `json:"archs"`             // compute capabilities its own binaries have code for; none: unknown
	// ArmArchs are the archs of its wheel for aarch64, or null if that wheel has no CUDA.
	ArmArchs []string `json:"arm_archs,omitempty"`

	// From an index, for a release that is not in the table.
	Index  string            `json:"-"` // one of torch's own ("cu126"), or "" for the package index
	SHA256 map[string]string `json:"-"` // of its wheel, hex, by Python
}

// Pin is a requirement that replaces the common one of all toolchains.
type Pin struct {
	Requirement string `json:"requirement"`
	FromPython  string `json:"from_python,omitempty"` // there is no such release for older ones
}

// CUDA is one release of the CUDA toolkit.
type CUDA struct {
	Version   string   `json:"cuda"`
	Archs     []string `json:"archs"`      // compute capabilities nvcc compiles for
	NewestGCC string   `json:"newest_gcc"` // newest host compiler, major
	Driver    string   `json:"driver"`     // oldest driver
	PTXDriver string   `json:"ptx_driver"` // oldest driver that compiles its PTX
}

// GPU is one product of NVIDIA.
type GPU struct {
	Name    string   `json:"gpu"`
	Arch    string   `json:"arch"`              // compute capability
	Class   string   `json:"class"`             // data center, workstation, GeForce, Jetson
	Machine string   `json:"machine,omitempty"` // uname -m of the CPU it is sold with (default x86_64)
	Also    []string `json:"also,omitempty"`    // other names for it
}

// Drivers are the drivers for the GPUs of a compute capability.
type Drivers struct {
	Arch  string `json:"arch"`
	First string `json:"first"` // oldest driver
	Last  string `json:"last"`  // last branch, its first number; empty if there is none yet
}

// Base is a BuildHost that dsbuild knows by the name of its image.
type Base struct {
	BuildHost
	Match     string `json:"match"`                // expression for the references of its images
	NamedOnly bool   `json:"named_only,omitempty"` // never chosen, only recognised
}

// CUDASourceInfo describes a CUDA source.
type CUDASourceInfo struct {
	Source    CUDASource `json:"toolchain"`
	Title     string     `json:"title"`
	Nvcc      bool       `json:"nvcc"`
	TorchCUDA string     `json:"torch_cuda,omitempty"` // major version of its torches' CUDA (default: the toolkit's)
	CUDA      string     `json:"cuda,omitempty"`       // X.Y of its toolkit, where that is fixed
	// additional compute capabilities that it compiles for, without PTX
	MoreArchs []string `json:"more_archs,omitempty"`
	GCC       string   `json:"gcc,omitempty"`   // major version of the required gcc
	Suite     string   `json:"suite,omitempty"` // the only release of a distribution that has it
}

// Origin is the source of a table.
type Origin struct {
	Source string `json:"source"`
	Date   string `json:"date"`
}

// Tables are all the tables. NewTables reads them once.
type Tables struct {
	DeepSpeeds  []DeepSpeed // newest first
	Sources     *DeepSpeed  // the caller's own sources, in place of a release; their version may be of a release
	Limits      []Limit     // of older releases of DeepSpeed
	Torches     []Torch     // newest first
	CUDAs       []CUDA      // newest first
	Ops         []Op
	Evidence    evidence.Table   // of the ops with a proof
	MissingOps  []MissingOp      // of DeepSpeed, which dsbuild does not build
	GPUs        []GPU            // by class, newest first
	Drivers     []Drivers        // by compute capability
	Bases       []Base           // best first
	CUDASources []CUDASourceInfo // best first
	Images      []string         // references of images with a CUDA toolkit, newest first
	Origins     map[string]Origin

	images []BuildHost         // of Images
	tegra  map[wheel.Arch]bool // the archs of Jetsons
	names  func() gpuNames     // of GPUs
}

func torchVersions(all []Torch) []string {
	return lists.Map(all, func(r Torch) string { return r.Version })
}

// torchCUDAs lists the CUDAs that torches are built for, newest first.
func torchCUDAs(all []Torch) []string {
	return slices.Compact(lists.Map(all, func(r Torch) string { return r.CUDA }))
}

// allPythons lists the Pythons that torches have wheels for, oldest first.
func allPythons(all []Torch) []string {
	var out []string
	for _, r := range all {
		out = append(out, r.Pythons...)
	}
	slices.SortFunc(out, compareVersions)
	return slices.Compact(out)
}

// oldestDrivers lists the oldest driver of each CUDA major version, newest first.
func oldestDrivers(all []CUDA) []string {
	return slices.Compact(lists.Map(all, func(c CUDA) string { return c.Driver }))
}

// releases lists the versions of DeepSpeed, newest first.
func releases(all []DeepSpeed) []string {
	return lists.Map(all, func(d DeepSpeed) string { return d.Version })
}

// NewTables reads the embedded tables.
func NewTables() (*Tables, error) {
	t := Tables{Origins: map[string]Origin{}, tegra: map[wheel.Arch]bool{}}
	for _, f := range []struct {
		name string
		into any
	}{
		{"deepspeed", &struct {
			Releases *[]DeepSpeed
			Limits   *[]Limit
		}{&t.DeepSpeeds, &t.Limits}},
		{"torch", &struct{ Releases *[]Torch }{&t.Torches}},
		{"cuda", &struct{ Releases *[]CUDA }{&t.CUDAs}},
		{"ops", &struct {
			Ops     *[]Op
			Missing *[]MissingOp
		}{&t.Ops, &t.MissingOps}},
		{"evidence", &t.Evidence},
		{"gpus", &struct{ GPUs *[]GPU }{&t.GPUs}},
		{"drivers", &struct{ Drivers *[]Drivers }{&t.Drivers}},
		{"bases", &struct{ Bases *[]Base }{&t.Bases}},
		{"toolchains", &struct {
			Toolchains *[]CUDASourceInfo
			Images     *[]string
		}{&t.CUDASources, &t.Images}},
	} {
		var origin Origin
		text, err := data.ReadFile("data/" + f.name + ".json")
		if err == nil {
			err = json.Unmarshal(text, f.into)
		}
		if err == nil {
			err = json.Unmarshal(text, &origin)
		}
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", f.name, err)
		}
		t.Origins[f.name] = origin
	}
	for _, op := range t.Ops {
		if proofs := t.Evidence.Ops[op.Name]; op.Stable != nil && len(proofs) > 0 {
			op.Stable.DeepSpeed = proofs[0].DeepSpeed
		}
	}
	for _, g := range t.GPUs {
		if g.Class == "Jetson" {
			t.tegra[archOf(g.Arch)] = true
		}
	}
	t.names = sync.OnceValue(func() gpuNames { return nameGPUs(t.GPUs) })
	for _, ref := range t.Images {
		if e, ok := t.EnvironmentOfImage(ref); ok {
			t.images = append(t.images, e)
		}
	}
	return &t, nil
}
