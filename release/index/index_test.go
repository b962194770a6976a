package index_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
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

var (
	evening = time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	morning = evening.Add(12 * time.Hour)
)

// some are wheels that one page would mix up: two complete builds, one for a GPU, and one for a torch.
func some(t *testing.T) []string {
	t.Helper()
	older := wheeltest.OfKind(wheel.KindComplete)
	older.Version = "0.19.7"
	return []string{
		ofKind(t, wheel.KindComplete), ofKind(t, wheel.KindCustom), ofKind(t, wheel.KindTorch),
		build(t, t.TempDir(), older, evening),
	}
}

func ofKind(t *testing.T, kind wheel.Kind) string {
	t.Helper()
	return build(t, t.TempDir(), wheeltest.OfKind(kind), evening)
}

// commitOf are the options of a build of a commit.
func commitOf(digit string) wheeltest.Options {
	opt := wheeltest.OfKind(wheel.KindComplete)
	opt.Commit = strings.Repeat(digit, 40)
	return opt
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

// The directories of pages.
const (
	custom = "custom"
	torch  = "abi-torch"
)

// Each kind of builds has a page of its own: a label sorts after none, and 0.19.9 of a commit after all.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "www")
	arm := wheeltest.OfKind(wheel.KindComplete)
	arm.CPU = wheel.CPUArm
	commit := commitOf("1")
	commit.Version = "0.19.9"
	wheels := append(some(t), ofKind(t, wheel.KindAllOps), build(t, t.TempDir(), arm, evening), build(t, t.TempDir(), commit, morning))
	sum := write(t, index.Options{Dir: dir, Wheels: wheels, URL: "https://wheels.example.org/ds"})
	got := map[string][]string{}
	for _, page := range sum.Indexes {
		for _, w := range page.Wheels {
			got[page.URL] = append(got[page.URL], w.Version)
			if w.Yanked != "" {
				t.Errorf("%s is yanked: %s", w.Name, w.Yanked)
			}
		}
	}
	want := map[string][]string{
		"https://wheels.example.org/ds/":           {"0.19.8", "0.19.8", "0.19.7"},
		"https://wheels.example.org/ds/all-ops/":   {"0.19.8+allops"},
		"https://wheels.example.org/ds/custom/":    {"0.19.9+g1111111", "0.19.8+sm80"},
		"https://wheels.example.org/ds/abi-torch/": {"0.19.8+torch2.15.cu132.sm80.v3"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) || sum.Indexes[0].Kind != wheel.KindComplete {
		t.Errorf("pages %q, the first %s; want %q", got, sum.Indexes[0].Kind, want)
	}
	for _, suffix := range []string{"", wheel.ManifestSuffix, wheel.ProvenanceSuffix, wheel.ByteCodeSuffix} {
		a, errA := os.ReadFile(wheels[0] + suffix)
		b, errB := os.ReadFile(filepath.Join(dir, "deepspeed", filepath.Base(wheels[0])+suffix))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%q is not carried: %v, %v", suffix, errA, errB)
		}
	}
	if v, err := wheel.Verify(t.Context(), filepath.Join(dir, "deepspeed", filepath.Base(wheels[0]))); err != nil || v.Err() != nil {
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

// A file that an index has is not replaced, even by a build of the same plan.
func TestNeverReplaces(t *testing.T) {
	dir := t.TempDir()
	opt := wheeltest.OfKind(wheel.KindComplete)
	first := build(t, t.TempDir(), opt, evening)
	write(t, index.Options{Dir: dir, Wheels: []string{first}})
	before := tree(t, dir)
	opt.Files = map[string]string{"deepspeed/others.py": "answer = 42\n"}
	second := build(t, t.TempDir(), opt, morning)
	_, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{second}})
	if err == nil || !strings.Contains(err.Error(), "already has another "+filepath.Base(first)) || filepath.Base(first) != filepath.Base(second) {
		t.Errorf("%s over %s: %v; want an error", second, first, err)
	}
	after := tree(t, dir)
	delete(before, ".dsbuild-index.lock")
	delete(after, ".dsbuild-index.lock")
	if !maps.EqualFunc(before, after, time.Time.Equal) {
		t.Errorf("files %v after the error; want %v", after, before)
	}
	// The same bytes in another place are no other file.
	moved := filepath.Join(t.TempDir(), filepath.Base(first))
	if err := os.Rename(first, moved); err != nil {
		t.Fatal(err)
	}
	write(t, index.Options{Dir: dir, Wheels: []string{moved}})
}

// Of two builds of one version installers take that of the newer recipe. If they would take the older one, for its tag, it is yanked.
func TestBuildsOfOneVersion(t *testing.T) {
	older, newer := wheeltest.OfKind(wheel.KindComplete), wheeltest.OfKind(wheel.KindComplete)
	older.Plan, newer.Plan = strings.Repeat("f", 64), strings.Repeat("1", 64)
	for _, c := range []struct {
		what           string
		older, newer   int // their recipes
		imports        []string
		platform, yank string
	}{
		{"another recipe", 9, 10, nil, "manylinux_2_17", ""},
		{"the same recipe", 9, 9, nil, "manylinux_2_17", "superseded by "},
		{"another recipe, a newer glibc before", 9, 10, []string{"getrandom"}, "manylinux_2_2", "superseded by "},
	} {
		older.Recipe, newer.Recipe = c.older, c.newer
		older.Ops = slices.Clone(older.Ops)
		older.Ops[0].Imports = c.imports
		wheels := []string{build(t, t.TempDir(), older, evening), build(t, t.TempDir(), newer, morning)}
		got := write(t, index.Options{Dir: t.TempDir(), Wheels: wheels}).Indexes[0].Wheels
		if c.yank != "" {
			c.yank += filepath.Base(wheels[1])
		}
		if len(got) != 2 || got[0].Name != filepath.Base(wheels[1]) || got[0].Yanked != "" || got[1].Yanked != c.yank || !strings.Contains(got[1].Name, c.platform) {
			t.Errorf("%s: %+v; want the newer one first, and the older one, %s, with yanked %q", c.what, got, c.platform, c.yank)
		}
	}
}

// A wheel whose file name has the build tag of another plan is damaged.
func TestForeignBuildTag(t *testing.T) {
	file := ofKind(t, wheel.KindComplete)
	renamed := filepath.Join(t.TempDir(), strings.Replace(filepath.Base(file), "-1_cdcdcdcd-", "-2_cdcdcdcd-", 1))
	if err := os.Rename(file, renamed); err != nil {
		t.Fatal(err)
	}
	_, err := index.Write(t.Context(), index.Options{Dir: t.TempDir(), Wheels: []string{renamed}})
	if err == nil || !strings.Contains(err.Error(), "build tag") || fault.ExitCode(err) != 4 {
		t.Errorf("%v; want the build tag and exit code 4", err)
	}
}

// A wheel that is as it was when it was verified is not opened again, in its folder or in the index.
func TestUnchangedWheelsAreNotOpened(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "www")
	file := ofKind(t, wheel.KindCustom)
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	at := filepath.Join(dir, custom, "deepspeed", filepath.Base(file))
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

// What is not wanted any more goes, and what others put there stays.
func TestRemoves(t *testing.T) {
	dir := t.TempDir()
	wheels := some(t)
	write(t, index.Options{Dir: dir, Wheels: wheels})
	foreign := filepath.Join(dir, custom, "deepspeed", "notes.txt")
	if err := os.WriteFile(foreign, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := write(t, index.Options{Dir: dir, Wheels: wheels[:1]})
	if sum.Removed == 0 {
		t.Error("nothing was removed")
	}
	left := tree(t, dir)
	for name := range left {
		if !strings.HasPrefix(name, "deepspeed/") && strings.Contains(name, "/") && filepath.Join(dir, name) != foreign {
			t.Errorf("%s is still there", name)
		}
	}
	if _, ok := left[custom+"/deepspeed/notes.txt"]; !ok {
		t.Error("a file that is not ours went")
	}
	if _, err := os.Stat(filepath.Join(dir, torch)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder is left: %v", err)
	}
	if list, err := os.ReadFile(filepath.Join(dir, "index.json")); err != nil || strings.Contains(string(list), custom) {
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
	opt := wheeltest.OfKind(wheel.KindTorch)
	opt.Plan = strings.Repeat("ef", 32)
	twin := build(t, t.TempDir(), opt, evening)
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
		"two of one name":     {"", []string{wheels[2], twin}, "duplicate wheel name deepspeed-0.19.8+torch2.15.cu132.sm80.v3", 2},
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
		"a folder": func(_, dir, elsewhere string) string { link(elsewhere, at(dir, custom)); return at(dir, custom) },
		"folder inside": func(_, dir, elsewhere string) string {
			link(elsewhere, at(dir, custom, "deepspeed"))
			return at(dir, custom, "deepspeed")
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
		file := ofKind(t, wheel.KindCustom)
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
	file := ofKind(t, wheel.KindCustom)
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	if err := os.CopyFS(elsewhere, os.DirFS(at(dir, custom))); err != nil {
		t.Fatal(err)
	}
	link(elsewhere, at(dir, custom))
	before := tree(t, elsewhere)
	other := ofKind(t, wheel.KindComplete)
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
	newer, older := build(t, t.TempDir(), commitOf("1"), morning), build(t, t.TempDir(), commitOf("f"), evening)
	dir := t.TempDir()
	sum := write(t, index.Options{Dir: dir, Wheels: []string{older, newer, ofKind(t, wheel.KindComplete)}})
	if len(sum.Indexes) != 2 || sum.Indexes[1].Path != custom+"/" || len(sum.Indexes[1].Wheels) != 2 {
		t.Fatalf("%+v", sum.Indexes)
	}
	first, second := sum.Indexes[1].Wheels[0], sum.Indexes[1].Wheels[1]
	if first.Yanked != "" || !strings.Contains(first.Version, "g1111111") || second.Yanked != "superseded by "+first.Name {
		t.Errorf("%+v\n%+v", first, second)
	}
	page, err := os.ReadFile(filepath.Join(dir, custom, "deepspeed", "index.html"))
	if err != nil || strings.Count(string(page), "data-yanked=") != 1 {
		t.Errorf("%v\n%s", err, page)
	}
}

// The newest release comes first: a pre-release is older than its release.
func TestPreReleasesComeAfterTheirRelease(t *testing.T) {
	var wheels []string
	for _, version := range []string{"0.19.8rc1", "0.19.9.dev3", "0.19.8", "0.19.10", "0.19.8.post1"} {
		opt := wheeltest.OfKind(wheel.KindComplete)
		opt.Version = version
		wheels = append(wheels, build(t, t.TempDir(), opt, evening))
	}
	var got []string
	for _, w := range write(t, index.Options{Dir: t.TempDir(), Wheels: wheels}).Indexes[0].Wheels {
		got = append(got, w.Version)
	}
	if want := []string{"0.19.10", "0.19.9.dev3", "0.19.8.post1", "0.19.8", "0.19.8rc1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What pages say of a wheel is so.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	file := ofKind(t, wheel.KindCustom)
	write(t, index.Options{Dir: dir, Wheels: []string{file}})
	at := filepath.Join(dir, custom, "deepspeed")
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
		`data-requires-python="&gt;=3.10"`,
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
