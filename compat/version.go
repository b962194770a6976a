package compat

import (
	"cmp"
	"regexp"
	"slices"
)

// xy matches a version of two numbers.
var xy = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

// driverForm matches a version of NVIDIA's driver.
var driverForm = regexp.MustCompile(`^[0-9]{3}(\.[0-9]+){0,2}$`)

// compareVersions compares the release numbers of two versions. Suffixes (rc1, +cu128) do not
// count.
func compareVersions(a, b string) int {
	x, y := releaseNumbers(a), releaseNumbers(b)
	return slices.Compare(x[:], y[:])
}

// releaseNumbers returns a version's first three numbers. Missing numbers are 0.
func releaseNumbers(version string) [3]int {
	var numbers [3]int
	place := 0
	for _, r := range version {
		switch {
		case r >= '0' && r <= '9':
			numbers[place] = numbers[place]*10 + int(r-'0')
		case r == '.' && place < len(numbers)-1:
			place++
		default:
			return numbers
		}
	}
	return numbers
}

// NearestVersions sorts versions by their distance from one. Of two at the same distance, the
// newer one comes first.
func NearestVersions(from string, versions []string) []string {
	place := func(v string) int {
		n := releaseNumbers(v)
		return (n[0]*1000+n[1])*1000 + n[2]
	}
	far := func(v string) int { return max(place(from)-place(v), place(v)-place(from)) }
	out := slices.Clone(versions)
	slices.SortStableFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), compareVersions(b, a))
	})
	return slices.Compact(out)
}
