package wheel

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Arch is one entry of an arch list: a compute capability to compile SASS for, and also PTX if
// PTX is set.
type Arch struct {
	Major, Minor int
	PTX          bool
}

// Capability returns the compute capability as NVIDIA writes it: "8.0".
func (a Arch) Capability() string { return fmt.Sprintf("%d.%d", a.Major, a.Minor) }

// String returns the TORCH_CUDA_ARCH_LIST syntax: "8.0" or "8.0+PTX".
func (a Arch) String() string {
	if a.PTX {
		return a.Capability() + "+PTX"
	}
	return a.Capability()
}

// SM returns the architecture's short name as nvcc writes it: "sm80".
func (a Arch) SM() string { return fmt.Sprintf("sm%d%d", a.Major, a.Minor) }

var archEntry = regexp.MustCompile(`^([0-9]{1,2})\.([0-9])(\+PTX)?$`)

// ParseArchs reads arch lists: each item is one entry or several joined by ";". The result is
// sorted and free of duplicates. DeepSpeed accepts only X.Y and X.Y+PTX, so anything else is an
// error with a hint and exit code 2.
func ParseArchs(lists []string) ([]Arch, error) {
	found := map[Arch]bool{}
	for _, list := range lists {
		for _, entry := range strings.Split(list, ";") {
			a, err := parseArch(strings.TrimSpace(entry))
			if err != nil {
				return nil, err
			}
			ptx := a.PTX || found[Arch{a.Major, a.Minor, true}]
			delete(found, Arch{a.Major, a.Minor, !ptx})
			found[Arch{a.Major, a.Minor, ptx}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b Arch) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	}), nil
}

func archError(entry, why string) error {
	return fault.New(fault.Usage,
		`specify compute capabilities such as --arch 8.0 or --arch "8.0;8.6;9.0+PTX" (A100 is 8.0, H100 is 9.0)`,
		"arch %q: %s", entry, why)
}

func parseArch(entry string) (Arch, error) {
	m := archEntry.FindStringSubmatch(entry)
	switch {
	case entry == "":
		return Arch{}, archError(entry, "empty entry in the list")
	case m != nil:
	case strings.ContainsAny(entry, ", "):
		return Arch{}, archError(entry, `entries must be separated by ";", not by commas or spaces`)
	default:
		why := "not a compute capability X.Y or X.Y+PTX"
		if meant, ok := ParseArchAlias(entry); ok {
			why = "use " + meant.String()
			if archSuffix.MatchString(entry) {
				why = "DeepSpeed supports no arch-specific suffix (a, f): " + why
			}
		}
		return Arch{}, archError(entry, why)
	}
	return archOf(m), nil
}

// archOf returns the Arch of a match: major version, minor version, and PTX or nothing.
func archOf(m []string) Arch {
	major, _ := strconv.Atoi(m[1]) // the expression allows only digits
	minor, _ := strconv.Atoi(m[2])
	return Arch{major, minor, m[3] != ""}
}

var (
	archSuffix = regexp.MustCompile(`[0-9][af]\b`)
	archForm   = regexp.MustCompile(`^(?:sm_?|compute_?)?([1-9]|1[0-9])\.?([0-9])[af]?(?:-real|-virtual)?(\+ptx)?$`)
)

// ParseArchAlias reads an arch as nvcc, CMake and people write it: sm_90a, compute_80, 120, 86-real, 8.0+ptx.
func ParseArchAlias(text string) (Arch, bool) {
	m := archForm.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if m == nil {
		return Arch{}, false
	}
	return archOf(m), true
}

// ArchList joins archs in the syntax of TORCH_CUDA_ARCH_LIST.
func ArchList(archs []Arch) string {
	entries := make([]string, len(archs))
	for i, a := range archs {
		entries[i] = a.String()
	}
	return strings.Join(entries, ";")
}

// Capabilities lists the compute capabilities of archs: all of them, which have SASS, or with ptx
// only those with PTX.
func Capabilities(archs []Arch, ptx bool) []string {
	out := []string{}
	for _, a := range archs {
		if a.PTX || !ptx {
			out = append(out, a.Capability())
		}
	}
	return out
}
