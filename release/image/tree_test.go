package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layerOf makes a layer of entries in this order: "dir/file", "dir/", "dir/file -> link", "dir/file => hard link",
// or a whiteout. A file holds its own path.
func layerOf(t testing.TB, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(e))}
		if name, link, ok := strings.Cut(e, " -> "); ok {
			h = &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: link}
		} else if name, link, ok := strings.Cut(e, " => "); ok {
			h = &tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: link}
		} else if strings.HasSuffix(e, "/") {
			h = &tar.Header{Name: e, Typeflag: tar.TypeDir, Mode: 0o755}
		}
		err := w.WriteHeader(h)
		if h.Size > 0 && err == nil {
			_, err = io.WriteString(w, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// imageOf makes an image of layers as layerOf makes them.
func imageOf(t testing.TB, layers ...[]string) v1.Image {
	t.Helper()
	img := empty.Image
	for _, entries := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, static.NewLayer(layerOf(t, entries...), types.OCIUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// treeOf reads an image of layers.
func treeOf(t testing.TB, layers ...[]string) *tree {
	t.Helper()
	all, err := readTree(t.Context(), imageOf(t, layers...), []string{"deepspeed"})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// paths lists the files and links of a tree, sorted, with the content that was kept.
func (t *tree) paths() []string {
	var all []string
	t.root.folders("", func(at string, e *entry) {
		for name, child := range e.below {
			switch at := path.Join(at, name); {
			case child.link != "":
				all = append(all, at+" -> "+child.link)
			case child.text != nil:
				all = append(all, at+" = "+string(child.text))
			case child.below == nil:
				all = append(all, at)
			}
		}
	})
	slices.Sort(all)
	return all
}

// A layer adds, replaces and removes what lies below it, as the format of images has it, at every
// depth and through links.
func TestLayersOnLayers(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		layers [][]string
		want   string
	}{
		"one":                         {[][]string{{"a/b/c", "/bin/notes.txt", "./usr/bin/python3"}}, "a/b/c, bin/notes.txt, usr/bin/python3"},
		"a file is removed":           {[][]string{{"a/b/c", "a/b/d"}, {"a/b/.wh.c"}}, "a/b/d"},
		"a folder":                    {[][]string{{"a/b/c/d", "a/e"}, {"a/.wh.b"}}, "a/e"},
		"and comes again":             {[][]string{{"a/b"}, {".wh.a"}, {"a/b"}}, "a/b"},
		"in one layer":                {[][]string{{"a/b", "a/c"}, {"a/d", ".wh.a"}}, "a/d"},
		"emptied":                     {[][]string{{"a/b/c/d", "e"}, {"a/b/new", "a/.wh..wh..opq"}}, "a/b/new, e"},
		"all emptied":                 {[][]string{{"a/b", "c"}, {".wh..wh..opq", "d"}}, "d"},
		"nothing there":               {[][]string{{"a"}, {"b/.wh.c", "d/.wh..wh..opq", "a/.wh.x"}}, "a"},
		"a link for a folder":         {[][]string{{"a/b/c"}, {"a/b -> /x"}}, "a/b -> /x"},
		"a folder for a link":         {[][]string{{"a -> x"}, {"a/", "a/b"}}, "a/b"},
		"a folder for a file":         {[][]string{{"a/b"}, {"a/b/c"}}, "a/b/c"},
		"a file for a folder":         {[][]string{{"a/b/c"}, {"a/b"}}, "a/b"},
		"the same folder":             {[][]string{{"a/b"}, {"a/"}}, "a/b"},
		"outside":                     {[][]string{{"../../a/b", "x => ../../a/b"}}, "a/b, x"},
		"through a link":              {[][]string{{"usr/lib/a", "lib -> usr/lib"}, {"lib/b"}}, "lib -> usr/lib, usr/lib/a, usr/lib/b"},
		"removed through one":         {[][]string{{"usr/lib/a", "lib -> /usr/lib"}, {"lib/.wh.a"}}, "lib -> /usr/lib"},
		"links in a circle":           {[][]string{{"a -> b", "b -> a", "a/x"}}, "a/x, b -> a"},
		"content":                     {[][]string{{"x/torch/version.py", "x/other/version.py"}}, "x/other/version.py, x/torch/version.py = x/torch/version.py"},
		"content of a hard link":      {[][]string{{"uv/torch/version.py"}, {"x/torch/version.py => uv/torch/version.py", ".wh.uv"}}, "x/torch/version.py"},
		"of one that is removed next": {[][]string{{"uv/torch/version.py", "x/torch/version.py => uv/torch/version.py"}, {".wh.uv"}}, "x/torch/version.py = uv/torch/version.py"},
	} {
		if got := strings.Join(treeOf(t, c.layers...).paths(), ", "); got != c.want {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
}

// An image of a stranger takes neither memory nor time without end.
func TestLimits(t *testing.T) {
	t.Parallel()
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprintf("%d/torch/version.py", i)
	}
	for title, change := range map[string]func(*tree){
		"files": func(t *tree) { t.passed = maxEntries - 5 },
		"bytes": func(t *tree) { t.bytes = maxBytes - 100 },
	} {
		all := &tree{root: newFolder()}
		change(all)
		if _, err := all.readLayer(tar.NewReader(bytes.NewReader(layerOf(t, many...)))); err == nil || !strings.Contains(err.Error(), "more than dsbuild reads") {
			t.Errorf("%s: %v, want that there are too many", title, err)
		}
	}
	_, err := readTree(t.Context(), imageOf(t, []string{strings.Repeat("a/", 3000) + "b"}), nil)
	if err == nil || !strings.Contains(err.Error(), "layer 1: more than dsbuild reads") {
		t.Errorf("a long path: %v, want that it is too long", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := readTree(ctx, imageOf(t, many), nil); !errors.Is(err, stopped) {
		t.Errorf("a context that ended: %v, want its cause", err)
	}
}

// A new file is in the way of what lies at its path or in the place of one of its folders.
func TestTaken(t *testing.T) {
	t.Parallel()
	all := treeOf(t, []string{"usr/lib/a/b", "lib -> usr/lib"})
	for name, want := range map[string]string{
		"usr/lib/a/b": "usr/lib/a/b", "lib/a/b": "usr/lib/a/b", "usr/lib/a/b/c": "usr/lib/a/b", "usr/lib/a": "usr/lib/a",
		"lib": "lib", "usr/lib/a/c": "", "x/y": "",
	} {
		if got := all.taken(name); got != want {
			t.Errorf("%s: %q is in the way, want %q", name, got, want)
		}
	}
}

// The metadata of two versions of a package, which an interrupted installation leaves, is no fact about
// its version.
func TestTwoVersionsInABase(t *testing.T) {
	t.Parallel()
	const site = "usr/local/lib/python3.11/site-packages/"
	all := treeOf(t, []string{
		site + "torch-2.14.0.dist-info/METADATA", site + "torch-2.15.0.dist-info/METADATA",
		site + "deepspeed-0.18.0.dist-info/METADATA", site + "deepspeed-0.17.0.dist-info/METADATA", "usr/local/bin/python3.11",
	})
	known, hasPython := all.facts("")
	if !hasPython || known.value(FactTorch) != "" || known.value(FactDeepSpeed) != "" || known.value(FactSitePackages) != "/"+path.Clean(site) {
		t.Errorf("%+v, Python %v: want a Python, its folder and no versions", known, hasPython)
	}
	if said := known[FactTorch]; len(said) != 2 {
		t.Errorf("torch: %v, want both versions", said)
	}
	if old := all.packages(path.Clean(site), "DeepSpeed"); len(old) != 2 || old[0].version != "0.17.0" {
		t.Errorf("%v, want both versions of DeepSpeed", old)
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
		e := evidence{}
		for i, said := range c.said {
			e.add(c.fact, said, fmt.Sprint("source ", i))
		}
		if got := e.value(c.fact); got != c.value {
			t.Errorf("%s %q: %q, want %q", c.fact, c.said, got, c.value)
		}
	}
	strong, weak := evidence{}, evidence{}
	strong.add(FactPython, "3.11", "a")
	strong.add(FactPython, "3.12", "b")
	weak.add(FactPython, "3.11", "c")
	weak.add(FactGlibc, "2.36", "c")
	if all := strong.over(weak); all.value(FactPython) != "" || all.value(FactGlibc) != "2.36" {
		t.Errorf("%+v", all)
	}
}
