//go:build full

package evidence

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/pyindex"
)

// What is read from op_builder is what the builders say when they run: the sources of each op and the folders that they include.
func TestFullStableBuilders(t *testing.T) {
	client := pyindex.New(http.DefaultTransport)
	files, err := client.Files(t.Context(), "https://pypi.org/simple", "deepspeed")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"0.19.5", "0.19.7", "0.19.8"} {
		i := slices.IndexFunc(files, func(f pyindex.File) bool { return f.Name == "deepspeed-"+version+".tar.gz" })
		if i < 0 {
			t.Fatalf("no source distribution of %s", version)
		}
		var text []byte
		if err := client.Download(t.Context(), files[i], func(r io.Reader) (err error) {
			text, err = io.ReadAll(r)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		sources, err := Read(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		dir := unpacked(t, text)
		said, err := exec.CommandContext(t.Context(), "python3", "testdata/builders.py", filepath.Join(dir, "deepspeed-"+version)).Output()
		var builders map[string]struct {
			Class             string
			Sources, Includes []string
		}
		if err == nil {
			err = json.Unmarshal(said, &builders)
		}
		if err != nil || len(builders) < 15 {
			t.Fatalf("%s: %d builders, %v\n%s", version, len(builders), err, said)
		}
		for op, b := range builders {
			read, err := sources.builder(op)
			if err != nil {
				t.Errorf("%s: %s: %v", version, op, err)
				continue
			}
			b.Includes = slices.DeleteFunc(b.Includes, path.IsAbs)
			slices.Sort(read.sources) // the sources of a base class are read later
			slices.Sort(b.Sources)
			if !slices.Equal(read.sources, b.Sources) || strings.Join(read.includes, " ") != strings.Join(b.Includes, " ") {
				t.Errorf("%s: %s (%s): read %q and %q, want %q and %q", version, op, b.Class, read.sources, read.includes, b.Sources, b.Includes)
			}
		}
		t.Logf("result: DeepSpeed %s: the sources of %d ops", version, len(builders))
	}
}

// unpacked unpacks a source distribution.
func unpacked(t *testing.T, text []byte) string {
	t.Helper()
	dir := t.TempDir()
	unzipped, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.FromSlash(path.Clean("/"+h.Name)))
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(archive)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}
