package dockerfiles

// UVVersion is the uv that makes the environments of the images, as uv.txt pins it.
func UVVersion() string {
	for _, p := range readPinned("uv.txt") {
		return p.Version
	}
	return "" // it is embedded
}
