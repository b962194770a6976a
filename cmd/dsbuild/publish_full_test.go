//go:build full

package main

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/destinations"
	"github.com/dsbuild/dsbuild/internal/testkit/pages"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// TestFullPublish uploads wheels by the commands of the pages, with the real clients: the same bytes arrive, a second run sends
// nothing, and other bytes under a published name are rejected.
func TestFullPublish(t *testing.T) {
	d := destinations.Start(t)
	u := &uploads{sandbox{dir: t.TempDir(), env: append(append(os.Environ(), d.Env...), "HOME="+t.TempDir())}}
	commands := u.read(t, d.Registry)
	if len(commands) != 4 { // the first uploads an index
		t.Fatalf("%d commands: %q", len(commands), commands)
	}
	for i, c := range []struct {
		name      string
		wheelOnly bool
		download  string // all published files, into got
		again     bool   // whether a second run succeeds
		rejected  string
	}{
		{"S3", false, "aws s3 cp --quiet --recursive s3://wheels/deepspeed got", true, "PreconditionFailed"},
		{"index", true, "cp -r " + d.Index + " got", false, "already"},
		{"registry", false, "for tag in $(oras repo tags " + d.Registry + "/team/wheels); do oras pull -o got " + d.Registry + "/team/wheels:$tag; done", true, "has other content"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := u.build(t, nil)
			if c.wheelOnly {
				for name := range want {
					if !strings.HasSuffix(name, ".whl") {
						delete(want, name)
					}
				}
			}
			u.runs(t, true, commands[i+1])
			u.arrived(t, c.download, want)
			said := u.runs(t, c.again, commands[i+1])
			if strings.Contains(said, "ETag") || strings.Contains(said, "Pushed") {
				t.Errorf("files were sent again:\n%s", said)
			}
			u.build(t, map[string]string{"deepspeed/version.py": "version = 'another'\n"})
			if said := u.runs(t, false, commands[i+1]); !strings.Contains(said, c.rejected) {
				t.Errorf("other content is not rejected with %q:\n%s", c.rejected, said)
			}
			u.arrived(t, c.download, want)
		})
	}
	t.Run("files of an index", func(t *testing.T) {
		u.build(t, nil)
		u.runs(t, true, "dsbuild index public")
		u.runs(t, true, commands[0])
		u.arrived(t, "aws s3 cp --quiet --recursive s3://wheels/index got", filesBelow(t, filepath.Join(u.dir, "public")))
	})
}

// uploads is a directory in which the commands run.
type uploads struct{ sandbox }

// read writes the files of docs/distribute.md, and returns the commands that this test runs.
func (u *uploads) read(t *testing.T, registry string) (commands []string) {
	t.Helper()
	p, err := pages.Read(filepath.Join(repository, "docs", "distribute.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range p.Blocks {
		if b.File != "" {
			text := strings.ReplaceAll(b.Text, "registry.example.org", registry)
			if err := os.WriteFile(filepath.Join(u.dir, b.File), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range b.Commands {
			if slices.Contains(c.Tests, "TestFullPublish") {
				commands = append(commands, c.Text)
			}
		}
	}
	return commands
}

// build puts a wheel and its sidecar files into dist, with other contents of these files, and returns what has to arrive.
func (u *uploads) build(t *testing.T, files map[string]string) map[string][]byte {
	t.Helper()
	dist := filepath.Join(u.dir, "dist")
	if err := os.RemoveAll(dist); err != nil {
		t.Fatal(err)
	}
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{Files: files})
	if _, err := pipeline.Export(t.Context(), pipeline.StoredWheel{File: file, Manifest: m, Provenance: statement}, dist); err != nil {
		t.Fatal(err)
	}
	want := filesBelow(t, dist)
	delete(want, "/"+wheel.SumsName)
	return want
}

// runs runs a command, which must succeed or fail, and returns its output.
func (u *uploads) runs(t *testing.T, succeeds bool, line string) string {
	t.Helper()
	said, code := u.sh(t, line, "")
	if (code == 0) != succeeds {
		t.Fatalf("%s: exit %d\n%s", line, code, said)
	}
	return said
}

// arrived downloads the published files, and compares them.
func (u *uploads) arrived(t *testing.T, download string, want map[string][]byte) {
	t.Helper()
	u.runs(t, true, "rm -rf got; "+download)
	if got := filesBelow(t, filepath.Join(u.dir, "got")); len(want) == 0 || !maps.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%q arrived, want %q, or their contents differ", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// filesBelow returns the files in a directory by their relative paths.
func filesBelow(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files[strings.TrimPrefix(path, dir)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
