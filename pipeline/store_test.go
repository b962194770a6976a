package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Get copies the wheel of a plan with its manifest into dir. It reports whether the store
// has the wheel undamaged.
func (s Store) Get(digest, dir string) (a wheel.Artifact, ok bool, err error) {
	passes := func(context.Context, string) error { return nil }
	ok, err = s.withStoredWheel(context.Background(), digest, passes, func(w StoredWheel) (err error) {
		a, err = Export(context.Background(), w, dir)
		a.Cached = true
		return err
	})
	return a, ok, err
}

// artifact puts a file that stands for a wheel, with its manifest, into a new
// directory.
func artifact(t *testing.T, plan, name, content string) wheel.Artifact {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	sum, size, err := wheel.HashFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Export(t.Context(), StoredWheel{file, wheel.Manifest{Name: name, Version: "1", SHA256: sum, Size: size, PlanDigest: plan}, []byte("{}\n")}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestStore(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "the[wheels]*"), Keep: 2}
	if _, ok, err := s.Get("d1", t.TempDir()); ok || err != nil {
		t.Fatalf("an empty store: %v, %v", ok, err)
	}
	if err := s.Put(t.Context(), "d1", artifact(t, "d1", "a-1.whl", "bytes")); err != nil {
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
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), ": OK") != 3 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestStoreDropsWhatIsDamaged(t *testing.T) {
	s := Store{Dir: t.TempDir(), Keep: 2}
	if err := s.Put(t.Context(), "d1", artifact(t, "d1", "a-1.whl", "bytes")); err != nil {
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

// Only files are listed among the sums: a pipe would be waited for.
func TestPlaceBesideWhatIsNoFile(t *testing.T) {
	a := artifact(t, "", "a-1-py3-none-any.whl", "wheel a")
	dir := filepath.Dir(a.Path)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "folder.whl"), 0o755), syscall.Mkfifo(filepath.Join(dir, "pipe.whl"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(t.Context(), StoredWheel{a.Path, a.Manifest, []byte("{}\n")}, dir); err != nil {
		t.Error(err)
	}
}

// Several builds put their wheels into one directory and one store at once:
// the sums name every file there is, and are true.
func TestPlaceAndPutAtOnce(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 100}
	out := t.TempDir()
	var wheels []wheel.Artifact
	for i := range 24 {
		wheels = append(wheels, artifact(t, fmt.Sprint("d", i/2), fmt.Sprintf("a-%d.whl", i/2), fmt.Sprint("bytes ", i/2)))
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	for i, a := range wheels {
		all.Go(func() {
			<-start
			digest := fmt.Sprint("d", i/2) // each twice
			if err := s.Put(t.Context(), digest, a); err != nil {
				t.Error(err)
			}
			if _, ok, err := s.Get(digest, out); !ok || err != nil {
				t.Errorf("%s: %v, %v", digest, ok, err)
			}
		})
	}
	close(start)
	all.Wait()
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), ": OK") != 12*3 {
		t.Errorf("%v\n%s", err, text)
	}
	if left, err := filepath.Glob(s.Dir + "/*"); err != nil || len(left) != 12+1 { // and .dsbuild.lock
		t.Errorf("%v, %v", left, err)
	}
}

func TestStorePrunes(t *testing.T) {
	s := Store{Dir: t.TempDir(), Keep: 2}
	killed, running, old := filepath.Join(s.Dir, ".new-1"), filepath.Join(s.Dir, ".new-2"), time.Now().Add(-25*time.Hour)
	if err := errors.Join(os.MkdirAll(filepath.Join(killed, "a"), 0o700), os.Mkdir(running, 0o700), os.Chtimes(killed, old, old)); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := s.Put(t.Context(), fmt.Sprint("d", i), artifact(t, fmt.Sprint("d", i), "a-1.whl", "bytes")); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := filepath.Glob(s.Dir + "/*"); err != nil || len(left) != 4 {
		t.Errorf("%v, %v; want .dsbuild.lock, .new-2 and two wheels", left, err)
	}
}

// fake is a builder whose strip step leaves a compiled wheel, or fails.
type fake struct {
	err      error
	compiled func(dir string)
	imported string // what the runner gave back
}

func (f *fake) Name() string { return "fake" }
func (f *fake) Open(context.Context, *Plan, Work) (Workspace, error) {
	return f, f.err
}
func (f *fake) Run(context.Context, ...Step) error { return nil }
func (f *fake) Import(_, dir string) error         { f.imported = dir; return nil }
func (f *fake) Export(_ context.Context, step, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if step == SmokeStep {
		return os.WriteFile(filepath.Join(dir, NotRunFile), []byte("this CPU is old"), 0o644)
	}
	f.compiled(dir)
	return nil
}

func TestRunnerAnswersFromTheStore(t *testing.T) {
	p := plan(t, image(), []string{"cpu_adam", "fused_adam"}, "8.0")
	r := Runner{
		Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
		Builder: func(context.Context) (Builder, error) { return nil, errors.New("no engine") },
	}
	put := func(digest string, opt wheeltest.Options) {
		t.Helper()
		file, m, statement := wheeltest.Built(t, t.TempDir(), opt)
		a, err := Export(t.Context(), StoredWheel{File: file, Manifest: m, Provenance: statement}, t.TempDir())
		if err == nil {
			err = r.Store.Put(t.Context(), digest, a)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ours := wheeltest.Options{Plan: p.Digest}
	for name, fill := range map[string]func(){
		"nothing":               func() {},
		"another plan's wheel":  func() { put(p.Digest, wheeltest.Options{}) },
		"a wheel without an op": func() { put(p.Digest, wheeltest.Options{Plan: p.Digest, Ops: wheeltest.DefaultOps()[:1]}) },
		"a file that is none":   func() { put(p.Digest, ours); damageStored(t, r.Store, p.Digest) },
	} {
		fill()
		if _, err := r.Run(t.Context(), p); err == nil || !strings.Contains(err.Error(), "no engine") {
			t.Errorf("stored: %s: %v, want a build", name, err)
		}
		if w, ok, err := r.Store.Find(t.Context(), p, p.Digest); ok || err != nil {
			t.Errorf("stored: %s: found %s, %v, want nothing", name, w.File, err)
		}
	}
	put(p.Digest, ours)
	if a, err := r.Run(t.Context(), p); err != nil || !a.Cached {
		t.Errorf("stored: %+v, %v", a, err)
	}
	for glibc, fits := range map[string]bool{"2.36": true, "2.5": false} {
		p.Parts[0].Toolchain.Glibc = glibc
		_, err := r.Run(t.Context(), p)
		if (err == nil) != fits || !fits && (fault.ExitCode(err) != fault.Wheel || !strings.Contains(fault.Hint(err), "--base")) {
			t.Errorf("stored, and asked for glibc %s: %v", glibc, err)
		}
	}
	r.NoCache = true
	if _, err := r.Run(t.Context(), p); err == nil {
		t.Error("--no-cache read the store")
	}
}

// damageStored makes the wheel of a plan in the store something that is no wheel, with the right sums.
func damageStored(t *testing.T, s Store, digest string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Dir, digest, "*"+wheel.ManifestSuffix))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v, want one manifest", found, err)
	}
	w, ok := readStored(filepath.Dir(found[0]), filepath.Base(found[0]), digest)
	if !ok {
		t.Fatal("the store has no wheel")
	}
	text := []byte("no wheel")
	w.Manifest.SHA256, w.Manifest.Size = fmt.Sprintf("%x", sha256.Sum256(text)), int64(len(text))
	manifest, err := json.Marshal(w.Manifest)
	if err = errors.Join(err, os.WriteFile(w.File, text, 0o644), os.WriteFile(w.File+wheel.ManifestSuffix, manifest, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// A wheel that does not match its own metadata is not signed.
func TestSignExportedVerifies(t *testing.T) {
	signed := 0
	sign := func(string) error { signed++; return nil }
	for _, d := range wheeltest.Damages() {
		if err := SignExported(t.Context(), d.Damaged(t, t.TempDir()), sign); fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), d.Finding) {
			t.Errorf("%s: %v, want %s", d.Name, err, d.Finding)
		}
	}
	if signed > 0 {
		t.Errorf("%d damaged wheels were signed", signed)
	}
	if err := SignExported(t.Context(), wheeltest.Packed(t, t.TempDir(), wheeltest.Options{}), sign); err != nil || signed != 1 {
		t.Errorf("%v, signed %d times, want once", err, signed)
	}
}

func TestRunnerKeepsTheLogOfAFailure(t *testing.T) {
	p := plan(t, image(), nil, "8.0")
	out := t.TempDir()
	r := Runner{
		Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: out, Report: ui.New(io.Discard, ui.Options{}), Logs: t.TempDir(),
		Builder: func(context.Context) (Builder, error) { return &fake{err: errors.New("step compile: boom")}, nil },
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

// The strip step's wheel is packed, audited and handed out, with its manifest
// and its statement; one that is not what was asked is not, nor kept.
func TestRunnerPacksAndAudits(t *testing.T) {
	p := plan(t, image(), []string{"cpu_adam", "fused_adam"}, "8.0")
	for name, c := range map[string]struct {
		ops  []wheeltest.Op
		want string
	}{
		"as asked":   {wheeltest.DefaultOps(), ""},
		"glibc":      {wheeltest.DefaultOps(), ", requested glibc 2.0"},
		"op missing": {wheeltest.DefaultOps()[:1], "op fused_adam was requested but is missing"},
	} {
		f := &fake{compiled: func(dir string) {
			wheeltest.Compiled(t, dir, wheeltest.Options{Ops: c.ops})
			for file, text := range map[string]string{
				BuildFile:    `{"gcc":"12.2.0","python":"3.11","torch":"2.15.0","cuda":"13.2","packages":[],"bytecode":{"magic":3495,"sha256":"ab"}}`,
				byteCodeFile: "byte code",
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}}
		r := Runner{
			Store: Store{Dir: t.TempDir(), Keep: 2}, Dir: t.TempDir(), Logs: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
			Builder: func(context.Context) (Builder, error) { return f, nil },
		}
		var said bytes.Buffer
		r.Report = ui.New(&said, ui.Options{})
		p.Parts[0].Toolchain.Glibc = map[string]string{"glibc": "2.0"}[name]
		a, err := r.Run(t.Context(), p)
		left, _ := filepath.Glob(r.Dir + "/[^.]*") // and .dsbuild.lock
		kept, _ := filepath.Glob(r.Store.Dir + "/[^.]*")
		if c.want == "" {
			if err != nil || a.Manifest.Builder != "fake" || a.Manifest.BuiltAt == nil || len(left) != 5 || len(kept) != 1 || f.imported == "" ||
				!strings.Contains(said.String(), "the ops were not run, because this CPU is old") {
				t.Errorf("%s: %+v, %v, left %v, kept %v, said %s", name, a, err, left, kept, &said)
			}
			again := t.TempDir()
			if _, ok, err := r.Store.Get(p.Digest, again); !ok || err != nil {
				t.Errorf("%s: not in the store: %v", name, err)
			}
			for _, dir := range []string{r.Dir, again} {
				if text, err := os.ReadFile(filepath.Join(dir, a.Manifest.Name+wheel.ByteCodeSuffix)); string(text) != "byte code" {
					t.Errorf("%s: beside the wheel in %s: %q, %v", name, dir, text, err)
				}
			}
			continue
		}
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), c.want) || len(left)+len(kept) > 0 {
			t.Errorf("%s: %v, left %v, kept %v", name, err, left, kept)
		}
	}
}

// An interrupted build does not wait until another process lets go of a folder.
func TestInterruptedWaitForALock(t *testing.T) {
	dir := t.TempDir()
	held := make(chan struct{})
	release := make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- withLock(context.Background(), dir, false, func() error { close(held); <-release; return nil })
	}()
	<-held
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	for _, shared := range []bool{true, false} {
		if err := withLock(ctx, dir, shared, func() error { return nil }); !errors.Is(err, why) {
			t.Errorf("shared %v: %v, want the reason of the interruption", shared, err)
		}
	}
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The folder of logs keeps the newest, and does not grow for ever.
func TestOldLogsGo(t *testing.T) {
	dir, p := t.TempDir(), plan(t, image(), nil, "8.0")
	for i := range keptLogs + 3 {
		name := filepath.Join(dir, fmt.Sprintf("wheel-%04d-x.log", i))
		old := time.Now().Add(time.Duration(i-1000) * time.Hour)
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Chtimes(name, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := createLog(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != keptLogs || filepath.Base(left[0]) != "wheel-0004-x.log" {
		t.Errorf("%d logs are left, the first %s; want %d, the newest", len(left), left[0], keptLogs)
	}
}
