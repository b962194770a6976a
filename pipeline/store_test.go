package pipeline

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// artifact puts a file that stands for a wheel, with its manifest, into a new
// directory.
func artifact(t *testing.T, name, content string) wheel.Artifact {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	sum, size, err := wheel.HashFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Place(file, wheel.Manifest{Name: name, Version: "1", SHA256: sum, Size: size}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestStore(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 2}
	if _, ok, err := s.Get("d1", t.TempDir()); ok || err != nil {
		t.Fatalf("an empty store: %v, %v", ok, err)
	}
	if err := s.Put("d1", artifact(t, "a-1.whl", "bytes")); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	a, ok, err := s.Get("d1", out)
	if !ok || err != nil || !a.Cached {
		t.Fatalf("%v, %v, %+v", ok, err, a)
	}
	if got, err := os.ReadFile(a.Path); err != nil || string(got) != "bytes" {
		t.Errorf("%q, %v", got, err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), ": OK") != 2 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestStoreDropsWhatIsDamaged(t *testing.T) {
	s := Store{Dir: t.TempDir(), Keep: 2}
	if err := s.Put("d1", artifact(t, "a-1.whl", "bytes")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "d1", "a-1.whl"), []byte("bytez"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if _, ok, err := s.Get("d1", out); ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	if left, _ := os.ReadDir(out); len(left) > 0 {
		t.Errorf("a damaged wheel left %v", left)
	}
}

func TestStorePrunes(t *testing.T) {
	s := Store{Dir: t.TempDir(), Keep: 2}
	for i := range 4 {
		if err := s.Put(fmt.Sprint("d", i), artifact(t, "a-1.whl", "bytes")); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

// fake is a builder that leaves a file instead of a wheel, or fails.
type fake struct {
	err  error
	make func(dir string) string
}

func (f fake) Name() string { return "fake" }
func (f fake) Build(_ context.Context, _ *Plan, dir string, _ io.Writer, _ ui.Reporter) (string, error) {
	if f.err != nil {
		return "", f.err
	}
	return f.make(dir), nil
}

func TestRunnerAnswersFromTheStore(t *testing.T) {
	p := plan(t, image(), Options{}, nil, "8.0")
	r := Runner{
		Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
		Builder: func(context.Context) (Builder, error) { return nil, errors.New("no engine") },
	}
	if _, err := r.Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "no engine") {
		t.Fatalf("nothing stored: %v", err)
	}
	if err := r.Store.Put(p.Digest, artifact(t, "a-1.whl", "bytes")); err != nil {
		t.Fatal(err)
	}
	if a, err := r.Run(t.Context(), p); err != nil || !a.Cached {
		t.Errorf("stored: %+v, %v", a, err)
	}
	p.Options.NoCache = true
	if _, err := r.Run(t.Context(), p); err == nil {
		t.Error("--no-cache read the store")
	}
}

func TestRunnerKeepsTheLogOfAFailure(t *testing.T) {
	p := plan(t, image(), Options{}, nil, "8.0")
	out := t.TempDir()
	r := Runner{
		Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: out, Report: ui.New(io.Discard, ui.Options{}), Logs: t.TempDir(),
		Builder: func(context.Context) (Builder, error) { return fake{err: errors.New("step compile: boom")}, nil },
	}
	_, err := r.Run(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatal(err)
	}
	if logs, _ := os.ReadDir(r.Logs); len(logs) != 1 {
		t.Errorf("logs %v", logs)
	}
	if left, _ := os.ReadDir(out); len(left) > 0 {
		t.Errorf("a failed build left %v", left)
	}
}

// A wheel whose manifest names another plan is not handed out, nor kept.
func TestRunnerRefusesAnotherPlansWheel(t *testing.T) {
	p := plan(t, image(), Options{}, nil, "8.0")
	build := func(digest string) func(string) string {
		return func(dir string) string {
			const name = "deepspeed-1-py3-none-any.whl"
			file := filepath.Join(dir, name)
			f, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			z := zip.NewWriter(f)
			w, err := z.Create("deepspeed-1.dist-info/" + wheel.ManifestName)
			if err == nil {
				_, err = fmt.Fprintf(w, `{"name":%q,"version":"1","plan_digest":%q}`, name, digest)
			}
			if err := errors.Join(err, z.Close(), f.Close()); err != nil {
				t.Fatal(err)
			}
			return file
		}
	}
	for digest, want := range map[string]string{p.Digest: "", "another": "its manifest names another plan"} {
		r := Runner{
			Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: t.TempDir(), Logs: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
			Builder: func(context.Context) (Builder, error) { return fake{make: build(digest)}, nil },
		}
		a, err := r.Run(t.Context(), p)
		left, _ := os.ReadDir(r.Dir)
		kept, _ := os.ReadDir(r.Store.Dir)
		if want == "" {
			if err != nil || a.Manifest.Builder != "fake" || a.Manifest.BuiltAt == nil || len(left) != 3 || len(kept) != 1 {
				t.Errorf("%+v, %v, left %v, kept %v", a, err, left, kept)
			}
			continue
		}
		var bad *wheel.AuditError
		if !errors.As(err, &bad) || bad.ExitCode() != 4 || !strings.Contains(err.Error(), want) || len(left)+len(kept) > 0 {
			t.Errorf("%v, left %v, kept %v", err, left, kept)
		}
	}
}
