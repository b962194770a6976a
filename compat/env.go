package compat

import "slices"

// WithTorch returns tables for an environment that has a torch already. One
// that is not in the tables (built from sources, by a vendor, for another CUDA)
// is taken to be like the release nearest to it, but for what is known of it;
// then it is the only one there is.
func (t *Tables) WithTorch(version, cuda, python string) *Tables {
	if t.HasTorch(version, cuda, python) {
		return t
	}
	near := nearestVersions(version, t.torchVersions())[0]
	row := t.Torches[slices.IndexFunc(t.Torches, func(r Torch) bool { return r.Version == near })]
	row.Archs = nil // what its binaries hold is not known: nothing is refused for it
	if row.CUDA != cuda {
		row.Toolkit = ""
		for _, r := range t.Torches {
			if r.CUDA == cuda && row.Toolkit == "" {
				row.Toolkit = r.Toolkit
			}
		}
	}
	row.Version, row.CUDA, row.Pythons = version, cuda, []string{python}
	other := *t
	other.Torches = []Torch{row}
	return &other
}

// HasTorch reports whether the package index has a torch for a CUDA and a Python.
func (t *Tables) HasTorch(version, cuda, python string) bool {
	return slices.ContainsFunc(t.Torches, func(r Torch) bool {
		return r.Version == version && r.CUDA == cuda && slices.Contains(r.Pythons, python)
	})
}
