package wheel

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel/elf"
	"github.com/dsbuild/dsbuild/wheel/x86"
)

// Contents describes a wheel by its files, without its manifest.
type Contents struct {
	Name       string      `json:"name"`
	Version    string      `json:"version"`
	Build      string      `json:"build"`    // build tag of the file's name, which distinguishes builds of one version
	Tags       []string    `json:"tags"`     // python-abi-platform, expanded; of the file's name, else of WHEEL
	Requires   []string    `json:"requires"` // PEP 508, one requirement each
	Ops        []string    `json:"ops"`      // of DeepSpeed; empty for any other wheel
	Extensions []Extension `json:"extensions"`
	Torch      string      `json:"torch"`     // X.Y of the torch that it was built for, if known
	CUDA       string      `json:"cuda"`      // X.Y or X, if known
	Python     string      `json:"python"`    // X.Y, X.Y+ for that or newer, or "" for any
	TorchABI   *TorchABI   `json:"torch_abi"` // null if no extension uses torch
	Variants   []Variant   `json:"variants"`  // of ops with several builds
}

// Extension is one ELF file of a wheel.
type Extension struct {
	Path    string   `json:"path"`
	Size    int64    `json:"size"`    // bytes, unpacked
	Machine string   `json:"machine"` // x86_64, aarch64 …
	SASS    []string `json:"sass"`    // compute capabilities, as in "9.0a"
	PTX     []string `json:"ptx"`
	CPU     CPU      `json:"cpu"`

	Floors // the newest symbol versions that it needs, if any
	// Newest are the symbols that need newer libraries than requested. NameNewest fills it in.
	Newest []string `json:"-"`

	// CXX11ABI reports whether it uses the std::string of GCC 5 and later. It is null if it uses
	// neither kind.
	CXX11ABI *bool `json:"cxx11abi"`
	// Torch are the symbols that it imports from torch.
	Torch elf.Torch `json:"-"`
	// Unique reports whether it defines symbols that are unique in a process (STB_GNU_UNIQUE).
	Unique   bool     `json:"-"`
	Needs    []string `json:"needs"`
	RPath    []string `json:"rpath"`
	Stripped bool     `json:"stripped"`
	// Unread describes what could not be read, and why. It is usually empty.
	Unread string `json:"unread"`
	align  uint64 // see elf.Object
	usage  x86.Usage
	told   bool // see cpuOf
}

// CPU is the instruction set an extension uses.
type CPU struct {
	Max CPULevel `json:"max"` // the highest level found, or "" without code for a CPU with levels
	// Requires is the level that the CPU must have: Max, or less if the extension chooses its
	// code at run time.
	Requires CPULevel `json:"requires"`
	// Dispatch reports whether the extension chooses its code at run time, by the CPU's features.
	Dispatch bool `json:"dispatch"`
	// Beyond are features that belong to no level (aes, sha_ni, avx512_vnni
	// …), named as /proc/cpuinfo does.
	Beyond []string `json:"beyond"`
}

// Op returns the name of the extension's op. DeepSpeed calls the file <op>_op, or <op> for a few
// (ragged_ops). inference_core_ops is an exception: it is in the directory above kernels, and its
// file name begins with "kernels". A library of the stable ABI is called lib<op>_op.so, or
// lib<op>_op.<variant>.so.
func (e Extension) Op() string {
	name, _, _ := strings.Cut(path.Base(e.Path), ".")
	if m := libraryName.FindStringSubmatch(path.Base(e.Path)); m != nil {
		name = m[1]
	}
	if rest, ok := strings.CutPrefix(name, "kernels"); ok && path.Dir(e.Path) == "deepspeed/inference/v2" {
		name = rest
	}
	return strings.TrimSuffix(name, "_op")
}

// Variant returns the variant in the name of the extension's file. It returns "" for the only build of an op.
func (e Extension) Variant() string {
	if m := libraryName.FindStringSubmatch(path.Base(e.Path)); m != nil {
		return m[2]
	}
	return ""
}

// title describes the extension in a finding: by its op, and also by the file if the op has several.
func (e Extension) title() string {
	if e.Variant() == "" {
		return "op " + e.Op()
	}
	return fmt.Sprintf("op %s (%s)", e.Op(), path.Base(e.Path))
}

// Archs returns the compute capabilities any extension has SASS for, and those
// it has PTX for.
func (c Contents) Archs() (sass, ptx []string) {
	sass, ptx, _ = codeOf(c.Extensions)
	return sass, ptx
}

// Machine returns the extensions' machine, or X86 without extensions. An audit rejects wheels for
// several machines, because it compares each extension with the requested level.
func (c Contents) Machine() string {
	if len(c.Extensions) == 0 {
		return X86
	}
	return c.Extensions[0].Machine
}

// CPU returns the lowest level on which every op runs, in its lowest variant. It returns "" if no op has code for a
// CPU with levels.
func (c Contents) CPU() CPULevel {
	lowest := map[string]string{} // variant of each op
	for _, e := range c.Extensions {
		if v := e.Variant(); lowest[e.Op()] == "" || v < lowest[e.Op()] {
			lowest[e.Op()] = v
		}
	}
	var need CPULevel
	for _, e := range c.Extensions {
		chosen := strings.HasPrefix(e.Variant(), "v") && e.Variant() > lowest[e.Op()]
		if !chosen && (need == "" || e.CPU.Requires.Includes(need)) {
			need = e.CPU.Requires
		}
	}
	return need
}

// IsDeepSpeed reports whether the wheel is DeepSpeed's.
func (c Contents) IsDeepSpeed() bool { return sameName(c.Name, "deepspeed") }

// Manifest describes a wheel that dsbuild did not build, from its files.
func (c Contents) Manifest() Manifest {
	m := Manifest{
		Version: c.Version, Ops: c.Ops, Variants: c.Variants,
		CPU: string(c.CPU()), Python: c.Python, Torch: c.Torch, CUDA: c.CUDA, TorchABI: c.TorchABI,
	}
	m.Archs, m.PTX = c.Archs()
	f := c.Floors()
	m.Glibc, m.GLIBCXX, m.CXX11ABI = f.Glibc, f.GLIBCXX, c.cxx11ABI()
	return m
}

// ManifestFor is Manifest for nodes of a platform such as linux_x86_64 and the wheel's file name. It ignores extensions
// for other machines and for musl, unless the wheel has no others.
func (c Contents) ManifestFor(platform, file string) Manifest {
	for _, foreign := range []func(Extension) bool{
		func(e Extension) bool { return "linux_"+e.Machine != platform }, Extension.needsMusl,
	} {
		if own := slices.DeleteFunc(slices.Clone(c.Extensions), foreign); len(own) > 0 {
			c.Extensions = own
		}
	}
	m := c.Manifest()
	m.Name, m.Musl = file, len(c.Extensions) > 0 && c.Extensions[0].needsMusl()
	if c.IsDeepSpeed() {
		return m
	}
	m.CPU, m.Glibc, m.GLIBCXX = "", "", ""
	for i, all := range c.alternatives() {
		c.Extensions = all
		f, cpu := c.Floors(), c.CPU()
		if i == 0 || CompareVersions(f.Glibc, m.Glibc) < 0 {
			m.Glibc = f.Glibc
		}
		if i == 0 || CompareVersions(f.GLIBCXX, m.GLIBCXX) < 0 {
			m.GLIBCXX = f.GLIBCXX
		}
		if i == 0 || CPULevel(m.CPU).Includes(cpu) {
			m.CPU = string(cpu)
		}
	}
	return m
}

// needsMusl reports whether the extension loads the C library musl, as those built on Alpine Linux do.
func (e Extension) needsMusl() bool {
	return slices.ContainsFunc(e.Needs, func(library string) bool {
		return library == "libc.so" || strings.HasPrefix(library, "libc.musl-") || strings.HasPrefix(library, "ld-musl-")
	})
}

// alternatives returns what an import of the package loads: the modules with their dependencies in the wheel. In a
// wheel without modules, each library that no other library needs is an alternative: bitsandbytes has such libraries
// for CUDA, ROCm and XPU, and selects one when it is loaded.
func (c Contents) alternatives() [][]Extension {
	var modules []Extension
	needed := map[string]bool{}
	for _, e := range c.Extensions {
		if name := path.Base(e.Path); !strings.HasPrefix(name, "lib") && strings.HasSuffix(name, ".so") {
			modules = append(modules, e)
		}
		for _, name := range e.Needs {
			needed[name] = true
		}
	}
	if len(modules) > 0 {
		return [][]Extension{c.addNeeds(modules)}
	}
	var all [][]Extension
	for _, e := range c.Extensions {
		if !needed[path.Base(e.Path)] {
			all = append(all, c.addNeeds([]Extension{e}))
		}
	}
	return all
}

// addNeeds adds the wheel's extensions that the given ones need, directly or indirectly.
func (c Contents) addNeeds(found []Extension) []Extension {
	for i := 0; i < len(found); i++ { // found grows
		for _, e := range c.Extensions {
			if slices.Contains(found[i].Needs, path.Base(e.Path)) && !slices.ContainsFunc(found, func(o Extension) bool { return o.Path == e.Path }) {
				found = append(found, e)
			}
		}
	}
	return found
}

// cxx11ABI reports whether the extensions use torch with the std::string of GCC 5 and later. It is true unless an
// extension that uses torch shows the older one.
func (c Contents) cxx11ABI() bool {
	return !slices.ContainsFunc(c.Extensions, func(e Extension) bool {
		return e.Torch.CXX != "" && e.CXX11ABI != nil && !*e.CXX11ABI
	})
}

// Floors are the symbol versions that a machine must offer, of glibc, libstdc++ (two series) and libgcc.
type Floors struct {
	Glibc   string `json:"glibc"`
	GLIBCXX string `json:"glibcxx"`
	CXXABI  string `json:"cxxabi"`
	Libgcc  string `json:"libgcc"`
}

// Floors returns the highest versions that any extension needs.
func (c Contents) Floors() Floors {
	var f Floors
	for _, e := range c.Extensions {
		f.Glibc = newerVersion(f.Glibc, e.Glibc)
		f.GLIBCXX = newerVersion(f.GLIBCXX, e.GLIBCXX)
		f.CXXABI = newerVersion(f.CXXABI, e.CXXABI)
		f.Libgcc = newerVersion(f.Libgcc, e.Libgcc)
	}
	return f
}

func newerVersion(a, b string) string {
	if CompareVersions(a, b) < 0 {
		return b
	}
	return a
}

func sortedArchs(archs []string) []string {
	out := append([]string{}, archs...)
	slices.SortFunc(out, func(a, b string) int { // 10.0, 10.0a, 10.3
		return cmp.Or(CompareVersions(strings.TrimRight(a, "af"), strings.TrimRight(b, "af")), cmp.Compare(a, b))
	})
	return slices.Compact(out)
}
