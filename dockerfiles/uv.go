package dockerfiles

import "strings"

// UVVersion returns the version of uv, from uv.txt, that makes the environments of images and nodes.
func UVVersion() string {
	for _, p := range readPinned(uvX86) {
		return p.Version
	}
	return "" // it is embedded
}

// The files that pin uv for images and for the host builder, each to one wheel. In a
// build context both are called uvX86.
const (
	uvX86 = "uv.txt"
	uvArm = "uv-aarch64.txt"
)

// uvPins returns the file for a machine.
func uvPins(machine string) string {
	if machine == "aarch64" {
		return uvArm
	}
	return uvX86
}

// uvFiles lists the wheels of uv with their sha256, as sha256sum does.
const uvFiles = "uv-files.txt"

// UVSums are the sha256 of the wheels of that uv, for all systems.
func UVSums() []string {
	text, err := files.ReadFile(uvFiles)
	if err != nil {
		panic(err) // it is part of the program
	}
	var sums []string
	for line := range strings.Lines(string(text)) {
		if sum, _, found := strings.Cut(line, "  "); found && !strings.HasPrefix(line, "#") {
			sums = append(sums, sum)
		}
	}
	return sums
}
