package image

import (
	"archive/tar"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// layerOf makes the changes of a layer from its entries: "dir/file", "dir/", "dir/file -> link", or a whiteout.
func layerOf(entries ...string) *layerFiles {
	l := &layerFiles{added: map[string]entry{}}
	for _, e := range entries {
		name, link, isLink := strings.Cut(e, " -> ")
		kind := byte(tar.TypeReg)
		if isLink {
			kind = tar.TypeSymlink
		} else if strings.HasSuffix(name, "/") {
			kind = tar.TypeDir
		}
		l.add(name, kind, link, func() ([]byte, error) { return []byte(e), nil })
	}
	return l
}

// A layer adds, replaces and removes what lies below it, as the format of images has it.
func TestLayersOnLayers(t *testing.T) {
	t.Parallel()
	const site, old = "usr/lib/python3/dist-packages/", "torch-2.14.0.dist-info/METADATA"
	for name, c := range map[string]struct {
		layers [][]string
		want   []string
	}{
		"one":                 {[][]string{{site + old, "/bin/notes.txt", "./usr/bin/python3"}}, []string{"usr/bin/python3", site + old}},
		"a file is removed":   {[][]string{{site + old}, {site + "torch-2.14.0.dist-info/.wh.METADATA"}}, nil},
		"a folder":            {[][]string{{site + old, "usr/bin/python3"}, {site + ".wh.torch-2.14.0.dist-info"}}, []string{"usr/bin/python3"}},
		"and comes again":     {[][]string{{site + old}, {site + ".wh.torch-2.14.0.dist-info"}, {site + old}}, []string{site + old}},
		"in one layer":        {[][]string{{site + old}, {site + ".wh.torch-2.14.0.dist-info", site + "torch-2.15.0.dist-info/METADATA"}}, []string{site + "torch-2.15.0.dist-info/METADATA"}},
		"emptied":             {[][]string{{site + old, "usr/bin/python3"}, {"usr/lib/.wh..wh..opq", site + "torch-2.15.0.dist-info/METADATA"}}, []string{"usr/bin/python3", site + "torch-2.15.0.dist-info/METADATA"}},
		"all emptied":         {[][]string{{site + old, "usr/bin/python3"}, {".wh..wh..opq", "usr/bin/python3.11"}}, []string{"usr/bin/python3.11"}},
		"a link for a folder": {[][]string{{site + old}, {"usr/lib/python3 -> /opt/python3"}}, []string{"usr/lib/python3"}},
		"a folder for a link": {[][]string{{"usr/lib/python3 -> /opt/python3", "usr/bin/python3"}, {"usr/lib/python3/", "usr/bin/", site + old}}, []string{"usr/bin/python3", site + old}},
		"the same folder":     {[][]string{{site + old}, {site, site + "torch-2.14.0.dist-info/"}}, []string{site + old}},
		"outside":             {[][]string{{"../../" + site + old}}, []string{site + old}},
	} {
		all := listing{}
		for _, entries := range c.layers {
			all.apply(layerOf(entries...))
		}
		var got []string
		for name := range all {
			got = append(got, name)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Evidence of several sources agrees where one is the beginning of the other; else it is a conflict,
// and no weaker source settles it.
func TestEvidence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fact  string
		said  []string
		value string
	}{
		{FactPython, []string{"3.11"}, "3.11"},
		{FactPython, []string{"3.11", "3.11.7"}, "3.11.7"},
		{FactPython, []string{"3.11.7", "3.11"}, "3.11.7"},
		{FactPython, []string{"3.1", "3.11"}, ""},
		{FactTorch, []string{"2.15.0", "2.15.0+cu132"}, "2.15.0+cu132"},
		{FactTorch, []string{"2.15.0+cu132", "2.15.0+cpu"}, ""},
		{FactTorch, []string{"2.15.0", "2.14.0"}, ""},
		{FactTorch, []string{"2.15.0", "", "not a version; rm"}, "2.15.0"},
		{FactGlibc, []string{"2.36", "2.36-9"}, "2.36"},
		{"unknown", []string{"x"}, ""},
	} {
		e := newEvidence()
		for i, said := range c.said {
			e.add(c.fact, said, fmt.Sprint("source ", i))
		}
		if got := e.value(c.fact); got != c.value {
			t.Errorf("%s %q: %q, want %q", c.fact, c.said, got, c.value)
		}
	}
	strong, weak := newEvidence(), newEvidence()
	strong.add(FactPython, "3.11", "a")
	strong.add(FactPython, "3.12", "b")
	weak.add(FactPython, "3.11", "c")
	weak.add(FactGlibc, "2.36", "c")
	if all := strong.over(weak); all.value(FactPython) != "" || all.value(FactGlibc) != "2.36" {
		t.Errorf("%+v", all)
	}
}

// Package URLs are read as their specification has them, whoever escaped them.
func TestPackageURLs(t *testing.T) {
	t.Parallel()
	for purl, want := range map[string]sbomPackage{
		"pkg:pypi/torch@2.15.0%2Bcu132":              {"pypi", "torch", "2.15.0+cu132"},
		"pkg:pypi/torch@2.15.0%2bcu132":              {"pypi", "torch", "2.15.0+cu132"},
		"pkg:pypi/Torch_Vision@1":                    {"pypi", "torch-vision", "1"},
		"pkg:deb/debian/libc6@2.36-9?arch=amd64#sub": {"deb", "libc6", "2.36-9"},
		"pkg:deb/debian/libx@1%3A2.3":                {"deb", "libx", "1:2.3"},
		"pkg:generic/python@3.11.7#lib":              {"generic", "python", "3.11.7"},
		"pkg:pypi/torch":                             {}, "pkg:pypi": {}, "torch@1": {}, "": {}, "pkg:pypi/torch@2%zz": {},
	} {
		got, ok := parsePURL(purl)
		if ok != (want != sbomPackage{}) || ok && got != want {
			t.Errorf("%s: %+v %v, want %+v", purl, got, ok, want)
		}
	}
}

// An SBOM speaks of torch and DeepSpeed; one without DeepSpeed says that there is none, but only if it
// knows Python's packages.
func TestFactsOfSBOM(t *testing.T) {
	t.Parallel()
	spdx := func(purls ...string) string {
		var refs []string
		for _, p := range purls {
			refs = append(refs, `{"referenceLocator":"`+p+`"}`)
		}
		return `{"packages":[{"externalRefs":[` + strings.Join(refs, ",") + `]}]}`
	}
	for text, want := range map[string]string{
		spdx("pkg:pypi/torch@2.15.0", "pkg:generic/python@3.11.7", "pkg:deb/debian/libc6@2.36-9+deb12u4"): "python 3.11.7, torch 2.15.0, glibc 2.36, deepspeed none",
		spdx("pkg:deb/debian/libc6@2.36-9"):                                      "glibc 2.36",
		spdx("pkg:pypi/torch@2.15.0", "pkg:pypi/deepspeed@0.19.8"):               "torch 2.15.0, deepspeed 0.19.8",
		spdx("pkg:pypi/torch@2.15.0", "pkg:pypi/torch@2.14.0"):                   "deepspeed none",
		`{"predicate":{"components":[{"purl":"pkg:rpm/redhat/glibc@2.34-60"}]}}`: "glibc 2.34",
		`{"predicate":7}`: "", `[]`: "", ``: "", `{"components":[{"purl":"pkg:pypi/torch@x y"}]}`: "deepspeed none",
	} {
		var got []string
		for _, f := range factsOfSBOM([]byte(text)).list() {
			got = append(got, f.Name+" "+f.Value)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
