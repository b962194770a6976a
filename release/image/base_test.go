package image_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/image"
)

func noCache() wheels.Cache { return wheels.Cache{} }

// saved writes an image as docker save does and returns the file.
func saved(t testing.TB, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "base.tar")
	tag, err := name.NewTag("base:1")
	if err == nil {
		err = tarball.WriteToFile(file, tag, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// opened reads the tar of an image that dsbuild wrote, as docker load does.
func opened(t testing.TB, file string) v1.Image {
	t.Helper()
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// savedPlain writes the tar of an older docker save: its layers are not compressed.
func savedPlain(t testing.TB, img v1.Image) string {
	t.Helper()
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files, names := map[string]string{"config.json": string(config)}, make([]string, len(layers))
	for i, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names[i] = fmt.Sprintf("%d/layer.tar", i)
		files[names[i]] = string(text)
	}
	manifest, err := json.Marshal([]tarball.Descriptor{{Config: "config.json", Layers: names}})
	if err != nil {
		t.Fatal(err)
	}
	files["manifest.json"] = string(manifest)
	file := filepath.Join(t.TempDir(), "plain.tar")
	if err := os.WriteFile(file, tarOf(t, files), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// laidOut writes an image as an OCI layout and returns the folder.
func laidOut(t testing.TB, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	at, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = at.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// factsOf returns what Survey finds out, by name.
func factsOf(t testing.TB, opt image.Options) map[string]string {
	t.Helper()
	p, err := image.Survey(t.Context(), opt)
	if err != nil {
		t.Fatalf("%v\nhint: %s", err, fault.Hint(err))
	}
	defer p.Close()
	facts := map[string]string{}
	for _, f := range p.Facts {
		facts[f.Name] = f.Value
	}
	return facts
}

// The files of a base on disk say everything, in each of its forms.
func TestBaseOnDisk(t *testing.T) {
	want := map[string]string{
		"python": "3.11", "torch": "2.15.0+cu132", "cuda": "13.2", "glibc": "2.36", "libstdcxx": "3.4.30",
		"site-packages": "/" + site, "deepspeed": "none",
	}
	img := baseOf(t, v1.Config{}, torchBase(), map[string]string{"srv/app.py": "print()\n"})
	for form, base := range map[string]string{"docker save": savedPlain(t, img), "compressed": saved(t, img), "layout": laidOut(t, img)} {
		opt := options(t, base, filepath.Join(t.TempDir(), "out.tar"))
		if got := factsOf(t, opt); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", form, got, want)
		}
		mustBuild(t, opt)
		again := options(t, opt.Output, filepath.Join(t.TempDir(), "twice.tar"))
		want["deepspeed"] = "0.19.8+torch2.15.cu132.sm80.v3"
		if got := factsOf(t, again); !maps.Equal(got, want) { // the tar that dsbuild writes
			t.Errorf("%s: %v, want %v", form, got, want)
		}
		want["deepspeed"] = "none"
	}
}

// An older DeepSpeed in the base does not show through, whatever layer it is in.
func TestOldDeepSpeed(t *testing.T) {
	old := map[string]string{
		site + "/deepspeed/__init__.py":               "old\n",
		site + "/deepspeed/gone.py":                   "old\n",
		site + "/deepspeed-0.17.0.dist-info/METADATA": "Name: deepspeed\n",
		site + "/deepspeed-0.17.0.dist-info/RECORD":   "deepspeed/__init__.py,,\ndeepspeed/gone.py,,\n../../../bin/ds_old,,\n../../../bin/ds_report,,\n../../../../etc/passwd,,\n",
		"usr/local/bin/ds_old":                        "#!python\n",
		"usr/local/bin/ds_report":                     "#!old\n",
	}
	opt := options(t, saved(t, baseOf(t, v1.Config{}, torchBase(), old)), filepath.Join(t.TempDir(), "out.tar"))
	r := mustBuild(t, opt)
	want := []string{"usr/local/bin/ds_old", "usr/local/bin/ds_report", site + "/deepspeed-0.17.0.dist-info"}
	if !slices.Equal(r.Hidden, want) {
		t.Errorf("hidden: %q, want %q", r.Hidden, want)
	}
	files := filesOf(t, mutate.Extract(opened(t, opt.Output)))
	for name := range files {
		if strings.Contains(name, "0.17.0") || strings.HasSuffix(name, "/gone.py") || strings.HasSuffix(name, "/ds_old") {
			t.Errorf("%s is still there", name)
		}
	}
	if got := files["usr/local/bin/ds_report"]; !strings.Contains(got, "print('report')") {
		t.Errorf("ds_report: %q", got)
	}
	// A layer that removed it again leaves nothing to hide.
	removed := map[string]string{site + "/.wh.deepspeed-0.17.0.dist-info": "", site + "/.wh.deepspeed": ""}
	opt = options(t, saved(t, baseOf(t, v1.Config{}, torchBase(), old, removed)), filepath.Join(t.TempDir(), "out.tar"))
	if r := mustBuild(t, opt); len(r.Hidden) > 0 {
		t.Errorf("hidden: %q", r.Hidden)
	}
}

// Bases that the wheel does not fit are refused with the reason and exit code 4, and flags that
// the files deny with exit code 2.
func TestUnfit(t *testing.T) {
	change := func(files map[string]string, changes ...string) map[string]string {
		for i := 0; i < len(changes); i += 2 {
			if files[changes[i]] = changes[i+1]; changes[i+1] == "" {
				delete(files, changes[i])
			}
		}
		return files
	}
	const libc, metadata, version = "usr/lib/x86_64-linux-gnu/libc.so.6", site + "/torch-2.15.0.dist-info/METADATA", site + "/torch/version.py"
	for _, c := range []struct {
		title string
		files map[string]string
		given map[string]string
		code  int
		want  string
	}{
		{"no torch", change(torchBase(), metadata, "", version, ""), nil, 4, "the base has no torch"},
		{"no Python", map[string]string{"etc/hostname": "x"}, nil, 4, "the base has no Python"},
		{"another torch", change(torchBase(), metadata, "", site+"/torch-2.14.1.dist-info/METADATA", "x", version, "__version__ = '2.14.1+cu132'\ncuda: Optional[str] = '13.2'\n"), nil, 4, "built against torch 2.15, but the base has 2.14"},
		{"another CUDA", change(torchBase(), version, "__version__ = '2.15.0+cu130'\n"), nil, 4, "built for CUDA 13.2, but the base's torch is built for 13.0"},
		{"torch for CPUs", change(torchBase(), version, "__version__ = '2.15.0+cpu'\ncuda = None\n"), nil, 4, "the base's torch has none"},
		{"an old glibc", change(torchBase(), libc, "", "lib/x86_64-linux-gnu/libc-2.12.so", "ELF"), nil, 4, "but the base has 2.12"},
		{"another Python", change(maps.Clone(map[string]string{"usr/bin/python3": "x", libc: torchBase()[libc], "opt/v/lib/python3.12/site-packages/torch-2.15.0+cu132.dist-info/METADATA": "x"})), nil, 4, "built for Python 3.11, but the base has 3.12"},
		{"a flag that is wrong", torchBase(), map[string]string{"torch": "2.14.0"}, 2, "--torch 2.14.0, but torch/version.py says 2.15.0+cu132"},
		{"a flag without form", torchBase(), map[string]string{"site-packages": "usr/lib; rm"}, 2, "not of the form"},
		{"two torches", change(torchBase(), "opt/venv/lib/python3.11/site-packages/torch-2.15.0.dist-info/METADATA", "x"), nil, 2, "--site-packages ("},
		{"a link on the way", change(torchBase(), "opt/py", "-> ../usr/local"), map[string]string{"site-packages": "/opt/py/lib/python3.11/site-packages"}, 2, "is a link in the base, to /" + site},
		{"glibc in doubt", change(torchBase(), libc, ""), nil, 2, "missing: --glibc"},
	} {
		opt := options(t, saved(t, baseOf(t, v1.Config{}, c.files)), filepath.Join(t.TempDir(), "out.tar"))
		for name, value := range c.given {
			opt.Given[name] = value
		}
		p, err := image.Survey(t.Context(), opt)
		if err == nil {
			p.Close()
			t.Errorf("%s: accepted", c.title)
			continue
		}
		var coded interface{ ExitCode() int }
		if !strings.Contains(err.Error(), c.want) || !errors.As(err, &coded) || coded.ExitCode() != c.code {
			t.Errorf("%s: %v, want %q and exit code %d", c.title, err, c.want, c.code)
		}
	}
}

// A tar that is damaged or made to harm ends with an error of exit code 2, and nothing is written.
func TestHostileTars(t *testing.T) {
	good := laidOut(t, baseOf(t, v1.Config{}, torchBase()))
	layer := firstLayer(t, good)
	harm := func(change func(dir string)) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
			t.Fatal(err)
		}
		change(dir)
		return dir
	}
	write := func(name string, text []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	put := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	double := tarOf(t, map[string]string{"manifest.json": "[]"})
	double = append(double[:1024:1024], double...)
	for title, base := range map[string]string{
		"no tar":                write("x.tar", []byte("PK\x03\x04 not a tar at all, but long enough to be read as one "+strings.Repeat("x", 600))),
		"empty":                 write("x.tar", nil),
		"cut off":               write("x.tar", readFile(t, saved(t, baseOf(t, v1.Config{}, torchBase())))[:2000]),
		"a root file system":    write("x.tar", tarOf(t, map[string]string{"etc/passwd": "root"})),
		"a name twice":          write("x.tar", double),
		"links in a circle":     write("x.tar", tarOf(t, map[string]string{"manifest.json": `[{"Config":"a","Layers":[]}]`, "a": "-> b", "b": "-> a"})),
		"two images":            write("x.tar", tarOf(t, map[string]string{"manifest.json": `[{"Config":"a"},{"Config":"b"}]`})),
		"a config outside":      write("x.tar", tarOf(t, map[string]string{"manifest.json": `[{"Config":"../../etc/passwd","Layers":[]}]`})),
		"fewer layers":          write("x.tar", tarOf(t, map[string]string{"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": `{"rootfs":{"type":"layers","diff_ids":[]}}`, "l": "x"})),
		"another layer":         harm(func(dir string) { put(dir, layer, string(tarOf(t, map[string]string{"a": "b"}))) }),
		"a layer that is short": harm(func(dir string) { put(dir, layer, string(readFile(t, filepath.Join(dir, layer))[:100])) }),
		"an index of nothing":   harm(func(dir string) { put(dir, "index.json", "{}") }),
		"an index of links": harm(func(dir string) {
			os.Remove(filepath.Join(dir, "index.json"))
			os.Symlink("/etc/passwd", filepath.Join(dir, "index.json"))
		}),
		"an index of rubbish": harm(func(dir string) { put(dir, "index.json", "\x00\x01") }),
		"not there":           "gone.tar",
	} {
		out := filepath.Join(t.TempDir(), "out.tar")
		p, err := image.Survey(t.Context(), options(t, base, out))
		if err == nil {
			_, err = p.Build(t.Context())
			p.Close()
		}
		if err == nil {
			t.Errorf("%s: accepted", title)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: written", title)
		}
	}
}

func readFile(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// firstLayer returns the file of the first layer in an OCI layout.
func firstLayer(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if bytes.HasPrefix(readFile(t, f), []byte{0x1f, 0x8b}) {
			below, _ := filepath.Rel(dir, f)
			return below
		}
	}
	t.Fatal("no layer")
	return ""
}
