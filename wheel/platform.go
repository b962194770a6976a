package wheel

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The manylinux policies; the file names its source.
//
//go:embed data/manylinux.json
var manylinux []byte

// policy is the newest symbol versions a manylinux_2_MINOR wheel may need.
type policy struct {
	Minor int `json:"minor"`
	Floors
}

// policies are those of the table, oldest first.
func policies() []policy {
	var table struct{ Policies []policy }
	if err := json.Unmarshal(manylinux, &table); err != nil {
		panic(fmt.Sprintf("data/manylinux.json: %v", err)) // it is part of the program, and tested
	}
	return table.Policies
}

// afterPolicies is the first glibc that is newer than all policies.
func afterPolicies() string {
	all := policies()
	return fmt.Sprintf("2.%d", all[len(all)-1].Minor+1)
}

// Platform returns the platform tag that tells the truth about x86-64 code
// with these floors: the oldest manylinux_2_X (PEP 600) whose glibc, libstdc++
// and libgcc offer them all. pip on an older machine then refuses the wheel
// instead of failing when it is loaded.
func Platform(f Floors) (string, error) {
	all := policies()
	for _, p := range all {
		if p.offers(f) {
			return fmt.Sprintf("manylinux_2_%d_x86_64", p.Minor), nil
		}
	}
	newer := all[len(all)-1].Floors
	newer.Glibc = f.Glibc
	if minor, ok := strings.CutPrefix(f.Glibc, "2."); ok && (policy{Floors: newer}).offers(f) {
		return "manylinux_2_" + minor + "_x86_64", nil // PEP 600 needs no policy
	}
	return "", fmt.Errorf("no manylinux policy offers glibc %s with GLIBCXX %s, CXXABI %s and libgcc %s",
		orNothing(f.Glibc), orNothing(f.GLIBCXX), orNothing(f.CXXABI), orNothing(f.Libgcc))
}

func (p policy) offers(f Floors) bool {
	return compareVersions(f.Glibc, p.Glibc) <= 0 && compareVersions(f.GLIBCXX, p.GLIBCXX) <= 0 &&
		compareVersions(f.CXXABI, p.CXXABI) <= 0 && compareVersions(f.Libgcc, p.Libgcc) <= 0
}

// PlatformFloors returns the newest symbol versions that the newest manylinux
// platform up to a glibc allows.
func PlatformFloors(glibc string) Floors {
	var f Floors
	for _, p := range policies() {
		if compareVersions(fmt.Sprintf("2.%d", p.Minor), glibc) <= 0 {
			f = p.Floors
		}
	}
	return f
}

// Versions lists the floors as symbol versions: "GLIBC_2.28 GLIBCXX_3.4.24 …".
func (f Floors) Versions() string {
	return "GLIBC_" + f.Glibc + " GLIBCXX_" + f.GLIBCXX + " CXXABI_" + f.CXXABI + " GCC_" + f.Libgcc
}

// Offered returns the glibc of the newest manylinux platform (PEP 600) of which a
// machine with this glibc and this libstdc++ has all: wheels tagged for it or an
// older one run there. It is "" where no platform is old enough.
func Offered(glibc, glibcxx string) string {
	all := policies()
	if newest := all[len(all)-1]; compareVersions(glibc, newest.Glibc) >= 0 && compareVersions(glibcxx, newest.GLIBCXX) >= 0 {
		return glibc
	}
	for _, p := range slices.Backward(all) {
		// An installer goes by the number in the tag, whatever the policy allows.
		if tag := fmt.Sprintf("2.%d", p.Minor); compareVersions(tag, glibc) <= 0 && compareVersions(p.GLIBCXX, glibcxx) <= 0 {
			return tag
		}
	}
	return ""
}

// legacyPlatforms are the names manylinux tags had before PEP 600 put the
// glibc into them.
func legacyPlatforms() map[string]string {
	return map[string]string{"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
}

// platformGlibc returns the glibc a platform tag promises to run on: "2.35" of
// manylinux_2_35_x86_64, and false where the tag promises none.
func platformGlibc(tag string) (string, bool) {
	for old, name := range legacyPlatforms() {
		if rest, ok := strings.CutPrefix(tag, old+"_"); ok {
			tag = name + "_" + rest
		}
	}
	var major, minor int
	if n, _ := fmt.Sscanf(tag, "manylinux_%d_%d_", &major, &minor); n < 2 {
		return "", false
	}
	return fmt.Sprintf("%d.%d", major, minor), true
}

// promise is a platform that promises what libraries a Linux machine has.
var promise = regexp.MustCompile(`-(?:manylinux(?:1|2010|2014|_\d+_\d+)|musllinux_\d+_\d+)_(\w+)$`)

// asBuilt is f as the file was called before it was renamed to promise more, as
// PyTorch's wheels are, whose WHEEL still says linux_x86_64.
func (f FileName) asBuilt(w WheelFile) FileName {
	if slices.ContainsFunc(w.Tags, func(t string) bool { return !strings.Contains(t, "-linux_") }) {
		return f
	}
	tags := make([]string, len(f.Tags))
	for i, t := range f.Tags {
		tags[i] = promise.ReplaceAllString(t, "-linux_$1")
	}
	f.Tags = tags
	return f
}
