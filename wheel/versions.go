package wheel

import (
	"strings"

	"github.com/dsbuild/dsbuild/wheel/elf"
)

// CompareVersions compares versions of numbers joined by dots: "2.9" is below "2.34", and
// "2.3" below "2.3.4". A suffix (9.0a) comes after its number.
func CompareVersions(a, b string) int { return elf.CompareVersions(a, b) }

// Major cuts a version to its first number.
func Major(version string) string {
	major, _, _ := strings.Cut(version, ".")
	return major
}

// Minor cuts a version to its first two numbers.
func Minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return version
	}
	return parts[0] + "." + parts[1]
}
