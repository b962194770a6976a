package image

import (
	"bytes"
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/wheel"
)

// distribution is an installed distribution. Its name is that of its metadata's folder, which may be
// spelled in another way than that of a newer wheel: PyYAML, pyyaml.
type distribution struct{ name, version string }

func (d distribution) info() string { return d.name + "-" + d.version + ".dist-info" }

// parseDistInfo reads the name of a dist-info folder.
func parseDistInfo(folder string) (d distribution, ok bool) {
	stem, isInfo := strings.CutSuffix(folder, ".dist-info")
	i := strings.LastIndexByte(stem, '-')
	if !isInfo || i <= 0 {
		return d, false
	}
	return distribution{stem[:i], stem[i+1:]}, true
}

// packages returns the installations of a distribution in a folder of packages, sorted. An
// installation that was cut off may leave the metadata of two.
func (t *tree) packages(site, name string) []distribution {
	folder := t.at(site)
	if folder == nil {
		return nil
	}
	var found []distribution
	for file, e := range folder.below {
		d, ok := parseDistInfo(file)
		if ok && e.below["METADATA"] != nil && pypi.CanonPackageName(d.name) == pypi.CanonPackageName(name) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b distribution) int { return strings.Compare(a.info(), b.info()) })
	return found
}

// recorded returns the files of an installed distribution by its RECORD; ok is false without one.
// Files outside of its environment are left out.
func (t *tree) recorded(site string, d distribution) (files []string, ok bool) {
	e := t.at(path.Join(site, d.info(), "RECORD"))
	if e == nil || e.text == nil {
		return nil, false
	}
	entries, err := wheel.ParseRecord(bytes.NewReader(e.text))
	if err != nil {
		return nil, false
	}
	prefix := path.Dir(path.Dir(path.Dir(site)))
	for _, line := range entries {
		if at := path.Join(site, line.Path); strings.HasPrefix(at, prefix+"/") {
			files = append(files, at)
		}
	}
	return files, true
}

// facts returns the facts in the files. site is the folder that the user named, or "".
func (t *tree) facts(site string) (known evidence, hasPython bool) {
	known = evidence{}
	for _, at := range []string{"lib", "lib64", "usr/lib", "usr/lib64"} {
		if folder := t.at(at); folder != nil {
			addLibraries(known, at, folder)
			for name, e := range folder.below {
				if debianLibs.MatchString(name) {
					addLibraries(known, path.Join(at, name), e)
				}
			}
		}
	}
	if site != "" {
		known.add(FactSitePackages, site, "the files of the base")
	}
	t.root.folders("", func(at string, e *entry) {
		switch path.Base(at) {
		case "site-packages", "dist-packages":
			if site == "" && len(t.packages(at, "torch")) > 0 {
				known.add(FactSitePackages, "/"+at, "the files of torch")
			}
		case "bin":
			for name := range e.below {
				hasPython = hasPython || interpreter.MatchString(name)
			}
		}
	})
	switch site = known.value(FactSitePackages); {
	case site != "":
		t.addPackages(known, relative(site))
	case len(known[FactSitePackages]) == 0:
		known.add(FactTorch, None, "the files of the base")
	}
	return known, hasPython
}

var (
	interpreter = regexp.MustCompile(`^python3(\.\d+)?$`)
	versionLine = regexp.MustCompile(`(?m)^__version__\s*=\s*['"]([^'"]+)['"]`)
	cudaLine    = regexp.MustCompile(`(?m)^cuda(?:\s*:[^=\n]*)?\s*=\s*(?:['"]([^'"]+)['"]|None)`)
)

// addPackages notes torch and DeepSpeed in a folder of packages.
func (t *tree) addPackages(known evidence, site string) {
	torch, deepspeed := t.packages(site, "torch"), t.packages(site, "deepspeed")
	for _, d := range torch {
		known.add(FactTorch, d.version, "the files of torch")
	}
	for _, d := range deepspeed {
		known.add(FactDeepSpeed, d.version, "the files of the base")
	}
	if len(deepspeed) == 0 {
		known.add(FactDeepSpeed, None, "the files of the base")
	}
	if len(torch) == 0 {
		known.add(FactTorch, None, "the files of the base")
		return
	}
	e := t.at(path.Join(site, "torch/version.py"))
	if e == nil {
		return
	}
	if m := versionLine.FindSubmatch(e.text); m != nil {
		known.add(FactTorch, string(m[1]), "torch/version.py")
	}
	if m := cudaLine.FindSubmatch(e.text); m != nil {
		known.add(FactCUDA, cmp.Or(string(m[1]), None), "torch/version.py")
	}
}

var (
	systemLib   = regexp.MustCompile(`^(?:libc-(2\.\d+)\.so|libstdc\+\+\.so\.6\.0\.(\d+))$`)
	glibcBanner = regexp.MustCompile(`GNU C Library [^\n]{0,100}release version (2\.\d+)`)
	debianLibs  = regexp.MustCompile(`^[a-z0-9_]+-linux-gnu$`)
)

// addLibraries notes glibc and libstdc++ in one folder: by their names, or by the text in glibc.
func addLibraries(known evidence, at string, folder *entry) {
	for name, e := range folder.below {
		source := "/" + path.Join(at, name)
		if m := systemLib.FindStringSubmatch(name); m != nil {
			known.add(FactGlibc, m[1], source)
			if m[2] != "" {
				known.add(FactLibstdcxx, "3.4."+m[2], source)
			}
		}
		if m := glibcBanner.FindSubmatch(e.text); m != nil && name == "libc.so.6" {
			known.add(FactGlibc, string(m[1]), source)
		}
	}
}
