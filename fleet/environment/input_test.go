package environment

import (
	"archive/tar"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// A requirement that uv cannot parse is a mistake with its place: conda's numpy=2 is not the name of a
// package that no index has. uv parses every requirement that is read.
func TestRequirementsAsUVReadsThem(t *testing.T) {
	t.Parallel()
	mistake := func(q string) string {
		_, err := parse("e.yaml", []byte("name: a\npython: 3.11\nrequirements:\n- '"+strings.ReplaceAll(q, "'", "''")+"'\n"))
		if err == nil {
			return ""
		}
		return err.Error()
	}
	for _, q := range []string{
		"numpy=2", "numpy 2", "num py", "numpy>>2", "numpy=>2", "numpy>=", "numpy>=2 <3", "numpy>=2|3", "numpy>=2 # why", "numpy;", "numpy-", "numpy[a", "numpy[a,]", "numpy >= latest",
		"numpy>=2.*", "numpy~=2", "numpy>1.0+local", "numpy(>=2", "numpy>=2)", "numpy,>=2", "numpy>=2,,<3", "numpy==2==3", ">=2", "nümpy", "numpy==2.*.1",
	} {
		if said := mistake(q); !strings.HasPrefix(said, fmt.Sprintf("e.yaml:4:3: invalid requirement %q", q)) {
			t.Errorf("%q: %s", q, said)
		}
	}
	good := []string{
		"numpy", "n", "1numpy", "zope.interface", "numpy[]", "numpy==2.*", "numpy!=2.*,>1", "numpy~=2.0", "numpy~=1!2.0.1", "numpy==1.0+local.1", "numpy (>=2)", "numpy>=2,", "numpy===2.0",
		"numpy [a, b] >=2, <3 ; python_version < '3.12'", "numpy>=v2.0rc1.post1", "numpy>=2.0-1", "numpy; sys_platform == 'linux' and extra != 'x'",
	}
	for _, q := range good {
		if said := mistake(q); said != "" {
			t.Errorf("%q: %s", q, said)
		}
	}
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 4000 {
		q := pick("numpy", "a-b", "A.b_c", "x1") + pick("", "", " ", "[e]", "[e,f]", " [e] ", "[", "]")
		for range r.IntN(3) {
			q += pick("", " ", ",", ", ") + pick("==", ">=", "<", "~=", "!=", "===", "=", ">", "<=", "=>", "") + pick("", " ") + pick("2", "2.0", "1.0rc1", "2.1.*", "1!2.0", "2.0+cpu", "latest", "1.0.dev3", "2.0a", "2..0", "2.0_1", "")
		}
		if q += pick("", "", " ", ";"); mistake(q) == "" {
			good = append(good, q)
		}
	}
	if len(good) < 200 {
		t.Errorf("only %d requirements are right", len(good))
	}
	interpreter, err := python.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	uv, err := python.GetUV(t.Context(), interpreter, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "requirements.in")
	if err := os.WriteFile(file, []byte(strings.Join(good, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), uv.Program(), "pip", "compile", file, "--no-index", "--no-deps", "--offline", "--no-config", "--python", interpreter, "--quiet")
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != noSolution || strings.Contains(string(said), "parse") {
		t.Errorf("uv of %d requirements: %v\n%s", len(good), err, said)
	}
}

// A link of an accepted archive leads nowhere else on a real disk, also through other links.
func TestLinksOfArchivesStayInside(t *testing.T) {
	t.Parallel()
	const seed = 5
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	random := func() []tar.Header {
		var more []tar.Header
		for i := range 2 + r.IntN(2) {
			dir := []string{"python/", "python/bin/"}[r.IntN(2)]
			var parts []string
			for range 1 + r.IntN(4) {
				parts = append(parts, []string{"..", "..", ".", "bin", "l0", "l1"}[r.IntN(6)])
			}
			more = append(more, tar.Header{Name: fmt.Sprintf("%sl%d", dir, i), Typeflag: tar.TypeSymlink, Linkname: strings.Join(parts, "/")})
		}
		return more
	}
	through := []tar.Header{{Name: "python/bin/l0", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "python/l1", Typeflag: tar.TypeSymlink, Linkname: "bin/l0/../.."}}
	accepted := 0
	for i := range 150 {
		more := through
		if i > 0 {
			more = random()
		}
		if _, err := OpenArchive(packed(t, more...)); err != nil {
			continue
		}
		accepted++
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(root, "python/bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, h := range more {
			if err := os.Symlink(h.Linkname, filepath.Join(root, h.Name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, h := range more {
			if real, err := filepath.EvalSymlinks(filepath.Join(root, h.Name)); err == nil && real != root && !strings.HasPrefix(real, root+"/") {
				t.Fatalf("%s of %+v leads to %s, out of %s", h.Name, more, real, root)
			}
		}
	}
	if accepted < 20 {
		t.Errorf("only %d archives were accepted", accepted)
	}
}

// A mistake in a lock has the line in which it is, also if that line ends too early.
func TestLineOfLock(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"{\n\"format\": 1,\n\"name\": \"a\nb\"\n}": 3,
		"{\n\"name\": tru\n}":                      2,
		"{\n\"format\": 1,\n}":                     3,
		"{\n\"format\": \"x\"\n}":                  2,
		"{\n\"format\": 1,\n\"sets\": {\n}\n}":     3,
		"{\n\"sets\": [\n{\"machine\": \"x\",\n\"files\": [\n{\"name\": 1}\n]\n}\n]\n}": 5,
		"<html>": 0, // no lock at all
		"{\n\n":  0, // cut off: the file as a whole
	} {
		path := filepath.Join(t.TempDir(), "environment.lock")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadLock(path)
		place := path + ": "
		if want > 0 {
			place = fmt.Sprintf("%s:%d: ", path, want)
		}
		if err == nil || !strings.HasPrefix(err.Error(), place) || fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), "env lock") {
			t.Errorf("%q: %v, want it to begin with %s", text, err, place)
		}
	}
}

// A build is given as one word or as a list of words; a mistake has its place, and a build needs a torch.
func TestDeepSpeedToBuild(t *testing.T) {
	t.Parallel()
	const head = "name: a\npython: 3.11\ntorch: 2.15.0\n"
	s, err := parse("e.yaml", []byte(head+"deepspeed: {version: 'git+https://host/x@main', ops: [cpu_adam, utils], arch: 8.0, cpu: x86-64-v3}\n"))
	if err != nil || s.Build.Version != "git+https://host/x@main" || !slices.Equal(s.Build.Ops, []string{"cpu_adam", "utils"}) || !slices.Equal(s.Build.Archs, []string{"8.0"}) || s.Build.CPU != "x86-64-v3" {
		t.Fatalf("%v, %+v", err, s)
	}
	for text, want := range map[string]string{
		head + "deepspeed: {ops: [cpu_adam, --help]}\n":       "e.yaml:4:29: ops must be one word",
		head + "deepspeed: {version: '0.19.8; id'}\n":         "e.yaml:4:22: version must be one word",
		head + "deepspeed: {arch: []}\n":                      "e.yaml:4:19: arch is empty",
		head + "deepspeed: {cpu: {a: b}}\n":                   "e.yaml:4:18: cpu must be a list, not a mapping",
		head + "deepspeed: {glibc: 2.28}\n":                   `e.yaml:4:13: unknown key "glibc" in deepspeed`,
		head + "deepspeed: [0.19.8]\n":                        "e.yaml:4:13: an entry of deepspeed must be a path to a wheel",
		"name: a\npython: 3.11\ndeepspeed: {version: 0.19.8}": `e.yaml:3:12: missing key "torch", which is required to build DeepSpeed`,
	} {
		if _, err := parse("e.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The name of a wheel is taken from wherever uv's answer has it.
func TestFileNameInUVsAnswer(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]lockedWheel{
		"a-1-py3-none-any.whl":           {Name: "a-1-py3-none-any.whl", URL: "https://host/other.whl"},
		"b-1-py3-none-any.whl":           {URL: "https://host/x/b-1-py3-none-any.whl?token=1#sha256=ab"},
		"c-1+cu132-cp311-none-any.whl":   {URL: "https://host/c-1%2Bcu132-cp311-none-any.whl"},
		"d-1-py3-none-any.whl":           {Path: "../wheels/d-1-py3-none-any.whl"},
		"e-1-py3-none-any.whl":           {URL: "file:///tmp/my%20wheels/e-1-py3-none-any.whl"},
		"f-1-1-py3-none-linux_armv7.whl": {URL: "://bad", Path: "f-1-1-py3-none-linux_armv7.whl", Name: "f-1-1-py3-none-linux_armv7.whl"},
	} {
		if got := w.fileName(); got != want {
			t.Errorf("%+v: %s", w, got)
		}
	}
}

// A Python that comes along serves nodes whatever Python they have, also none; only machine and glibc
// must fit.
func TestForNodesWithAPythonThatComesAlong(t *testing.T) {
	t.Parallel()
	l := &Lock{Python: "3.11", Sets: []Set{{Platform: Platform{"aarch64", "2.28"}}, {Platform: Platform{"x86_64", "2.28"}, Python: &Interpreter{File: "p.tar.gz", Size: 5}, Files: []File{{Name: "numpy", Size: 7}}}}}
	for _, f := range []node.Facts{{Platform: "linux_x86_64", Glibc: "2.28"}, {Platform: "linux_x86_64", Glibc: "2.40", Python: "3.6.8", Tag: "cp36"}} {
		if s, err := l.For(f); err != nil || s.Python == nil {
			t.Errorf("%+v: %v, %v", f, s, err)
		}
	}
	for _, f := range []node.Facts{{Platform: "linux_x86_64", Glibc: "2.17", Python: "3.6.8"}, {Platform: "linux_aarch64", Glibc: "2.28"}, {Platform: "linux_x86_64"}} {
		if s, err := l.For(f); err == nil {
			t.Errorf("%+v: %v", f, s)
		}
	}
	all := l.Sets[1].All()
	if !l.BundlesPython() || l.Program() != "python3.11" || len(all) != 3 || all[2].File != "p.tar.gz" || l.Sets[1].Size() != 7 || l.Sets[1].File("numpy") == nil || l.Sets[1].File("nump") != nil {
		t.Errorf("%+v", all)
	}
}
