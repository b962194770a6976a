package dockerfiles

import "strings"

// UVVersion is the uv that makes the environments of the images, as their
// Dockerfile pins it.
func UVVersion() string {
	text, err := files.ReadFile("runtime.Dockerfile")
	if err != nil {
		return "" // it is embedded
	}
	_, rest, _ := strings.Cut(string(text), "ARG UV_VERSION=")
	version, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(version)
}
