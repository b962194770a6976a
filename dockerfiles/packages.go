package dockerfiles

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Package is a Python package of a toolchain, pinned to one file.
type Package struct {
	Name    string `json:"name"` // normalised as PEP 503 says
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the file, hex
}

// String returns the package as a requirement: NAME==VERSION.
func (p Package) String() string { return p.Name + "==" + p.Version }

// HasStandIn reports whether an environment without a GPU can omit one of torch's packages,
// because nvidia_standins.py makes libraries with which torch can be loaded, or because the
// libraries are not needed. CUDA's runtime is called.
func (p Package) HasStandIn() bool {
	if p.Name == "nvidia-cuda-runtime" || p.Name == "nvidia-ml-py" {
		return false
	}
	return p.Name == "triton" || strings.HasPrefix(p.Name, "cuda-") || strings.HasPrefix(p.Name, "nvidia-")
}

// Packages are the Python packages that may be installed for a toolchain, each list sorted by name.
type Packages struct {
	Runtime []Package // torch, DeepSpeed's other requirements, and the requirements of these
	Build   []Package // the additional packages of a build: tools, CUDA, requirements of ops
}

// Pinned returns requirements such as NAME[EXTRA]==X.* with the packages' exact versions.
func (p Packages) Pinned(requirements []string) []string {
	var out []string
	for _, r := range requirements {
		for _, one := range slices.Concat(p.Runtime, p.Build) {
			if before, _, ok := strings.Cut(r, "=="); ok && RequirementName(r) == one.Name {
				out = append(out, before+"=="+one.Version)
			}
		}
	}
	return out
}

// LockName is the name of the lock in this directory. ci/packagelock writes it.
const LockName = "packages.lock"

// The names of the files in the build context that uv reads as constraints: it installs no other
// version and no other file.
const (
	RuntimePackages = "packages.txt"         // Packages.Runtime
	AllPackages     = "packages-build.txt"   // both lists
	ArmPackages     = "packages-aarch64.txt" // those of LockedForArm
)

// LockedPackages returns the packages of a toolchain: for a torch (X.Y.Z), a Python (X.Y), a source of
// CUDA and the requirements of ops. pins are requirements that replace the versions of the lock. If
// the lock does not have them all, it returns false.
func LockedPackages(torch, python, source string, ops, pins []string) (Packages, bool) {
	var out Packages
	lock := readLock()
	for _, s := range lock {
		if !s.serves(torch, python) {
			continue
		}
		switch s.kind {
		case RuntimeSection:
			out.Runtime = append(out.Runtime, s.packages...)
		case ToolsSection, source:
			out.Build = append(out.Build, s.packages...)
		case OpsSection:
			for _, p := range s.packages {
				if slices.Contains(ops, p.String()) {
					out.Build = append(out.Build, p)
				}
			}
		}
	}
	for _, op := range ops {
		if !slices.ContainsFunc(out.Build, func(p Package) bool { return p.String() == op }) {
			return Packages{}, false
		}
	}
	for _, pin := range pins {
		for _, list := range [][]Package{out.Runtime, out.Build} {
			if !replacePinned(list, pin, python, lock) {
				return Packages{}, false
			}
		}
	}
	sortPackages(out.Runtime)
	sortPackages(out.Build)
	return out, slices.ContainsFunc(out.Runtime, func(p Package) bool { return p.Name == "torch" && p.Version == torch })
}

// LockedForArm returns the packages for the smoke test of a wheel for aarch64 that x86_64 builds, for a
// Python (X.Y): the runtime packages with the newest torch, without NVIDIA's libraries but CUDA's
// runtime. It returns none for a Python that no base with cross compilers has.
func LockedForArm(python string) []Package {
	var out []Package
	for _, s := range readLock() {
		if s.kind == ArmSection && slices.Contains(s.pythons, python) {
			out = append(out, s.packages...)
		}
	}
	return out
}

// LockedTorches lists the releases of torch that the lock has for a Python.
func LockedTorches(python string) []string {
	var out []string
	for _, s := range readLock() {
		if s.kind == RuntimeSection && slices.Contains(s.pythons, python) {
			out = append(out, s.torches...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// PinnedPip returns the pip that the lock has for a Python (X.Y).
func PinnedPip(python string) (Package, bool) {
	for _, s := range readLock() {
		at := slices.IndexFunc(s.packages, func(p Package) bool { return p.Name == "pip" })
		if at >= 0 && slices.Contains(s.pythons, python) {
			return s.packages[at], true
		}
	}
	return Package{}, false
}

func sortPackages(all []Package) {
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
}

// replacePinned puts the version of a pin into a list, with the hash that the lock has of that
// version for the same Python. It returns false if the lock has none.
func replacePinned(list []Package, pin, python string, lock []lockSection) bool {
	name, version, _ := strings.Cut(pin, "==")
	i := slices.IndexFunc(list, func(p Package) bool { return p.Name == name })
	if i < 0 || list[i].Version == version {
		return true
	}
	for _, s := range lock {
		for _, p := range s.packages {
			if p.String() == pin && s.kind != ArmSection && slices.Contains(s.pythons, python) {
				list[i] = p
				return true
			}
		}
	}
	return false
}

// The kinds of sections of the lock. The others are named after sources of CUDA.
const (
	RuntimeSection = "runtime"
	ToolsSection   = "tools"   // build.txt: of every toolchain
	OpsSection     = "ops"     // what ops need, each for some
	ArmSection     = "aarch64" // of LockedForArm
)

// lockSection lists packages that toolchains share.
type lockSection struct {
	kind             string
	torches, pythons []string // all of these, in every combination
	packages         []Package
}

func (s lockSection) serves(torch, python string) bool {
	return slices.Contains(s.torches, torch) && slices.Contains(s.pythons, python)
}

// readLock reads the lock, which is part of the program.
func readLock() []lockSection {
	text, err := files.ReadFile(LockName)
	if err != nil {
		panic(err)
	}
	lock, err := parseLock(string(text))
	if err != nil {
		panic(err)
	}
	return lock
}

// parseLock reads sections: a line [KIND torch=X,Y python=X,Y], then a line NAME==VERSION SHA256
// for each package.
func parseLock(text string) ([]lockSection, error) {
	var lock []lockSection
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(strings.Trim(strings.TrimSpace(line), "[]"))
		switch {
		case len(words) == 0 || words[0] == "#":
		case len(words) == 3 && strings.HasPrefix(line, "["):
			torches, isTorch := strings.CutPrefix(words[1], "torch=")
			pythons, isPython := strings.CutPrefix(words[2], "python=")
			if !isTorch || !isPython {
				return nil, fmt.Errorf("%s:%d: no torch= or no python=", LockName, number)
			}
			lock = append(lock, lockSection{
				kind:    words[0],
				torches: strings.Split(torches, ","),
				pythons: strings.Split(pythons, ","),
			})
		case len(words) == 2 && len(words[1]) == 64 && len(lock) > 0:
			name, version, _ := strings.Cut(words[0], "==")
			s := &lock[len(lock)-1]
			s.packages = append(s.packages, Package{name, version, words[1]})
		default:
			return nil, fmt.Errorf("%s:%d: neither a section nor a package: %.80s", LockName, number, line)
		}
	}
	return lock, nil
}

// Constraints returns lists of packages in the format of pip's and uv's constraints.
func Constraints(lists ...[]Package) string {
	all := slices.Concat(lists...)
	sortPackages(all)
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%s --hash=sha256:%s\n", p, p.SHA256)
	}
	return b.String()
}

// CUDARequirements returns the requirements for a source of CUDA that comes as Python packages, of a
// version of the toolkit. The other sources have none here: nvcc12.txt pins the headers for nvcc 12.4.
func CUDARequirements(source, toolkit string) []string {
	switch source {
	case "cuda13":
		return []string{"cuda-toolkit[nvcc,crt,nvvm,cccl,cudart,cublas,curand,cusolver,cusparse]==" + toolkit}
	case "cuda12": // torch's own packages have the headers, except nvcc's
		return []string{"nvidia-cuda-nvcc-cu12==" + toolkit + ".*", "nvidia-cuda-cccl-cu12==" + toolkit + ".*"}
	}
	return nil
}

// ToolPackages returns the packages of a toolchain that do not depend on its torch and Python: uv for
// the machine that builds, and those that belong to nvcc 12.4.
func ToolPackages(source, machine string) []Package {
	out := readPinned(uvPins(machine))
	if source == "nvcc12" {
		out = slices.Concat(out, readPinned("nvcc12.txt"), readPinned("ptxas12.txt"))
	}
	return out
}

// pinnedLine matches a package in a file of this folder that pip or uv reads.
var pinnedLine = regexp.MustCompile(`(?m)^([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$`)

// readPinned returns the packages of a file of this folder.
func readPinned(name string) []Package {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is part of the program
	}
	var out []Package
	for _, m := range pinnedLine.FindAllStringSubmatch(string(text), -1) {
		out = append(out, Package{m[1], m[2], m[3]})
	}
	return out
}

// RequirementName returns the name of the package in a requirement.
func RequirementName(requirement string) string {
	if end := strings.IndexAny(requirement, "=<>!~[;@ "); end >= 0 {
		return requirement[:end]
	}
	return requirement
}
