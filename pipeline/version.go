package pipeline

// Release returns the source distribution of a release.
func Release(version, sha256 string) Source {
	return Source{Kind: SourceRelease, Ref: version, Version: version, SHA256: sha256}
}

// localVersion returns the part of a wheel's version that identifies sources other than a
// release: the commit, and if the commit does not determine them, a hash of the copy.
func (s Source) localVersion() string {
	var out string
	if s.Commit != "" {
		out = "g" + s.Commit[:7] + "."
	}
	if s.Dirty || s.Kind != SourceRelease && s.Commit == "" {
		out += "s" + s.SHA256[:7] + "."
	}
	return out
}
