package compat

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Installs reports whether an installer on the node accepts a wheel with this tag, as PEP 425 and
// PEP 600 say. An unknown glibc counts as new enough.
func Installs(tag string, f node.Facts) bool {
	parts := strings.Split(tag, "-")
	if len(parts) != 3 || !installsPython(parts[0], parts[1], f) {
		return false
	}
	glibc, machine := wheel.SplitPlatform(parts[2])
	switch {
	case parts[2] == "any":
		return parts[1] == "none" // a wheel with an ABI has a platform
	case machine == "" || machine != machineOf(f.Platform):
		return false
	}
	return glibc == "" || f.Glibc == "" || !olderMinor(f.Glibc, glibc)
}

// installsPython checks the part of a tag about Python: "cp311-cp311", "cp38-abi3", "py3-none",
// "py310-none".
func installsPython(python, abi string, f node.Facts) bool {
	kind, digits := python[:min(2, len(python))], python[min(2, len(python)):]
	major, number := digits[:min(1, len(digits))], digits[min(1, len(digits)):]
	if major != "3" || kind != "cp" && kind != "py" {
		return false
	}
	have := releaseNumbers(f.Python)[1]
	want, err := strconv.Atoi(cmp.Or(number, "0"))
	if err != nil || f.Python == "" {
		return false
	}
	switch abi {
	case "none":
		return want <= have && (kind == "py" || want == have)
	case "abi3":
		return kind == "cp" && firstStable <= want && want <= have && !wheel.FreeThreaded(f.Tag)
	}
	return kind == "cp" && want == have && abi == f.Tag
}

// firstStable is the minor version of the first Python with a stable ABI.
const firstStable = 2

// machineOf returns the machine of a platform: "x86_64" of "linux_x86_64". A platform
// other than Linux is returned whole.
func machineOf(platform string) string {
	machine, ok := strings.CutPrefix(platform, "linux_")
	if !ok {
		return platform
	}
	return machine
}
