package pipeline

// Release is the source distribution of a release.
func Release(version, sha256 string) Source {
	return Source{Kind: SourceRelease, Ref: version, Version: version, SHA256: sha256}
}

// local is what a wheel's version says of sources that no release names: the
// commit, and where that is not all, what there was in truth.
func (s Source) local() string {
	var out string
	if s.Commit != "" {
		out = "g" + s.Commit[:7] + "."
	}
	if s.Dirty || s.Kind != SourceRelease && s.Commit == "" {
		out += "s" + s.SHA256[:7] + "."
	}
	return out
}
