package index_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/index"
	"github.com/dsbuild/dsbuild/wheel"
)

// build makes a wheel with what lies beside it.
func build(t *testing.T, dir string, opt wheeltest.Options, at time.Time) string {
	t.Helper()
	file, m, statement := wheeltest.Built(t, dir, opt)
	m.BuiltAt = &at
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, text := range map[string]string{wheel.ManifestSuffix: string(text), wheel.ProvenanceSuffix: string(statement), wheel.ByteCodeSuffix: "code"} {
		if err := atomicfile.Write(file+suffix, strings.NewReader(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

// device are operators of which one has device code for these.
func device(archs ...string) []wheeltest.Op {
	return []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}, {Name: "fused_adam", Dir: "adam", SASS: archs}}
}

var (
	evening = time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	morning = evening.Add(12 * time.Hour)
)

// some are wheels that one index would mix up.
func some(t *testing.T) []string {
	t.Helper()
	return []string{
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0")}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: device("9.0")}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Torch: "2.14.1", CUDA: "13.0"}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Version: "0.19.7"}, evening),
	}
}

func write(t *testing.T, opt index.Options) index.Summary {
	t.Helper()
	sum, err := index.Write(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// tree lists the files of a folder with their times.
func tree(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		all[strings.TrimPrefix(path, dir+"/")] = info.ModTime()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	sm80 = "torch2.15-cu132-sm80-v3"
	sm90 = "torch2.15-cu132-sm90-v3"
	old  = "torch2.14-cu130-sm80-v3"
)

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "www")
	wheels := some(t)
	sum := write(t, index.Options{Dir: dir, Wheels: wheels, URL: "https://wheels.example.org/ds"})
	var names []string
	for _, tc := range sum.Indexes {
		names = append(names, tc.Name)
		if tc.URL != "https://wheels.example.org/ds/"+tc.Name+"/" {
			t.Error(tc.URL)
		}
	}
	if !slices.Equal(names, []string{sm80, sm90, old}) {
		t.Errorf("indexes %q", names)
	}
	if got := sum.Indexes[0].Wheels; len(got) != 2 || got[0].Version != "0.19.8+torch2.15.cu132.sm80.v3" || got[1].Yanked != "" {
		t.Errorf("%+v", got)
	}
	for _, suffix := range []string{"", wheel.ManifestSuffix, wheel.ProvenanceSuffix, wheel.ByteCodeSuffix} {
		a, errA := os.ReadFile(wheels[0] + suffix)
		b, errB := os.ReadFile(filepath.Join(dir, sm80, "deepspeed", filepath.Base(wheels[0])+suffix))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%q is not carried: %v, %v", suffix, errA, errB)
		}
	}
	if v, err := wheel.Verify(t.Context(), filepath.Join(dir, sm80, "deepspeed", filepath.Base(wheels[0]))); err != nil || v.Err() != nil {
		t.Errorf("where it lies now: %v, %+v", err, v.Findings())
	}

	before := tree(t, dir)
	sum = write(t, index.Options{Dir: dir, Wheels: wheels, URL: "https://wheels.example.org/ds"})
	if sum.Written != 0 || sum.Removed != 0 {
		t.Errorf("again: %d written, %d removed", sum.Written, sum.Removed)
	}
	for name, at := range tree(t, dir) {
		if !before[name].Equal(at) && !strings.HasSuffix(name, ".lock") {
			t.Errorf("%s was written again", name)
		}
	}
}

// What is not wanted any more goes, and what others put there stays.
// A wheel that is as it was when it was verified is not opened again, in its folder or in the index.
func TestUnchangedWheelsAreNotOpened(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "www")
	file := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0")}, evening)
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	at := filepath.Join(dir, sm80, "deepspeed", filepath.Base(file))
	for _, spoiled := range []string{file, at} {
		info, err := os.Stat(spoiled)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(spoiled, make([]byte, info.Size()), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(spoiled, time.Time{}, info.ModTime()); err != nil {
			t.Fatal(err)
		}
		if sum := write(t, index.Options{Dir: dir, Wheels: []string{file}}); sum.Written+sum.Removed > 0 {
			t.Errorf("%s: %d files written, %d removed", spoiled, sum.Written, sum.Removed)
		}
	}
	if err := os.Chtimes(file, time.Time{}, morning); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{file}}); err == nil {
		t.Error("a wheel with a new time is not verified")
	}
}

func TestRemoves(t *testing.T) {
	dir := t.TempDir()
	wheels := some(t)
	write(t, index.Options{Dir: dir, Wheels: wheels})
	foreign := filepath.Join(dir, sm90, "deepspeed", "notes.txt")
	if err := os.WriteFile(foreign, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := write(t, index.Options{Dir: dir, Wheels: wheels[:1]})
	if sum.Removed == 0 {
		t.Error("nothing was removed")
	}
	left := tree(t, dir)
	for name := range left {
		if !strings.HasPrefix(name, sm80+"/") && strings.Contains(name, "/") && filepath.Join(dir, name) != foreign {
			t.Errorf("%s is still there", name)
		}
	}
	if _, ok := left[sm90+"/deepspeed/notes.txt"]; !ok {
		t.Error("a file that is not ours went")
	}
	if _, err := os.Stat(filepath.Join(dir, old)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder is left: %v", err)
	}
	if list, err := os.ReadFile(filepath.Join(dir, "index.json")); err != nil || strings.Contains(string(list), sm90) {
		t.Errorf("index.json still names what is gone: %v", err)
	}
}

// A run that is killed leaves what the next one finishes: the mark lists files
// before they come.
func TestContinues(t *testing.T) {
	dir := t.TempDir()
	wheels := some(t)
	write(t, index.Options{Dir: dir, Wheels: wheels})
	whole := tree(t, dir)
	for name := range whole {
		if strings.HasSuffix(name, "index.html") || strings.HasSuffix(name, ".metadata") {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, index.Options{Dir: dir, Wheels: wheels})
	if got := tree(t, dir); len(got) != len(whole) {
		t.Errorf("%d files, want %d", len(got), len(whole))
	}
	ctx, stop := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	stop(interrupted)
	if _, err := index.Write(ctx, index.Options{Dir: dir, Wheels: wheels[:1]}); !errors.Is(err, interrupted) {
		t.Error(err)
	}
	if got := tree(t, dir); len(got) != len(whole) {
		t.Errorf("after an interrupt: %d files, want %d", len(got), len(whole))
	}
}

func TestRefuses(t *testing.T) {
	wheels := some(t)
	twin := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Plan: strings.Repeat("ef", 32)}, evening)
	torn := filepath.Join(t.TempDir(), filepath.Base(wheels[0]))
	if err := os.WriteFile(torn, []byte("PK no wheel"), 0o644); err != nil {
		t.Fatal(err)
	}
	occupied := t.TempDir()
	if err := os.WriteFile(filepath.Join(occupied, "index.json"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		dir    string
		wheels []string
		want   string
		code   int
	}{
		"nothing":             {"", nil, "no wheels for the index", 2},
		"two of one name":     {"", []string{wheels[0], twin}, "duplicate wheel name deepspeed-0.19.8+torch2.15.cu132.sm80.v3", 2},
		"a damaged one":       {"", []string{wheels[0], torn}, torn, 4},
		"a file of another's": {occupied, wheels, "index.json already exists", 2},
	} {
		dir := c.dir
		if dir == "" {
			dir = filepath.Join(t.TempDir(), "www")
		}
		_, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: c.wheels})
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &coded) || coded.ExitCode() != c.code {
			t.Errorf("%s: %v", what, err)
		}
		if c.dir == "" {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: something was written (%v)", what, err)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(occupied, "index.json")); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
}

// What a symbolic link points at is not published, and nothing is written where
// one points.
func TestRefusesLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(dir string, path ...string) string { return filepath.Join(append([]string{dir}, path...)...) }
	link := func(to, name string) {
		if err := errors.Join(os.RemoveAll(name), os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	for what, plant := range map[string]func(file, dir, elsewhere string) (planted string){
		"a wheel": func(file, _, elsewhere string) string {
			moved := at(elsewhere, filepath.Base(file))
			if err := os.Rename(file, moved); err != nil {
				t.Fatal(err)
			}
			link(moved, file)
			return file
		},
		"a manifest": func(file, _, _ string) string {
			link(secret, file+wheel.ManifestSuffix)
			return file + wheel.ManifestSuffix
		},
		"a provenance": func(file, _, _ string) string {
			link(secret, file+wheel.ProvenanceSuffix)
			return file + wheel.ProvenanceSuffix
		},
		"byte code": func(file, _, _ string) string {
			link(secret, file+wheel.ByteCodeSuffix)
			return file + wheel.ByteCodeSuffix
		},
		"a folder": func(_, dir, elsewhere string) string { link(elsewhere, at(dir, sm80)); return at(dir, sm80) },
		"folder inside": func(_, dir, elsewhere string) string {
			link(elsewhere, at(dir, sm80, "deepspeed"))
			return at(dir, sm80, "deepspeed")
		},
		"the mark": func(_, dir, _ string) string {
			link(secret, at(dir, ".dsbuild-index.json"))
			return at(dir, ".dsbuild-index.json")
		},
		"the lock": func(_, dir, elsewhere string) string {
			link(at(elsewhere, "new"), at(dir, ".dsbuild-index.lock"))
			return at(dir, ".dsbuild-index.lock")
		},
	} {
		file := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0")}, evening)
		dir, elsewhere := t.TempDir(), t.TempDir()
		planted := plant(file, dir, elsewhere)
		before := tree(t, elsewhere)
		_, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{file}})
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), planted+" is a symbolic link") || !errors.As(err, &coded) || coded.ExitCode() != 2 {
			t.Errorf("%s: %v", what, err)
		}
		if after := tree(t, elsewhere); len(after) != len(before) {
			t.Errorf("%s: written where it points: %v", what, after)
		}
		for name := range tree(t, dir) {
			if text, _ := os.ReadFile(at(dir, name)); strings.Contains(string(text), "s3cret") && at(dir, name) != planted {
				t.Errorf("%s: published as %s", what, name)
			}
		}
	}
	// A folder that was real becomes a link: what it points at is not removed.
	file := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0")}, evening)
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	if err := os.CopyFS(elsewhere, os.DirFS(at(dir, sm80))); err != nil {
		t.Fatal(err)
	}
	link(elsewhere, at(dir, sm80))
	before := tree(t, elsewhere)
	other := build(t, t.TempDir(), wheeltest.Options{Ops: device("9.0")}, evening)
	if _, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{other}}); err == nil {
		t.Error("a folder that became a link is accepted")
	}
	if after := tree(t, elsewhere); len(after) != len(before) {
		t.Errorf("removed where it points: %v", after)
	}
}

// A file where the folder belongs is named, and not what would be in it.
func TestFileForFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := index.Write(t.Context(), index.Options{Dir: file, Wheels: some(t)})
	if err == nil || err.Error() != file+": not a directory" || fault.Hint(err) != "choose a directory" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}

// The mark of an index is read by the next run: it must not lead out of the folder.
func TestHostileMark(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(filepath.Dir(dir), "victim")
	if err := os.WriteFile(victim, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"files":["../victim"]}`, `{"files":["` + victim + `"]}`, `{`} {
		if err := os.WriteFile(filepath.Join(dir, ".dsbuild-index.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: some(t)}); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

// Of builds of several commits, whose versions sort by their hashes, installers
// are offered the newest.
func TestSupersedes(t *testing.T) {
	newer := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Commit: strings.Repeat("1", 40)}, morning)
	older := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Commit: strings.Repeat("f", 40)}, evening)
	dir := t.TempDir()
	sum := write(t, index.Options{Dir: dir, Wheels: []string{older, newer}})
	if len(sum.Indexes) != 1 || sum.Indexes[0].Name != sm80+"-dev" || !sum.Indexes[0].Dev {
		t.Fatalf("%+v", sum.Indexes)
	}
	first, second := sum.Indexes[0].Wheels[0], sum.Indexes[0].Wheels[1]
	if first.Yanked != "" || !strings.Contains(first.Version, "g1111111") || second.Yanked != "superseded by "+first.Version {
		t.Errorf("%+v\n%+v", first, second)
	}
	page, err := os.ReadFile(filepath.Join(dir, sm80+"-dev", "deepspeed", "index.html"))
	if err != nil || strings.Count(string(page), "data-yanked=") != 1 {
		t.Errorf("%v\n%s", err, page)
	}
}

// The newest release comes first: a pre-release is older than its release.
func TestPreReleasesComeAfterTheirRelease(t *testing.T) {
	var wheels []string
	for _, version := range []string{"0.19.8rc1", "0.19.9.dev3", "0.19.8", "0.19.10", "0.19.8.post1"} {
		wheels = append(wheels, build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Version: version}, evening))
	}
	var got []string
	for _, w := range write(t, index.Options{Dir: t.TempDir(), Wheels: wheels}).Indexes[0].Wheels {
		version, _, _ := strings.Cut(w.Version, "+")
		got = append(got, version)
	}
	if want := []string{"0.19.10", "0.19.9.dev3", "0.19.8.post1", "0.19.8", "0.19.8rc1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What pages say of a wheel is so.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	file := some(t)[0]
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	at := filepath.Join(dir, sm80, "deepspeed")
	page, err := os.ReadFile(filepath.Join(at, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	sum, _, err := wheel.HashFile(filepath.Join(at, filepath.Base(file)))
	metadata, _, errMetadata := wheel.HashFile(filepath.Join(at, filepath.Base(file)+".metadata"))
	if err := errors.Join(err, errMetadata); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`href="` + strings.ReplaceAll(filepath.Base(file), "+", "%2B") + "#sha256=" + sum + `"`,
		`data-core-metadata="sha256=` + metadata + `"`, `data-dist-info-metadata="sha256=` + metadata + `"`,
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	if text, err := os.ReadFile(filepath.Join(at, filepath.Base(file)+".metadata")); err != nil || !strings.HasPrefix(string(text), "Metadata-Version: ") {
		t.Errorf("%v, %.40q", err, text)
	}
}

// asked notes which files a server was asked for.
type asked struct {
	mu    sync.Mutex
	paths []string
}

func (a *asked) serve(t *testing.T, h http.Handler) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.paths = append(a.paths, r.URL.Path)
		a.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// pip and uv install by name, from a web server that knows nothing of packages, and from files; what they get is what was built for
// this toolchain.
func TestInstall(t *testing.T) {
	needs.Time(t)
	py, err := python.Find(t.Context(), "3.11")
	if err != nil {
		needed(t, err)
	}
	uv, err := python.GetUV(t.Context(), py, func(line string) { t.Log(line) })
	if err != nil {
		needed(t, err)
	}
	env := filepath.Join(t.TempDir(), "venv")
	if err := uv.Run(t.Context(), "venv", "--quiet", "--seed", "--no-project", "--python", py, env); err != nil { // with pip
		needed(t, err)
	}
	inside := filepath.Join(env, "bin", "python")

	dir := t.TempDir()
	write(t, index.Options{Dir: dir, Wheels: some(t)})
	var plain asked
	bases := map[string]string{
		"plain server": plain.serve(t, http.FileServer(http.Dir(dir))), "files": "file://" + dir,
	}
	run := []string{"PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INDEX=", "PIP_EXTRA_INDEX_URL=", "PIP_FIND_LINKS="}
	installers := map[string]func(at string) error{
		"pip": func(at string) error {
			return python.Run(t.Context(), run, inside, "-m", "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps", "--index-url", at, "deepspeed")
		},
		"uv": func(at string) error {
			return uv.Run(t.Context(), "pip", "install", "--no-cache", "--reinstall", "--no-deps", "--python", inside, "--index-url", at, "deepspeed")
		},
	}
	for where, base := range bases {
		for who, install := range installers {
			for name, want := range map[string]string{sm80: "0.19.8+torch2.15.cu132.sm80.v3", old: "0.19.8+torch2.14.cu130.sm80.v3"} {
				if name == old && who == "pip" { // it takes seconds
					continue
				}
				if err := install(base + "/" + name + "/"); err != nil {
					t.Errorf("%s, %s, %s: %v", who, where, name, err)
					continue
				}
				out, err := exec.CommandContext(t.Context(), inside, "-c", "import importlib.metadata; print(importlib.metadata.version('deepspeed'))").Output()
				if got := strings.TrimSpace(string(out)); err != nil || got != want {
					t.Errorf("%s, %s: %s has %s, %v", who, where, name, got, err)
				}
			}
		}
	}
	if !slices.ContainsFunc(plain.paths, func(p string) bool { return strings.HasSuffix(p, ".whl.metadata") }) {
		t.Errorf("nobody asked for the metadata beside a wheel: %q", plain.paths)
	}

	// A wheel whose bytes are not those that the page promises is refused.
	files, err := filepath.Glob(filepath.Join(dir, sm80, "deepspeed", "*.whl"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, append(text, 0), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for who, install := range installers {
		if err := install("file://" + dir + "/" + sm80 + "/"); err == nil || !strings.Contains(strings.ToLower(err.Error()), "hash") {
			t.Errorf("%s, another wheel than was promised: %v", who, err)
		}
	}
}

// needed skips where a part is missing, which in CI is a failure.
func needed(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// Where three torches and two Pythons need six wheels in three indexes, a wheel of the stable ABI
// is one file in one index. pip may install it with every Python from 3.10 on.
func TestOneWheelForSeveralTorches(t *testing.T) {
	var six []string
	for _, torch := range [][2]string{{"2.15.0", "13.2"}, {"2.14.1", "13.0"}, {"2.13.0", "13.0"}} {
		for _, python := range []string{"cp311", "cp312"} {
			six = append(six, build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Torch: torch[0], CUDA: torch[1], Python: python}, evening))
		}
	}
	stable := build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), Stable: "2.10"}, evening)
	for _, c := range []struct {
		wheels         []string
		indexes, files int
	}{{six, 3, 6}, {[]string{stable}, 1, 1}, {append(six, stable), 4, 7}} {
		dir := t.TempDir()
		sum := write(t, index.Options{Dir: dir, Wheels: c.wheels})
		files := 0
		for _, tc := range sum.Indexes {
			files += len(tc.Wheels)
		}
		if len(sum.Indexes) != c.indexes || files != c.files {
			t.Errorf("%d wheels: %d files in %d indexes, want %d in %d", len(c.wheels), files, len(sum.Indexes), c.files, c.indexes)
		}
	}
	dir := t.TempDir()
	tc := write(t, index.Options{Dir: dir, Wheels: []string{stable}}).Indexes[0]
	if w := tc.Wheels[0]; tc.Name != "torch2.10-cu13-sm80-v3" || tc.Torch != "2.10" || tc.CUDA != "13" || w.Python != "3.10+" || !strings.Contains(w.Name, "-py3-none-") {
		t.Errorf("%+v", tc)
	}
	page, err := os.ReadFile(filepath.Join(dir, tc.Name, "deepspeed", "index.html"))
	if err != nil || strings.Count(string(page), "<a ") != 1 || !strings.Contains(string(page), `data-requires-python="&gt;=3.10"`) {
		t.Errorf("%v\n%s", err, page)
	}
}
