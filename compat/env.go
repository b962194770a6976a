package compat

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/wheel"
)

// WithTorch returns tables for an environment that has a torch already. If the tables lack
// that torch (built from source, by a vendor, for another CUDA), it becomes the only one,
// with the properties of the nearest release otherwise.
func (t *Tables) WithTorch(version, cuda, python string) *Tables {
	if t.HasTorch(version, cuda, python) {
		return t
	}
	other := *t
	r := completeTorch(t.Torches, Torch{Version: version, CUDA: cuda, Pythons: []string{python}})
	r.ArmArchs = []string{} // it is there, so it has CUDA for its machine, whichever release it is
	other.Torches = []Torch{r}
	return &other
}

// AddTorch returns tables with an additional release of torch. Properties that r lacks are taken
// from the nearest release.
func (t *Tables) AddTorch(r Torch) *Tables {
	other := *t
	at := slices.IndexFunc(t.Torches, func(have Torch) bool { return compareVersions(have.Version, r.Version) < 0 })
	if at < 0 {
		at = len(t.Torches)
	}
	other.Torches = slices.Insert(slices.Clone(t.Torches), at, completeTorch(t.Torches, r))
	return &other
}

// AddDeepSpeeds returns tables that have more releases of DeepSpeed.
func (t *Tables) AddDeepSpeeds(more []DeepSpeed) *Tables {
	other := *t
	other.DeepSpeeds = slices.Concat(t.DeepSpeeds, more)
	slices.SortStableFunc(other.DeepSpeeds, func(a, b DeepSpeed) int {
		return cmp.Or(compareVersions(b.Version, a.Version), cmp.Compare(b.Version, a.Version))
	})
	return &other
}

// WithSources returns tables for the caller's own sources of DeepSpeed.
func (t *Tables) WithSources(d DeepSpeed) *Tables {
	other := *t
	other.Sources = &d
	return &other
}

// WithChanges returns tables that know which ops of a release have changed.
func (t *Tables) WithChanges(version string, changed evidence.Changes) *Tables {
	other := *t
	other.DeepSpeeds = slices.Clone(t.DeepSpeeds)
	for i := range other.DeepSpeeds {
		if other.DeepSpeeds[i].Version == version {
			other.DeepSpeeds[i].Changed = changed
		}
	}
	return &other
}

// OffersTorch reports whether there is a torch as s names it, for its CUDA and driver.
func (t *Tables) OffersTorch(s wheel.Request) bool {
	return slices.ContainsFunc(t.Torches, func(r Torch) bool {
		return isTorch(s.Torch, r) && isCUDA(s.CUDA, r.CUDA) && t.DriverSupports(s.Driver, r.CUDA)
	})
}

// TorchCUDA returns the CUDA, X.Y, that a torch for a machine is built for, by its local version (2.15.0+cu132) or
// else by the package index. It returns "" for a torch without CUDA, or one that the tables lack.
func (t *Tables) TorchCUDA(version, machine string) string {
	version, local, _ := strings.Cut(version, "+")
	if digits, ok := strings.CutPrefix(local, "cu"); ok && len(digits) > 1 {
		return digits[:len(digits)-1] + "." + digits[len(digits)-1:]
	}
	i := slices.IndexFunc(t.Torches, func(r Torch) bool { return r.Version == version && r.Index == "" && r.hasCUDAFor(machine) })
	if local != "" || i < 0 {
		return ""
	}
	return t.Torches[i].CUDA
}

// CUDAsFor lists the CUDAs that s requests, exactly or by major version, and that its driver runs,
// newest first.
func (t *Tables) CUDAsFor(s wheel.Request) []string {
	var out []string
	for _, c := range t.CUDAs {
		if isCUDA(s.CUDA, c.Version) && t.DriverSupports(s.Driver, c.Version) {
			out = append(out, c.Version)
		}
	}
	return out
}

// completeTorch fills in the unknown properties of a torch from the nearest release.
func completeTorch(all []Torch, r Torch) Torch {
	like := NearestVersions(r.Version, torchVersions(all))[0]
	row := all[slices.IndexFunc(all, func(have Torch) bool { return have.Version == like })]
	row.Archs = nil                   // the archs of its binaries are unknown, so all are allowed
	row.ArmArchs = row.ArmArchs[:0:0] // also unknown; nil stays nil
	if r.Index == "cu126" {           // has the new std::string from its first torch on, 2.6 (release notes of 2.6)
		row.OldABI = false
	}
	if row.CUDA != r.CUDA {
		row.Toolkit = ""
		for _, have := range all {
			if have.CUDA == r.CUDA && row.Toolkit == "" {
				row.Toolkit = have.Toolkit
			}
		}
	}
	if r.Toolkit != "" {
		row.Toolkit = r.Toolkit
	}
	row.Version, row.CUDA, row.Pythons, row.Index, row.SHA256 = r.Version, r.CUDA, r.Pythons, r.Index, r.SHA256
	return row
}

// HasTorch reports whether the package index has a torch for a CUDA and a Python.
func (t *Tables) HasTorch(version, cuda, python string) bool {
	return slices.ContainsFunc(t.Torches, func(r Torch) bool {
		return r.Version == version && r.CUDA == cuda && slices.Contains(r.Pythons, python)
	})
}
