package index

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/wheel"
)

// pathOf returns the subdirectory with the page of a kind. Complete builds have the directory of the index itself. None
// has the name of a package that DeepSpeed requires, because uv would search for the package only there.
func pathOf(kind wheel.Kind) string {
	switch kind {
	case wheel.KindComplete:
		return "./"
	case wheel.KindTorch:
		return "abi-torch/"
	}
	return string(kind) + "/"
}

// paged sorts wheels into pages, below a URL if that is known.
func paged(wheels []Entry, address string) []Page {
	byKind := map[wheel.Kind][]Entry{}
	for _, w := range wheels {
		kind := wheel.KindOf(w.note.Manifest)
		byKind[kind] = append(byKind[kind], w)
	}
	pages := make([]Page, 0, len(byKind))
	for kind, wheels := range byKind {
		page := Page{Kind: kind, Path: pathOf(kind), Wheels: wheels}
		if address != "" {
			page.URL = strings.TrimRight(address, "/") + "/" + strings.TrimPrefix(page.Path, "./")
		}
		// The highest version first, then the newest recipe, then the latest build.
		slices.SortFunc(wheels, func(a, b Entry) int {
			return cmp.Or(semver.PyPI.Compare(b.public(), a.public()), cmp.Compare(b.note.Manifest.Recipe, a.note.Manifest.Recipe),
				b.BuiltAt.Compare(a.BuiltAt), semver.PyPI.Compare(b.Python, a.Python), cmp.Compare(a.Name, b.Name))
		})
		yank(wheels)
		pages = append(pages, page)
	}
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.Path, b.Path) })
	return pages
}

// yank yanks the builds that installers would prefer to a newer build of the same request. Versions of commits sort by
// the digits of a hash, and installers compare platforms before build tags.
func yank(newestFirst []Entry) {
	newest := map[string]Entry{}
	for i, w := range newestFirst {
		m := w.note.Manifest
		request := fmt.Sprint(w.public(), m.Source.Kind == "release", m.Ops, m.Archs, m.PTX, m.CPUs(), m.Torch, m.CUDAs(), m.Python)
		by, older := newest[request]
		switch {
		case !older:
			newest[request] = w
		case comparePreference(w, by) > 0:
			newestFirst[i].Yanked = "superseded by " + by.Name
		}
	}
}

// comparePreference compares wheels as pip and uv do: by version, then by platform, then by build tag.
func comparePreference(a, b Entry) int {
	return cmp.Or(semver.PyPI.Compare(a.Version, b.Version), wheel.CompareVersions(a.platformGlibc(), b.platformGlibc()),
		cmp.Compare(a.note.Manifest.Recipe, b.note.Manifest.Recipe), cmp.Compare(a.note.Manifest.BuildTag(), b.note.Manifest.BuildTag()))
}

// platformGlibc is the glibc of the platform tag.
func (w Entry) platformGlibc() string {
	parts := strings.Split(strings.TrimSuffix(w.Name, ".whl"), "-")
	glibc, _ := wheel.SplitPlatform(parts[len(parts)-1])
	return glibc
}

// public is the version without its local part.
func (w Entry) public() string {
	version, _, _ := strings.Cut(w.Version, "+")
	return version
}
