package index

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/wheel"
)

// localVersion matches the local part of a version that dsbuild gives (wheel.LocalVersion). The
// part before torch identifies sources that are not a release.
var localVersion = regexp.MustCompile(`^(?:([a-z0-9.]+)\.)?(torch\d+\.\d+)\.(cu\d+)` +
	`(\.all|(?:\.sm\d+)*)((?:\.ptx\d+)*)\.(v\d|armv8a)$`)

// toolchainOf returns the index to which a wheel belongs. The wheel's local version without the
// sources gives the index its name. Releases have an index of their own, because the version of a
// checkout sorts after that of the last release.
func toolchainOf(m wheel.Manifest) (Toolchain, error) {
	_, local, _ := strings.Cut(m.Version, "+")
	parts := localVersion.FindStringSubmatch(local)
	if parts == nil {
		return Toolchain{}, usagef("build the wheel with dsbuild wheel, whose versions look like 0.19.8+torch2.15.cu132.sm80.v3",
			"%s: the version has no targets", m.Name)
	}
	tc := Toolchain{
		Torch: strings.TrimPrefix(parts[2], "torch"), CUDA: m.CUDA, CPU: m.CPU,
		Archs: append([]string{}, m.Archs...), PTX: append([]string{}, m.PTX...), Dev: parts[1] != "",
	}
	name := []string{parts[2], parts[3]}
	for _, archs := range parts[4:6] {
		name = append(name, strings.Split(archs, ".")[1:]...)
	}
	name = append(name, parts[6])
	if tc.Dev {
		name = append(name, "dev")
	}
	tc.Name = strings.Join(name, "-")
	return tc, nil
}

// sorted sorts wheels into their toolchains, below an address if that is known.
func sorted(wheels []sortedWheel, address string) []Toolchain {
	indexes := map[string]*Toolchain{}
	for _, w := range wheels {
		if indexes[w.toolchain.Name] == nil {
			indexes[w.toolchain.Name] = &w.toolchain
		}
		tc := indexes[w.toolchain.Name]
		tc.Wheels = append(tc.Wheels, w.Entry)
	}
	all := make([]Toolchain, 0, len(indexes))
	for _, tc := range indexes {
		if address != "" {
			tc.URL = strings.TrimRight(address, "/") + "/" + tc.Name + "/"
		}
		// The highest version first. Of several with the same version, the latest build first.
		slices.SortFunc(tc.Wheels, func(a, b Entry) int {
			return cmp.Or(semver.PyPI.Compare(b.public(), a.public()), b.BuiltAt.Compare(a.BuiltAt),
				semver.PyPI.Compare(b.Python, a.Python), cmp.Compare(a.Name, b.Name))
		})
		// Yank older builds: of the wheels with the same public version and tags keep only the first. The others are
		// builds of other commits: their versions sort by the digits of a hash, so an installer could take any of them.
		first := map[string]Entry{}
		for i, w := range tc.Wheels {
			parts := strings.Split(w.Name, "-")
			key := w.public() + " " + strings.Join(parts[max(0, len(parts)-3):], "-")
			if by, ok := first[key]; ok {
				tc.Wheels[i].Yanked = "superseded by " + by.Version
				continue
			}
			first[key] = w
		}
		all = append(all, *tc)
	}
	// The newest torch first, then the newest CUDA, then releases.
	slices.SortFunc(all, func(a, b Toolchain) int {
		return cmp.Or(semver.PyPI.Compare(b.Torch, a.Torch), semver.PyPI.Compare(b.CUDA, a.CUDA), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// public is the version without its local part.
func (w Entry) public() string {
	version, _, _ := strings.Cut(w.Version, "+")
	return version
}
