package environment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// choose returns the wheel that pip would select on a node of type k: the wheel with the most
// specific tag (PEP 425), then with the highest build number.
func choose(all []File, python string, k Platform) (File, error) {
	facts := k.facts(python)
	var best File
	var rank []int
	for _, f := range all {
		name, err := wheel.ParseFileName(f.File)
		if err != nil {
			continue // installers ignore it, too
		}
		f.Version = name.Version
		build := -1                                 // sorts before all build numbers
		_, _ = fmt.Sscanf(name.Build, "%d", &build) // it begins with a number
		for _, tag := range name.Tags {
			if !compat.Installs(tag, facts) {
				continue
			}
			r := append(rankOf(tag, python), build)
			if c := slices.Compare(r, rank); c > 0 || c == 0 && f.File > best.File {
				best, rank = f, r
			}
		}
	}
	if rank == nil {
		there := ": only source distributions, or none"
		if len(all) > 0 {
			names := make([]string, min(len(all), 4))
			for i := range names {
				names[i] = all[i].File
			}
			there = "; available: " + strings.Join(names, ", ")
		}
		return File{}, resolveErrorf("no wheel for Python %s, %s%s", python, k, there)
	}
	return best, nil
}

// facts returns what all nodes of a type have in common.
func (p Platform) facts(python string) node.Facts {
	return node.Facts{
		Python: python + ".0", Tag: "cp" + strings.ReplaceAll(python, ".", ""),
		Platform: "linux_" + p.Machine, Glibc: p.Glibc,
	}
}

// rankOf ranks a compatible tag in pip's order: by Python and ABI, then by Python alone, then by
// platform.
func rankOf(tag, python string) []int {
	parts := strings.Split(tag, "-") // three: compat.Installs has accepted it
	_, y, _ := strings.Cut(wheel.Minor(python), ".")
	own, _ := strconv.Atoi(y)
	minor, err := strconv.Atoi(parts[0][min(3, len(parts[0])):])
	minor *= 2
	if err != nil { // py3, which ranks below the node's own minor version
		minor = 2*own - 1
	}
	cpython, pure := strings.HasPrefix(parts[0], "cp"), parts[2] == "any"
	group := 0
	switch {
	case parts[1] != "none" && parts[1] != "abi3":
		group = 6
	case parts[1] == "abi3" && minor == 2*own:
		group = 5
	case cpython && !pure:
		group = 4
		if parts[1] == "abi3" {
			group = 3
		}
	case !pure:
		group = 2
	case cpython:
		group = 1
	}
	return []int{group, minor, platformRank(parts[2])}
}

// platformRank prefers a newer glibc, then any platform tag, then pure Python. Of two tags for the same glibc
// it prefers manylinux_2_X, as pip does.
func platformRank(platform string) int {
	glibc, machine := wheel.SplitPlatform(platform)
	switch {
	case machine == "": // any
		return 0
	case glibc == "":
		return 1
	}
	minor, _ := strconv.Atoi(strings.TrimPrefix(glibc, "2."))
	rank := 2 * minor
	if strings.HasPrefix(platform, "manylinux_") {
		rank++
	}
	return rank
}
