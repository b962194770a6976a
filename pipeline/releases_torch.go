package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// torchRelease is a release of torch in an index: its wheels for x86_64.
type torchRelease struct {
	version string // without a local part
	pythons []string
	hashes  map[string]string // by Python
	yanked  bool
	reason  string
	file    pyindex.File // one of them, with metadata if any has it
}

// Torch looks up the torch that s names. If the tables lack the release, Torch looks in the
// package index. If the release there is built for another CUDA than requested, or needs a newer
// driver than there is, Torch looks in torch's own index.
func (r *Releases) Torch(ctx context.Context, t *compat.Tables, s wheel.Spec) (Found, error) {
	f := Found{Tables: t, Version: s.Torch}
	if s.Torch == "" || !isRelease(s.Torch) || order(s.Torch, t.Torches[len(t.Torches)-1].Version) < 0 || t.OffersTorch(s) {
		return f, nil
	}
	if !t.OffersTorch(wheel.Spec{Torch: s.Torch}) {
		if err := r.ofPackageIndex(ctx, s, &f); err != nil {
			return f, err
		}
	}
	if f.Tables.OffersTorch(s) || !f.Tables.OffersTorch(wheel.Spec{Torch: s.Torch}) {
		return f, nil
	}
	return f, r.ofTorchIndex(ctx, s, &f)
}

// ofPackageIndex adds a release that the tables lack. If the index lacks the requested one, it
// adds the nearest one in the index.
func (r *Releases) ofPackageIndex(ctx context.Context, s wheel.Spec, f *Found) error {
	files, err := r.listFiles(ctx, "torch", f)
	if err != nil {
		return err
	}
	all := torchesOf(files, "")
	release, named := pickRelease(all, s.Torch)
	if !named && len(all) > 0 {
		f.addNote("torch %s: the package index has no wheels of it for Linux on x86_64%s", s.Torch, describeWithdrawn(all, s.Torch))
		release = nearestTorch(all, s.Torch)
	}
	if release.version == "" || f.Tables.OffersTorch(wheel.Spec{Torch: release.version}) {
		return nil
	}
	row := compat.Torch{Version: release.version, Pythons: release.pythons, SHA256: release.hashes}
	if row.CUDA, row.Toolkit, err = r.readCUDA(ctx, release, s.CUDA); row.CUDA == "" {
		if named {
			f.addNote("torch %s: the package index does not say for which CUDA it is built (%v); give --cuda X.Y", release.version, err)
		}
		return ctx.Err()
	}
	if release.yanked {
		f.noteYanked("torch "+release.version, release.reason)
	}
	like := f.Tables.Like(release.version)
	if f.Tables = f.Tables.AddTorch(row); named {
		f.addNote("torch %s is not in the tables of this dsbuild, which treats it like %s", release.version, like)
	}
	return nil
}

// describeWithdrawn names the withdrawn release of a minor.
func describeWithdrawn(all []torchRelease, asked string) string {
	for _, r := range all {
		if isMinorOf(asked, r.version) {
			return fmt.Sprintf(" except %s, which was withdrawn (yanked): --torch %s uses it anyway", r.version, r.version)
		}
	}
	return ""
}

// pythonTag matches the tag of a CPython.
var pythonTag = regexp.MustCompile(`^cp3([0-9]{1,2})$`)

// torchesOf lists the releases that have wheels for x86_64, newest first. It takes only versions
// with the local part local.
func torchesOf(files []pyindex.File, local string) []torchRelease {
	byVersion := map[string]*torchRelease{}
	for _, f := range files {
		version, own, _ := strings.Cut(f.Version, "+")
		if f.Wheel == nil || own != local || !isRelease(version) {
			continue
		}
		for _, tag := range f.Wheel.Platforms {
			m := pythonTag.FindStringSubmatch(tag.Python)
			if m == nil || tag.ABI != tag.Python || !strings.HasSuffix(tag.Platform, "linux_x86_64") && !manylinux.MatchString(tag.Platform) {
				continue
			}
			release := byVersion[version]
			if release == nil {
				release = &torchRelease{version: version, hashes: map[string]string{}, yanked: true, file: f}
				byVersion[version] = release
			}
			release.addWheel(f, "3."+m[1])
		}
	}
	var out []torchRelease
	for _, release := range byVersion {
		slices.SortFunc(release.pythons, order)
		out = append(out, *release)
	}
	slices.SortFunc(out, func(a, b torchRelease) int { return order(b.version, a.version) })
	return out
}

var manylinux = regexp.MustCompile(`^manylinux[0-9_]*_x86_64$`)

// addWheel adds a wheel for a Python. The first one of a Python counts.
func (t *torchRelease) addWheel(f pyindex.File, python string) {
	if !slices.Contains(t.pythons, python) {
		t.pythons = append(t.pythons, python)
		t.hashes[python] = f.SHA256
	}
	t.yanked, t.reason = t.yanked && f.Yanked, cmp.Or(t.reason, f.Reason)
	if f.Metadata && !t.file.Metadata {
		t.file = f
	}
}

// pickRelease returns the requested release: exactly this one, or for X.Y the newest that was not
// withdrawn.
func pickRelease(all []torchRelease, asked string) (torchRelease, bool) {
	i := slices.IndexFunc(all, func(r torchRelease) bool { return r.version == asked })
	if i < 0 {
		i = slices.IndexFunc(all, func(r torchRelease) bool {
			v, err := semver.PyPI.Parse(r.version)
			return err == nil && !v.IsPrerelease() && !r.yanked && isMinorOf(asked, r.version)
		})
	}
	if i < 0 {
		return torchRelease{}, false
	}
	return all[i], true
}

// nearestTorch returns the release nearest to the requested one, if there is any.
func nearestTorch(all []torchRelease, asked string) torchRelease {
	var versions []string
	for _, r := range all {
		if !r.yanked {
			versions = append(versions, r.version)
		}
	}
	for _, version := range compat.NearestVersions(asked, versions) {
		near, _ := pickRelease(all, version)
		return near
	}
	return torchRelease{}
}

// isMinorOf reports whether asked is the X.Y of a version.
func isMinorOf(asked, version string) bool {
	return strings.Count(asked, ".") == 1 && strings.HasPrefix(version, asked+".")
}

// The requirements of torch that name the CUDA it is built for.
var (
	toolkitPin = regexp.MustCompile(`^cuda-toolkit\b[^=;]*==\s*([0-9]+\.[0-9]+\.[0-9]+)`)
	runtimePin = regexp.MustCompile(`^nvidia-cuda-runtime(?:-cu[0-9]+)?\s*==\s*([0-9]+\.[0-9]+)`)
)

// readCUDA reads from a release's metadata the CUDA that it is built for, and the toolkit that it
// pins. If the metadata name no CUDA, it returns the requested one.
func (r *Releases) readCUDA(ctx context.Context, release torchRelease, asked string) (cuda, toolkit string, err error) {
	text, err := r.client.Metadata(ctx, release.file)
	var m wheel.Metadata
	if err == nil {
		m, err = wheel.ParseMetadata(text)
	}
	for _, require := range m.RequiresDist {
		if pin := toolkitPin.FindStringSubmatch(require); pin != nil {
			return wheel.Minor(pin[1]), pin[1], nil
		}
		if pin := runtimePin.FindStringSubmatch(require); pin != nil {
			cuda = pin[1]
		}
	}
	if cuda == "" && strings.Contains(asked, ".") {
		cuda = asked
	}
	if err == nil && cuda == "" {
		err = errors.New("it requires no CUDA")
	}
	return cuda, "", err
}

// ofTorchIndex adds a torch for another CUDA than that of the package index: for the requested
// one, or for the newest that the driver runs.
func (r *Releases) ofTorchIndex(ctx context.Context, s wheel.Spec, f *Found) error {
	for _, cuda := range f.Tables.CUDAsFor(s) {
		name := "cu" + strings.ReplaceAll(cuda, ".", "")
		files, err := r.client.Files(ctx, r.torch+"/"+name, "torch")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, pyindex.ErrNoProject) {
			f.addNote("torch %s for %s is not on the package index, and torch's own index did not answer (name a mirror of it with %s): %v", s.Torch, askedTorch(s), torchIndexes, err)
			return nil // another of them would not answer either
		}
		if release, ok := pickRelease(torchesOf(files, name), s.Torch); ok {
			f.Tables = f.Tables.AddTorch(compat.Torch{Version: release.version, CUDA: cuda, Pythons: release.pythons, Index: name, SHA256: release.hashes})
			return nil
		}
	}
	f.addNote("torch %s: neither the package index nor torch's own index has it for %s", s.Torch, askedTorch(s))
	return nil
}

// askedTorch describes the requested CUDA and driver in words.
func askedTorch(s wheel.Spec) string {
	var words []string
	if s.CUDA != "" {
		words = append(words, "CUDA "+s.CUDA)
	}
	if s.Driver != "" {
		words = append(words, "driver "+s.Driver)
	}
	return strings.Join(words, " and ")
}
