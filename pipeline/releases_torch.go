package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// torchRelease is a release of torch as an index lists it: its wheels for x86_64.
type torchRelease struct {
	version string // without a local part
	pythons []string
	hashes  map[string]string // by Python
	yanked  bool
	reason  string
	file    pyindex.File // one of them, with metadata if any has it
}

// Torch looks up the torch that s names. A release that is not in the tables is
// looked for in the package index; one whose CUDA there is not the one asked for, or
// takes a newer driver than there is, in torch's own.
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

// ofPackageIndex adds a release that the tables do not know; where the index has not
// the one asked for, the nearest that it has.
func (r *Releases) ofPackageIndex(ctx context.Context, s wheel.Spec, f *Found) error {
	files, err := r.files(ctx, "torch", f)
	if err != nil {
		return err
	}
	all := torchesOf(files, "")
	release, named := pick(all, s.Torch)
	if !named && len(all) > 0 {
		f.note("torch %s: the package index has no wheels of it for Linux on x86_64%s", s.Torch, withdrawn(all, s.Torch))
		release = nearestTorch(all, s.Torch)
	}
	if release.version == "" || f.Tables.OffersTorch(wheel.Spec{Torch: release.version}) {
		return nil
	}
	row := compat.Torch{Version: release.version, Pythons: release.pythons, SHA256: release.hashes}
	if row.CUDA, row.Toolkit, err = r.cuda(ctx, release, s.CUDA); row.CUDA == "" {
		if named {
			f.note("torch %s: the package index does not say for which CUDA it is built (%v); --cuda X.Y says it", release.version, err)
		}
		return ctx.Err()
	}
	if release.yanked {
		f.yanked("torch "+release.version, release.reason)
	}
	like := f.Tables.Like(release.version)
	if f.Tables = f.Tables.AddTorch(row); named {
		f.note("torch %s is not in the tables of this dsbuild: it is taken to be like %s", release.version, like)
	}
	return nil
}

// withdrawn names what was withdrawn of a minor.
func withdrawn(all []torchRelease, asked string) string {
	for _, r := range all {
		if isMinorOf(asked, r.version) {
			return fmt.Sprintf(" but %s, which was withdrawn (yanked): --torch %s takes it all the same", r.version, r.version)
		}
	}
	return ""
}

// pythonTag is that of a CPython.
var pythonTag = regexp.MustCompile(`^cp3([0-9]{1,2})$`)

// torchesOf lists the releases that have wheels for x86_64, newest first. local is
// the local part of the versions that are meant.
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
			release.add(f, "3."+m[1])
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

// add adds a wheel for a Python; of several the first.
func (t *torchRelease) add(f pyindex.File, python string) {
	if !slices.Contains(t.pythons, python) {
		t.pythons = append(t.pythons, python)
		t.hashes[python] = f.SHA256
	}
	t.yanked, t.reason = t.yanked && f.Yanked, cmp.Or(t.reason, f.Reason)
	if f.Metadata && !t.file.Metadata {
		t.file = f
	}
}

// pick is the release that is meant: the very one, or of X.Y the newest that was not
// withdrawn.
func pick(all []torchRelease, asked string) (torchRelease, bool) {
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

// nearestTorch is the release that is nearest to the one asked for, if there is any.
func nearestTorch(all []torchRelease, asked string) torchRelease {
	var versions []string
	for _, r := range all {
		if !r.yanked {
			versions = append(versions, r.version)
		}
	}
	for _, version := range compat.NearestVersions(asked, versions) {
		near, _ := pick(all, version)
		return near
	}
	return torchRelease{}
}

// isMinorOf reports whether asked is the X.Y of a version.
func isMinorOf(asked, version string) bool {
	return strings.Count(asked, ".") == 1 && strings.HasPrefix(version, asked+".")
}

// What torch requires says for which CUDA it is built.
var (
	toolkitPin = regexp.MustCompile(`^cuda-toolkit\b[^=;]*==\s*([0-9]+\.[0-9]+\.[0-9]+)`)
	runtimePin = regexp.MustCompile(`^nvidia-cuda-runtime(?:-cu[0-9]+)?\s*==\s*([0-9]+\.[0-9]+)`)
)

// cuda reads of a release's metadata for which CUDA it is built, and which toolkit it
// pins. Where that does not say it, it is what was asked for.
func (r *Releases) cuda(ctx context.Context, release torchRelease, asked string) (cuda, toolkit string, err error) {
	text, err := r.client.Metadata(ctx, release.file)
	var m wheel.Metadata
	if err == nil {
		m, err = wheel.ParseMetadata(text)
	}
	for _, require := range m.RequiresDist {
		if pin := toolkitPin.FindStringSubmatch(require); pin != nil {
			return minor(pin[1]), pin[1], nil
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

// ofTorchIndex adds a torch for another CUDA than that of the package index: for the
// one asked for, or the newest that the driver runs.
func (r *Releases) ofTorchIndex(ctx context.Context, s wheel.Spec, f *Found) error {
	for _, cuda := range f.Tables.CUDAsFor(s) {
		name := "cu" + strings.ReplaceAll(cuda, ".", "")
		files, err := r.client.Files(ctx, r.torch+"/"+name, "torch")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if down := new(url.Error); errors.As(err, &down) {
			f.note("torch %s for %s is not on the package index, and torch's own did not answer (%s names a mirror of it): %v", s.Torch, asked(s), torchIndexes, err)
			return nil // another of them would not answer either
		}
		if release, ok := pick(torchesOf(files, name), s.Torch); ok {
			f.Tables = f.Tables.AddTorch(compat.Torch{Version: release.version, CUDA: cuda, Pythons: release.pythons, Index: name, SHA256: release.hashes})
			return nil
		}
	}
	f.note("torch %s: neither the package index nor torch's own has it for %s", s.Torch, asked(s))
	return nil
}

// asked says what a torch should be for.
func asked(s wheel.Spec) string {
	var words []string
	if s.CUDA != "" {
		words = append(words, "CUDA "+s.CUDA)
	}
	if s.Driver != "" {
		words = append(words, "driver "+s.Driver)
	}
	return strings.Join(words, " and ")
}
