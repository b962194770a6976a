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
func (t *tree) facts(site string, glibcOf func(image string) string) (known *evidence, hasPython bool) {
	known = newEvidence()
	t.addSystem(known, glibcOf)
	if site != "" {
		known.addSite(site, "the files of the base")
	}
	t.root.folders("", func(at string, e *entry) {
		switch path.Base(at) {
		case "site-packages", "dist-packages":
			if site == "" && len(t.packages(at, "torch")) > 0 {
				known.addSite("/"+at, "the files of torch")
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
	case len(known.conflicts[FactSitePackages]) == 0:
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
func (t *tree) addPackages(known *evidence, site string) {
	torch, deepspeed := t.packages(site, "torch"), t.packages(site, "deepspeed")
	for _, d := range torch {
		known.addTorch(d.version, "the files of torch")
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
		known.addTorch(string(m[1]), "torch/version.py")
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

// addSystem notes glibc and libstdc++: by their names, by the text in glibc, or by the release of
// the distribution.
func (t *tree) addSystem(known *evidence, glibcOf func(image string) string) {
	for _, at := range []string{"lib", "lib64", "usr/lib", "usr/lib64"} {
		folder := t.at(at)
		if folder == nil {
			continue
		}
		addLibraries(known, at, folder)
		for name, e := range folder.below {
			if debianLibs.MatchString(name) {
				addLibraries(known, path.Join(at, name), e)
			}
		}
	}
	for _, name := range []string{"usr/lib/os-release", "etc/os-release"} {
		e := t.at(name)
		if e == nil || known.value(FactGlibc) != "" {
			continue
		}
		values := map[string]string{}
		for line := range strings.Lines(string(e.text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			values[key] = strings.Trim(value, `"'`)
		}
		if id, version := values["ID"], values["VERSION_ID"]; id != "" && version != "" && glibcOf != nil {
			known.add(FactGlibc, glibcOf(id+":"+version), "/"+name) // by the table of bases
		}
	}
}

// addLibraries notes the libraries in one folder.
func addLibraries(known *evidence, at string, folder *entry) {
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
