package elf

import (
	"debug/elf"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// asksCPU are the names of functions and data that exist only to tell which instructions the CPU
// has. Names with other uses too (getauxval, sysconf, cpuinfo_get_cores_count) are not among
// them.
var asksCPU = map[string]bool{
	// libgcc and compiler-rt, behind __builtin_cpu_supports and target_clones.
	"__cpu_model":                  true,
	"__cpu_features2":              true,
	"__cpu_indicator_init":         true,
	"__aarch64_cpu_features":       true,
	"__init_cpu_features_resolver": true,
	// glibc, <sys/platform/x86.h>.
	"__x86_get_cpuid_feature_leaf": true,
	"__x86_get_cpu_features":       true,
	// Intel's compilers, behind -ax and _may_i_use_cpu_feature.
	"__intel_cpu_feature_indicator":   true,
	"__intel_cpu_feature_indicator_x": true,
	"__intel_cpu_features_init":       true,
	"__intel_cpu_features_init_x":     true,
	// cpuinfo (github.com/pytorch/cpuinfo), behind cpuinfo_has_x86_avx2 and the like.
	"cpuinfo_isa": true,
}

const longestAsk = 64 // bytes; no name above is as long

// symbol records an entry of the dynamic symbol table.
func (p *parts) symbol(index int, raw []byte) error {
	name, info := le.Uint32(raw), raw[4]
	section := elf.SectionIndex(le.Uint16(raw[6:]))
	if uint64(name) >= p.strings.Size {
		at := p.symbols.Offset + uint64(index)*symbolSize
		return formatError(p.symbols.label(), at, "its name is at %d of %d bytes of strings", name, p.strings.Size)
	}
	switch {
	case elf.ST_BIND(info) == elf.STB_LOCAL:
		return nil
	case section == elf.SHN_UNDEF:
		p.undefined = append(p.undefined, name)
		return nil
	}
	p.defined = append(p.defined, name)
	p.ifuncs = p.ifuncs || elf.ST_TYPE(info) == elf.STT_GNU_IFUNC
	p.unique = p.unique || elf.ST_BIND(info) == gnuUnique
	return nil
}

// gnuUnique is STB_GNU_UNIQUE, a binding of the LSB that package debug/elf has no name for.
const gnuUnique = elf.STB_LOOS

// relocation records whether a relocation calls a function for its value. Such relocations are the
// only trace of hidden indirect functions.
func (p *parts) relocation(_ int, raw []byte) error {
	p.ifuncs = p.ifuncs || uint32(le.Uint64(raw[8:])) == p.machine.irelative
	return nil
}

// describeSymbols fills in the facts that follow from the names of the symbols.
func (p *parts) describeSymbols(o *Object) error {
	o.IFuncs, o.Unique = p.ifuncs, p.unique
	if p.strings == nil {
		return nil
	}
	all := p.text[p.strings].String()
	asks := map[string]bool{}
	for _, at := range slices.Concat(p.defined, p.undefined) {
		rest := all[at:]
		n := strings.IndexByte(rest[:min(len(rest), longestAsk)], 0)
		if n >= 0 && asksCPU[rest[:n]] {
			asks[strings.Clone(rest[:n])] = true
		}
	}
	o.AsksCPU = slices.AppendSeq(o.AsksCPU, maps.Keys(asks))
	slices.Sort(o.AsksCPU)
	o.CXX11ABI = p.cxx11ABI(all)
	// Fill in o's imports from torch.
	c := map[string]bool{}
	for _, at := range p.undefined {
		name := all[at:min(len(all), int(at)+longestTorch)]
		if end := strings.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		switch {
		case strings.HasPrefix(name, "torch_"), strings.HasPrefix(name, "aoti_torch_"):
			text, err := p.name(p.symbols, uint64(at))
			if err != nil {
				return err
			}
			c[text] = true
		case o.Torch.CXX == "" && torchCXX.MatchString(name):
			o.Torch.CXX = strings.Clone(name)
		case o.Torch.Python == "" && pythonC.MatchString(name):
			o.Torch.Python = strings.Clone(name)
		}
	}
	o.Torch.C = slices.AppendSeq(o.Torch.C, maps.Keys(c))
	slices.Sort(o.Torch.C)
	return nil
}

// Marks of mangled names (Itanium C++ ABI, 5.1) by which the two kinds of
// std::string differ. GCC 5 put the new one into the inline namespace
// std::__cxx11 and tags functions that return it with abi:cxx11; only the old
// one has the abbreviations Ss and Sb. The marks of the old one are those that
// an identifier within a name does not contain by chance.
var (
	newString = []string{"St7__cxx11", "B5cxx11"}
	oldString = []string{
		"RKSs",     // const std::string &
		"SaISs",    // std::allocator<std::string>, part of every container of strings
		"St4listI", // std::list, outside of std::__cxx11
	}
	oldMember = []string{"_ZNSs", "_ZNKSs", "_ZNSbI", "_ZNKSbI"} // std::string's own functions
)

// cxx11ABI returns which kind of std::string the names of symbols use. An object with linked-in
// code of libstdc++ uses both kinds: it defines the new one, and imports a little of the old one.
func (p *parts) cxx11ABI(all string) *bool {
	isNew, isOld := stringKinds(all, p.undefined)
	if !isNew && !isOld {
		if isNew, isOld = stringKinds(all, p.defined); isNew && isOld {
			return nil
		}
	}
	if !isNew && !isOld {
		return nil
	}
	return &isNew
}

// stringKinds looks for std::string in the names of symbols.
func stringKinds(all string, names []uint32) (isNew, isOld bool) {
	slices.Sort(names)
	end := 0
	for _, at := range names {
		if int(at) < end {
			continue // the tail of a name seen before
		}
		name, _, _ := strings.Cut(all[at:], "\x00")
		end = int(at) + len(name)
		contains := func(mark string) bool { return strings.Contains(name, mark) }
		starts := func(mark string) bool { return strings.HasPrefix(name, mark) }
		if strings.HasPrefix(name, "_Z") {
			isNew = isNew || slices.ContainsFunc(newString, contains)
			isOld = isOld || slices.ContainsFunc(oldString, contains) || slices.ContainsFunc(oldMember, starts)
		}
	}
	return isNew, isOld
}

// Torch lists an object's imports from torch: the names of its undefined dynamic symbols.
type Torch struct {
	// C are the functions of torch's C interface, sorted: torch_… and aoti_torch_…. torch promises
	// to keep them.
	C []string
	// CXX is a name of torch's C++ interface that the object imports, if any. Such an object is for
	// one torch minor version.
	CXX string
	// Python is a name of Python's C interface that the object imports, if any.
	Python string
}

// torchCXX matches the mangled name (Itanium C++ ABI, 5.1) of a function, a variable or the type
// information of a class in one of torch's namespaces. Names that only have such a class among
// their parameters do not match.
var torchCXX = regexp.MustCompile(`^_Z(?:T[ISVTC]|GV)?N[rVKRO]*(?:2at|3c10|4c10d|5torch|6caffe2)[0-9A-Z]`)

// longestTorch bounds the part of a name that is looked at, in bytes.
const longestTorch = 256

var pythonC = regexp.MustCompile(`^_?Py[A-Z_]`)
