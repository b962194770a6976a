package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxEntries bounds the files of one layer.
const maxEntries = 5_000_000

// entry is a file of the base that says something about it.
type entry struct {
	link string // target of a symbolic link
	read func() ([]byte, error)
}

// listing holds those files of a base that matter here, with the changes of all layers applied.
type listing map[string]entry

// layerFiles are the changes of one layer.
type layerFiles struct {
	added  map[string]entry
	hidden []string // paths that the layer removes
	opaque []string // folders whose content the layer removes
	dirs   []string // folders of the layer, which take the place of links
}

// Files that matter, by their path without a leading slash.
var (
	distInfoFile = regexp.MustCompile(`^(.+/(?:site|dist)-packages)/([^/]+)-([^/-]+)\.dist-info/(METADATA|RECORD)$`)
	torchVersion = regexp.MustCompile(`^(.+/(?:site|dist)-packages)/torch/version\.py$`)
	systemLib    = regexp.MustCompile(`^(?:usr/)?lib(?:64)?/(?:[a-z0-9_]+-linux-gnu/)?(libc\.so\.6|libc-(2\.\d+)\.so|libstdc\+\+\.so\.6\.0\.(\d+))$`)
	releaseFile  = regexp.MustCompile(`^(?:etc|usr/lib)/os-release$`)
	interpreter  = regexp.MustCompile(`^(.*/)?bin/python3(\.\d+)?$`)
)

// limits of the contents that are read, by their file.
const (
	maxLibC  = 16 << 20
	maxSmall = 1 << 20
)

// matters reports whether a file says something about the base, and how many bytes of its content
// are of interest: 0 if its name says all.
func matters(name string) (yes bool, content int64) {
	m := distInfoFile.FindStringSubmatch(name)
	switch {
	case m != nil:
		if m[4] == "RECORD" {
			return true, 32 << 20
		}
		return true, 0
	case torchVersion.MatchString(name), releaseFile.MatchString(name):
		return true, maxSmall
	case strings.HasSuffix(name, "/libc.so.6") && systemLib.MatchString(name):
		return true, maxLibC
	}
	return systemLib.MatchString(name) || interpreter.MatchString(name), 0
}

// add notes one entry of a layer.
func (l *layerFiles) add(name string, kind byte, link string, read func() ([]byte, error)) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	dir, file := path.Split(name)
	switch {
	case file == opaqueWhiteout:
		l.opaque = append(l.opaque, path.Clean(dir))
	case strings.HasPrefix(file, whiteout):
		l.hidden = append(l.hidden, path.Join(dir, strings.TrimPrefix(file, whiteout)))
	case kind == tar.TypeSymlink:
		l.added[name] = entry{link: link}
	case kind == tar.TypeDir:
		l.dirs = append(l.dirs, name)
	case kind == tar.TypeReg || kind == tar.TypeLink:
		if yes, _ := matters(name); yes {
			l.added[name] = entry{read: read}
		}
	}
}

// apply puts a layer on the layers below it.
func (l listing) apply(changes *layerFiles) {
	gone := map[string]bool{}
	for _, p := range changes.hidden {
		gone[p] = true
	}
	emptied := map[string]bool{}
	for _, p := range changes.opaque {
		emptied[p] = true
	}
	for name := range l {
		remove := gone[name] || emptied["."]
		for dir := path.Dir(name); !remove && dir != "."; dir = path.Dir(dir) {
			_, replaced := changes.added[dir]
			remove = gone[dir] || emptied[dir] || replaced
		}
		if remove {
			delete(l, name)
		}
	}
	for _, name := range changes.dirs {
		if l[name].link != "" {
			delete(l, name)
		}
	}
	for name, e := range changes.added {
		l[name] = e
	}
}

// listLayers reads all layers of an image on disk.
func listLayers(ctx context.Context, image v1.Image) (listing, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	all := listing{}
	for i, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		changes, err := listTar(ctx, r)
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		all.apply(changes)
	}
	return all, nil
}

// listTar reads one layer.
func listTar(ctx context.Context, r io.Reader) (*layerFiles, error) {
	changes := &layerFiles{added: map[string]entry{}}
	entries := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			_, err = io.Copy(io.Discard, r) // to the end, where a wrong digest is found
			return changes, err
		case err != nil:
			return nil, err
		case n == maxEntries:
			return nil, fmt.Errorf("it has more than %d files", maxEntries)
		case n%1024 == 0 && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		var data []byte
		if _, most := matters(name); most > 0 && h.Typeflag == tar.TypeReg {
			if data, err = io.ReadAll(io.LimitReader(entries, most)); err != nil {
				return nil, err
			}
		}
		changes.add(h.Name, h.Typeflag, h.Linkname, func() ([]byte, error) { return data, nil })
	}
}

// distribution is an installed distribution. Its name is that of its metadata's folder, which may be
// spelled in another way than that of a newer wheel: PyYAML, pyyaml.
type distribution struct{ name, version string }

// packages returns the distributions in site-packages by normalised name, sorted. An installation that
// was cut off may leave the metadata of two.
func (l listing) packages(site string) map[string][]distribution {
	found := map[string][]distribution{}
	for file := range l {
		m := distInfoFile.FindStringSubmatch(file)
		if m == nil || m[1] != site {
			continue
		}
		of, d := pypi.CanonPackageName(m[2]), distribution{m[2], m[3]}
		if !slices.Contains(found[of], d) {
			found[of] = append(found[of], d)
		}
	}
	for _, all := range found {
		slices.SortFunc(all, func(a, b distribution) int {
			return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.version, b.version))
		})
	}
	return found
}

// sites returns the folders of packages, sorted.
func (l listing) sites() []string {
	var all []string
	for name := range l {
		if m := distInfoFile.FindStringSubmatch(name); m != nil && !slices.Contains(all, m[1]) {
			all = append(all, m[1])
		}
	}
	slices.Sort(all)
	return all
}

// hasPython reports whether there is an interpreter.
func (l listing) hasPython() bool {
	for name := range l {
		if interpreter.MatchString(name) {
			return true
		}
	}
	return false
}

// facts returns the facts in the files. site is the folder that the user named, or "".
func (l listing) facts(site string, glibcOf func(image string) string) (*evidence, error) {
	e := newEvidence()
	if err := l.addSystem(e, glibcOf); err != nil {
		return nil, err
	}
	site = strings.TrimPrefix(site, "/")
	if site == "" {
		for _, s := range l.sites() {
			if _, ok := l.packages(s)["torch"]; ok {
				e.addSite("/"+s, "the files of torch")
			}
		}
		site = strings.TrimPrefix(e.value(FactSitePackages), "/")
	}
	if site == "" {
		if len(e.conflicts[FactSitePackages]) == 0 {
			e.add(FactTorch, None, "the files of the base")
		}
		return e, nil
	}
	e.addSite("/"+site, "the files of the base")
	return e, l.addPackages(e, site)
}

var (
	versionLine = regexp.MustCompile(`(?m)^__version__\s*=\s*['"]([^'"]+)['"]`)
	cudaLine    = regexp.MustCompile(`(?m)^cuda(?:\s*:[^=\n]*)?\s*=\s*(?:['"]([^'"]+)['"]|None)`)
)

// addPackages notes torch and DeepSpeed in a folder of packages.
func (l listing) addPackages(e *evidence, site string) error {
	have := l.packages(site)
	for _, version := range versionsOrNone(have["torch"]) {
		e.addTorch(version, "the files of torch")
	}
	for _, version := range versionsOrNone(have["deepspeed"]) {
		e.add(FactDeepSpeed, version, "the files of the base")
	}
	f, ok := l[path.Join(site, "torch/version.py")]
	if !ok || len(have["torch"]) == 0 {
		return nil
	}
	text, err := f.read()
	if err != nil {
		return err
	}
	if m := versionLine.FindSubmatch(text); m != nil {
		e.addTorch(string(m[1]), "torch/version.py")
	}
	if m := cudaLine.FindSubmatch(text); m != nil {
		e.add(FactCUDA, cmp.Or(string(m[1]), None), "torch/version.py")
	}
	return nil
}

// versionsOrNone returns the versions of a distribution; None if it is not installed.
func versionsOrNone(installed []distribution) []string {
	if len(installed) == 0 {
		return []string{None}
	}
	versions := make([]string, len(installed))
	for i, d := range installed {
		versions[i] = d.version
	}
	return versions
}

var glibcBanner = regexp.MustCompile(`GNU C Library [^\n]{0,100}release version (2\.\d+)`)

// addSystem notes glibc and libstdc++: by their names, by the text in glibc, or by the release of
// the distribution.
func (l listing) addSystem(e *evidence, glibcOf func(image string) string) error {
	for name, f := range l {
		m := systemLib.FindStringSubmatch(name)
		switch {
		case m == nil:
		case m[2] != "":
			e.add(FactGlibc, m[2], "/"+name)
		case m[3] != "":
			e.add(FactLibstdcxx, "3.4."+m[3], "/"+name)
		case f.read != nil && e.value(FactGlibc) == "":
			text, err := f.read()
			if err != nil {
				return err
			}
			if b := glibcBanner.FindSubmatch(text); b != nil {
				e.add(FactGlibc, string(b[1]), "/"+name)
			}
		}
	}
	if e.value(FactGlibc) != "" {
		return nil
	}
	return l.addOSRelease(e, glibcOf)
}

// addOSRelease notes the glibc of a known release.
func (l listing) addOSRelease(e *evidence, glibcOf func(image string) string) error {
	for _, name := range []string{"usr/lib/os-release", "etc/os-release"} {
		f, ok := l[name]
		if !ok || f.read == nil {
			continue
		}
		text, err := f.read()
		if err != nil {
			return err
		}
		values := map[string]string{}
		for _, line := range bytes.Split(text, []byte("\n")) {
			if key, value, ok := strings.Cut(string(line), "="); ok {
				values[key] = strings.Trim(value, `"'`)
			}
		}
		e.addRelease(glibcOf, values["ID"], values["VERSION_ID"], "/"+name)
	}
	return nil
}

// resolve follows the symbolic links in a path: a layer that makes a folder where the base has a
// link would hide what the link leads to.
func (l listing) resolve(at string) string {
	for range 40 {
		next := l.resolveOnce(at)
		if next == at {
			return at
		}
		at = next
	}
	return at
}

func (l listing) resolveOnce(at string) string {
	for i := 1; i <= len(at); i++ {
		if i < len(at) && at[i] != '/' {
			continue
		}
		e, ok := l[at[1:i]]
		if !ok || e.link == "" {
			continue
		}
		to := e.link
		if !strings.HasPrefix(to, "/") {
			to = path.Join(path.Dir(at[:i]), to)
		}
		return path.Join("/", to, at[i:])
	}
	return at
}
