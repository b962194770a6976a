package wheel

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
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

// policies are the policies for each machine, oldest first.
var policies = sync.OnceValue(func() map[string][]policy {
	var table struct{ Policies map[string][]policy }
	if err := json.Unmarshal(manylinux, &table); err != nil {
		panic(fmt.Sprintf("data/manylinux.json: %v", err)) // it is part of the program, and tested
	}
	return table.Policies
})

// Platform returns the platform tag for a machine's code with these floors: the oldest manylinux_2_X
// (PEP 600) whose glibc, libstdc++ and libgcc have all of them. With this tag, pip on an older
// machine rejects the wheel; without it, the wheel would fail there when it is loaded.
func Platform(f Floors, machine string) (string, error) {
	all := policies()[machine]
	if len(all) == 0 {
		return "", fmt.Errorf("no known manylinux policy for %s", cmp.Or(machine, "nothing"))
	}
	for _, p := range all {
		if p.offers(f) {
			return fmt.Sprintf("manylinux_2_%d_%s", p.Minor, machine), nil
		}
	}
	newer := all[len(all)-1].Floors
	newer.Glibc = f.Glibc
	if minor, ok := strings.CutPrefix(f.Glibc, "2."); ok && newer.offers(f) {
		return "manylinux_2_" + minor + "_" + machine, nil // PEP 600 needs no policy
	}
	return "", fmt.Errorf("no manylinux policy offers glibc %s with %s", cmp.Or(f.Glibc, "nothing"), f.libraries())
}

// libraries lists the floors except glibc's, in words.
func (f Floors) libraries() string {
	return fmt.Sprintf("GLIBCXX %s, CXXABI %s and libgcc %s",
		cmp.Or(f.GLIBCXX, "nothing"), cmp.Or(f.CXXABI, "nothing"), cmp.Or(f.Libgcc, "nothing"))
}

// offers reports whether a machine with the versions f can run code that needs other.
func (f Floors) offers(other Floors) bool {
	return CompareVersions(other.Glibc, f.Glibc) <= 0 && CompareVersions(other.GLIBCXX, f.GLIBCXX) <= 0 &&
		CompareVersions(other.CXXABI, f.CXXABI) <= 0 && CompareVersions(other.Libgcc, f.Libgcc) <= 0
}

// PlatformFloors returns the newest symbol versions that the newest manylinux
// platform of a machine up to a glibc allows.
func PlatformFloors(glibc, machine string) Floors {
	var f Floors
	for _, p := range policies()[machine] {
		if CompareVersions(fmt.Sprintf("2.%d", p.Minor), glibc) <= 0 {
			f = p.Floors
		}
	}
	return f
}

// Versions lists the floors as symbol versions: "GLIBC_2.28 GLIBCXX_3.4.24 …".
func (f Floors) Versions() string {
	return "GLIBC_" + f.Glibc + " GLIBCXX_" + f.GLIBCXX + " CXXABI_" + f.CXXABI + " GCC_" + f.Libgcc
}

// MinGlibcForInstall returns the oldest glibc on which pip installs a wheel of this file name, whose code
// needs this glibc. The platform tag may require a newer one, because it also covers libstdc++.
func MinGlibcForInstall(name, needed string) string {
	minor := func(glibc string) int {
		_, text, _ := strings.Cut(glibc, ".")
		n, _ := strconv.Atoi(text) // none: older than all
		return n
	}
	promised := ""
	platforms := strings.Split(strings.TrimSuffix(name[strings.LastIndexByte(name, '-')+1:], ".whl"), ".")
	for i, tag := range platforms {
		if glibc, _ := SplitPlatform(tag); i == 0 || minor(glibc) < minor(promised) {
			promised = glibc
		}
	}
	if minor(promised) > minor(needed) {
		return promised
	}
	return needed
}

// SplitPlatform splits a Linux platform tag, such as manylinux_2_35_x86_64, into its glibc, if any,
// and the machine. Both are empty for other tags.
func SplitPlatform(tag string) (glibc, machine string) {
	// Tags from before PEP 600 imply the glibc.
	for _, old := range [][2]string{
		{"manylinux1_", "manylinux_2_5_"},
		{"manylinux2010_", "manylinux_2_12_"},
		{"manylinux2014_", "manylinux_2_17_"},
	} {
		if rest, ok := strings.CutPrefix(tag, old[0]); ok {
			tag = old[1] + rest
		}
	}
	if machine, ok := strings.CutPrefix(tag, "linux_"); ok {
		return "", machine
	}
	rest, ok := strings.CutPrefix(tag, "manylinux_")
	fields := strings.SplitN(rest, "_", 3)
	if !ok || len(fields) < 3 {
		return "", ""
	}
	for _, number := range fields[:2] {
		if _, err := strconv.Atoi(number); err != nil {
			return "", ""
		}
	}
	return fields[0] + "." + fields[1], fields[2]
}

// promise matches a platform tag that states the libraries a Linux machine must have.
var promise = regexp.MustCompile(`-(?:manylinux(?:1|2010|2014|_\d+_\d+)|musllinux_\d+_\d+)_(\w+)$`)
