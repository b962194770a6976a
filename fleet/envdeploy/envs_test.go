package envdeploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	pythons "github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// site is an index with a torch and a few packages, and a folder with environment.yaml.
type site struct {
	*wheelindex.Index
	dir string
}

// newSite makes one whose environment has torch, DeepSpeed and alpha.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{wheelindex.New(t), t.TempDir()}
	s.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0", Files: map[string]string{
		"torch/version.py":  "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n",
		"torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
	}})
	s.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0", Files: map[string]string{
		"alpha-1.0.data/scripts/alpha-tool":         "#!python\nimport alpha; print(alpha.__version__)\n",
		"alpha-1.0.dist-info/entry_points.txt":      "[console_scripts]\nalpha-run = alpha:main\n",
		"alpha-1.0.data/data/share/alpha/table.txt": "1 2 3\n",
		// Data in the site-packages of this Python, and of another one.
		"alpha-1.0.data/data/lib/python3.11/site-packages/alpha_data.py":  "here = True\n",
		"alpha-1.0.data/data/lib/python3.9/site-packages/alpha_others.py": "here = False\n",
		"alpha-1.0.data/platlib/alpha/native.py":                          "fast = True\n",
	}})
	return s
}

// deepspeed makes a wheel of DeepSpeed beside environment.yaml and returns its name.
func (s *site) deepspeed(t *testing.T, version string, files map[string]string) string {
	t.Helper()
	all := map[string]string{
		"deepspeed/ops/cpu_adam_loaded.py":     "",
		"deepspeed/ops/op_builder/__init__.py": "",
		"deepspeed/ops/op_builder/all_ops.py":  "class Builder:\n    def load(self):\n        from deepspeed.ops import cpu_adam_loaded\n        return cpu_adam_loaded\nALL_OPS = {'cpu_adam': Builder()}\n",
	}
	for name, text := range files {
		all[name] = text
	}
	return filepath.Base(wheeltest.Packed(t, s.dir, wheeltest.Options{
		Version: version, Python: "cp311", CPU: wheel.CPUv2, Files: all,
		Scripts: map[string]string{"ds_report": "#!python\nprint('report')\n"},
		Ops:     []wheeltest.Op{{Name: "cpu_adam", Dir: "adam", SASS: []string{"8.0"}}},
	}))
}

// lock locks the text of an environment.yaml and opens its files.
func (s *site) lock(t *testing.T, text string) (*environment.Lock, *envdeploy.Files) {
	t.Helper()
	l, paths := s.lockOnly(t, text)
	files, err := envdeploy.OpenFiles(t.Context(), l, paths)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.ReadManifests(t.Context(), l, environment.Sums{}); err != nil {
		t.Fatal(err)
	}
	return l, files
}

// lockOnly locks the text of an environment.yaml and collects its files.
func (s *site) lockOnly(t *testing.T, text string) (l *environment.Lock, paths map[string]string) {
	t.Helper()
	path := filepath.Join(s.dir, "environment.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	spec, err := environment.Read(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &environment.Collector{Cache: t.TempDir(), Indexes: []string{s.URL}, Client: pyindex.New(http.DefaultTransport)}
	r := environment.Resolver{
		UV: s.UV, Installer: s.Index.Installer(t), Collect: c,
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "UV_CACHE_DIR=" + t.TempDir(), "UV_DEFAULT_INDEX=" + s.URL, "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never"},
	}
	kinds := spec.Platforms
	if len(kinds) == 0 {
		kinds = []environment.Platform{{Machine: "x86_64", Glibc: "2.17"}}
	}
	if l, err = r.Resolve(t.Context(), spec, kinds, nil, s.dir); err != nil {
		t.Fatal(err)
	}
	var all []environment.File
	for _, set := range l.Sets {
		all = append(all, set.All()...)
	}
	if paths, err = c.Collect(t.Context(), l, all); err != nil {
		t.Fatal(err)
	}
	return l, paths
}

const small = "name: train\npython: 3.11\nrequirements: [alpha, torch]\n"

// systemPython is the machine's own Python 3.11. That of a version manager has packages, which it looks at whenever it starts.
var systemPython = sync.OnceValues(func() (string, error) { return pythons.Find(context.Background(), "3.11") })

// host is a bare node: Python, and nothing else.
func host(t *testing.T, name string, opt sshtest.Options) (inventory.Host, *sshtest.Server) {
	t.Helper()
	python, err := systemPython()
	if err != nil {
		t.Fatal(err)
	}
	opt.Name = name
	s := sshtest.Start(t, opt)
	return inventory.Host{Name: name, Node: name, Address: s.Address, Port: s.Port, User: s.User, IdentityFile: s.IdentityFile, Python: python}, s
}

// options are those of a deploy to test servers.
func options(t *testing.T, l *environment.Lock, files *envdeploy.Files, servers []*sshtest.Server, hosts ...inventory.Host) envdeploy.Options {
	t.Helper()
	return envdeploy.Options{
		Options: fleet.Options{
			Command: "env deploy", Hosts: hosts, KnownHosts: sshtest.KnownHosts(t, servers...), By: "tester", Forks: 4,
			Dialer:   remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute}),
			Reporter: ui.New(testWriter{t}, ui.Options{}),
		},
		Verify: verify.LevelLoad,
		Lock:   l, Files: files,
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// run deploys and returns the report, which it logs.
func run(t *testing.T, ctx context.Context, opt envdeploy.Options) *report.Report {
	t.Helper()
	d := envdeploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err != nil {
		t.Fatalf("survey: %v", err)
	}
	return told(t, d.Apply(ctx))
}

// back rolls back.
func back(t *testing.T, opt envdeploy.Options) *report.Report {
	t.Helper()
	return undo(t, opt, "")
}

// undo undoes a run, the latest if run is empty.
func undo(t *testing.T, opt envdeploy.Options, run string) *report.Report {
	t.Helper()
	opt.Command = "env rollback"
	d := envdeploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(t.Context(), run); err != nil {
		t.Fatalf("survey: %v", err)
	}
	return told(t, d.Apply(t.Context()))
}

// look verifies.
func look(t *testing.T, opt envdeploy.Options) *report.Report {
	t.Helper()
	opt.Command = "env verify"
	r, err := envdeploy.Verify(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return told(t, r)
}

func told(t *testing.T, r *report.Report) *report.Report {
	t.Helper()
	for _, n := range r.Nodes {
		t.Logf("%s: %s at %s, changed %v, sent %d, %+v, before %v, after %v, %v\n  error: %s\n  hint: %s", n.Name, n.Status, n.Step, n.Changed, n.Sent, n.Environment, n.Before, n.After, n.Seconds, n.Error, n.Hint)
	}
	return r
}

// place is the folder of a node's environments.
func place(s *sshtest.Server) string { return filepath.Join(s.Home, ".local/share/dsbuild/env/train") }

// current is the folder of the current environment, "" for none.
func current(t *testing.T, s *sshtest.Server) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(place(s), "current"))
	if err != nil {
		return ""
	}
	return filepath.Join(place(s), name)
}

// python runs lines in the current environment and returns what they print.
func python(t *testing.T, s *sshtest.Server, lines string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(place(s), "current/bin/python"), "-B", "-c", lines)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// tree is every file below a folder with its content and time, without byte code.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.Name() == "__pycache__":
			return filepath.SkipDir
		case d.IsDir():
			files[rel] = "folder"
		case d.Type()&os.ModeSymlink != 0:
			files[rel], err = os.Readlink(path)
		default:
			f, open := os.Open(path)
			if open != nil {
				return open
			}
			defer f.Close()
			h := sha256.New()
			_, err = io.Copy(h, f)
			files[rel] = hex.EncodeToString(h.Sum(nil))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// mustBe reports the files in which two trees differ.
func mustBe(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: was %q, is %q", name, w, got[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s was not there", name)
		}
	}
}

// leftovers are names that no finished run leaves on a node.
func leftovers(t *testing.T, s *sshtest.Server) []string {
	t.Helper()
	var left []string
	for folder, fine := range map[string][]string{place(s): {"current", "previous", "journal.jsonl", "known.json"}, filepath.Join(place(s), "../.dsbuild"): {"lock", "files", "cache"}} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			_, err := os.Stat(filepath.Join(folder, e.Name(), "environment.json"))
			if err != nil && !slices.Contains(fine, e.Name()) {
				left = append(left, e.Name())
			}
		}
	}
	return left
}

// A machine without the wheel of DeepSpeed finds the ops healthy as one with it does, where torch has no CUDA: of a wheel over the
// stable ABI those without device code, which load with the accelerator of CUDA alone.
func TestVerifyWithoutWheelAndCUDA(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	x.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0", Files: map[string]string{
		"torch/version.py":  "__version__ = '2.15.0+cpu'\ncuda = None\n",
		"torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
	}})
	o := wheeltest.Variants()
	o.Files = wheeltest.LoadedByPython("cpu_adam", "fused_adam", "utils")
	o.Files["deepspeed/ops/fused_adam_loaded.py"] = "raise ImportError('this torch has no CUDA')\n"
	o.Files["deepspeed/ops/utils_loaded.py"] = "import os\nassert os.environ.get('DS_ACCELERATOR') == 'cuda', 'no such op'\n"
	l, files := x.lock(t, "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: "+filepath.Base(wheeltest.Packed(t, x.dir, o))+"\n")
	h, s := host(t, "cpu1", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Files = nil
	if r := look(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
}

// Bare nodes get one environment, equal to the last byte; a second run changes and sends nothing.
func TestBareNodesGetOneEnvironment(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: "+x.deepspeed(t, "0.19.8", nil)+"\nrequirements: [alpha]\n")
	h1, s1 := host(t, "gpu1", sshtest.Options{})
	h2, s2 := host(t, "gpu2", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	r := run(t, t.Context(), opt)
	if r.Err() != nil || !r.Consistent {
		t.Fatalf("%v, %+v", r.Err(), r.Differences)
	}
	for _, n := range r.Nodes {
		if n.Status != report.OK || !n.Changed || n.Before != nil || n.After == nil || n.After.SHA256 != l.Sets[0].File("deepspeed").SHA256 || n.Step != "record" || n.Environment.Digest != l.Sets[0].Digest || n.Facts.Torch != "2.15.0" {
			t.Errorf("%+v", n)
		}
		if n.Sent != l.Sets[0].Size()+l.Sets[0].Installer.Size {
			t.Errorf("%d bytes were sent", n.Sent)
		}
	}
	if got := python(t, s1, "import alpha, torch, deepspeed, alpha.native; print(alpha.__version__, torch.__version__)"); got != "1.0 2.15.0+cu132" {
		t.Error(got)
	}
	if out, err := exec.Command(filepath.Join(place(s2), "current/bin/alpha-tool")).CombinedOutput(); err != nil || string(out) != "1.0\n" {
		t.Errorf("%v: %s", err, out)
	}
	one, two := tree(t, current(t, s1)), tree(t, current(t, s2))
	delete(one, "environment.json") // has the time
	delete(two, "environment.json")
	if len(one) < 20 {
		t.Errorf("only %d files", len(one))
	}
	mustBe(t, two, one)
	if left := append(leftovers(t, s1), leftovers(t, s2)...); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if r := look(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
	bare := opt
	bare.Files = nil // a machine without the wheels
	if r := look(t, bare); r.Err() != nil {
		t.Error(r.Err())
	}

	was := tree(t, s1.Home)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r = run(t, t.Context(), opt)
	if n := r.Nodes[0]; r.Err() != nil || n.Changed || n.Sent != 0 || n.Step != "verify" || n.After == nil || *n.Before != *n.After || count.Puts.Load() != 0 {
		t.Errorf("second run: %+v, %v", n, r.Err())
	}
	mustBe(t, tree(t, s1.Home), was)
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "2 nodes ok, all equal: deepspeed 0.19.8") || !strings.Contains(out.String(), ", environment train "+report.ShortSum(l.Sets[0].Digest)) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// After a change of one package only its wheel travels, and the files of the others are links.
// The environment before stays for a rollback, and one before that goes.
func TestOneChangedPackage(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	first, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opt := options(t, first, files, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	a := current(t, s)
	before := tree(t, a)
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	second, files := x.lock(t, small)
	opt2 := options(t, second, files, []*sshtest.Server{s}, h)
	count := &sshtest.CountingDialer{Dialer: opt2.Dialer}
	opt2.Dialer = count
	r := run(t, t.Context(), opt2)
	if n := r.Nodes[0]; r.Err() != nil || n.Sent != second.Sets[0].File("alpha").Size || count.Puts.Load() != 1 || n.Environment.Before != first.Sets[0].Digest {
		t.Errorf("%v, %+v, %d files", r.Err(), n, count.Puts.Load())
	}
	b := current(t, s)
	old, err1 := os.Stat(filepath.Join(a, "lib/python3.11/site-packages/torch/version.py"))
	now, err2 := os.Stat(filepath.Join(b, "lib/python3.11/site-packages/torch/version.py"))
	if err1 != nil || err2 != nil || !os.SameFile(old, now) {
		t.Errorf("the files of torch are not links: %v, %v", err1, err2)
	}
	if got := python(t, s, "import alpha; print(alpha.__version__)"); got != "1.1" {
		t.Error(got)
	}

	// Rollback: the same bytes, nothing is sent; a second one is refused.
	r = back(t, opt2)
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || n.Sent != 0 || n.Environment.Digest != first.Sets[0].Digest || current(t, s) != a {
		t.Errorf("%v, %+v", r.Err(), n)
	}
	mustBe(t, tree(t, a), before)
	r = back(t, opt2)
	if n := r.Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, "no previous environment to roll back to") || current(t, s) != a {
		t.Errorf("%+v", n)
	}
	// What a rollback has left is there still: only the link changes.
	count.Puts.Store(0)
	r = run(t, t.Context(), opt2)
	if n := r.Nodes[0]; r.Err() != nil || n.Sent != 0 || count.Puts.Load() != 0 || current(t, s) != b {
		t.Errorf("%v, %+v", r.Err(), n)
	}
	// A third environment: the first goes, with its wheel.
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.2"})
	third, files := x.lock(t, small)
	if r := run(t, t.Context(), options(t, third, files, []*sshtest.Server{s}, h)); r.Err() != nil {
		t.Error(r.Err())
	}
	if _, err := os.Stat(a); err == nil {
		t.Error("the environment before the last two is still there")
	}
	if left, _ := filepath.Glob(filepath.Join(place(s), "../.dsbuild/files/*/alpha-1.0-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(place(s), "../.dsbuild/files/*/*")); len(left) != 4 || len(leftovers(t, s)) > 0 {
		t.Errorf("files %q, left %q", left, leftovers(t, s))
	}
}

// The files that did not change are known from the run before, and the byte code of their modules goes
// along. A file that was changed meanwhile is found although it has its size and time: it would be in
// the new environment, too.
func TestKnownFiles(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	x.Add(t, wheelindex.Wheel{Name: "single", Version: "1", Files: map[string]string{"alone.py": "one = 1\n"}})
	loads := map[string]string{"deepspeed/ops/cpu_adam_loaded.py": "import alone\n"}
	lock := func() (*environment.Lock, *envdeploy.Files) {
		return x.lock(t, "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: "+x.deepspeed(t, "0.19.8", loads)+"\nrequirements: [alpha, single]\n")
	}
	h, s := host(t, "gpu1", sshtest.Options{})
	deploy := func() string {
		t.Helper()
		l, files := lock()
		if r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h)); r.Err() != nil || !r.Nodes[0].Changed {
			t.Fatalf("%v, %+v", r.Err(), r.Nodes[0])
		}
		return filepath.Join(current(t, s), "lib/python3.11/site-packages/torch")
	}
	byteCode := func(torch, path string) os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(torch, path))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := deploy() // to load the ops makes byte code
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	second := deploy()
	for _, path := range []string{"__pycache__/version.cpython-311.pyc", "../__pycache__/alone.cpython-311.pyc"} {
		if !os.SameFile(byteCode(first, path), byteCode(second, path)) {
			t.Errorf("%s was made again", path)
		}
	}
	file := filepath.Join(second, "version.py")
	was := content(t, file)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := os.OpenFile(file, os.O_WRONLY, 0) // in place: uv's cache has the same file
	if err != nil {
		t.Fatal(err)
	}
	_, err = changed.WriteString(strings.ToUpper(was[:4]))
	if err := joined(err, changed.Close(), os.Chtimes(file, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.2"})
	third := deploy()
	if now := content(t, filepath.Join(third, "version.py")); now != was {
		t.Errorf("the new environment has %q", now)
	}
}

// content is the text of a file.
func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Large wheels are installed while the next files are sent. A uv that fails then fails the node, which
// keeps nothing of it.
func TestLargeWheelsAreInstalledEarly(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	x.Add(t, wheelindex.Wheel{Name: "a-large", Version: "1", Files: map[string]string{"large/data.bin": noise(16<<20 + 1000)}})
	const text = "name: train\npython: 3.11\nrequirements: [a-large, alpha]\n"
	asked := filepath.Join(t.TempDir(), "asked")
	deploy := func(line string) (report.Node, *sshtest.Server) {
		t.Helper()
		restore := x.uv(t, line)
		l, files := x.lock(t, text)
		restore()
		h, s := host(t, "gpu1", sshtest.Options{})
		return run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h)).Nodes[0], s
	}
	n, s := deploy(fmt.Sprintf("echo $* >>%s; exec %s \"$@\"", asked, x.UV))
	if n.Status != report.OK || len(leftovers(t, s)) > 0 {
		t.Errorf("%+v, left %q", n, leftovers(t, s))
	}
	var wheels []int
	for line := range strings.Lines(content(t, asked)) {
		wheels = append(wheels, strings.Count(line, "--find-links"))
	}
	if !slices.Equal(wheels, []int{0, 1, 2}) {
		t.Errorf("uv was given so many wheels: %v", wheels)
	}
	if got := python(t, s, "import alpha; print(alpha.__version__)"); got != "1.0" {
		t.Error(got)
	}
	n, s = deploy("for last; do :; done; test $1 = venv && exec python3 -m venv --without-pip $last; echo it is broken >&2; exit 2")
	if n.Status != report.Failed || !strings.Contains(n.Error, "it is broken") || len(leftovers(t, s)) > 0 {
		t.Errorf("%+v, left %q", n, leftovers(t, s))
	}
}

// A file that somebody changed is named, by the node and by the comparison with the wheel, even if
// RECORD was changed, too. A deploy over it fails, unless --force makes the environment anew.
func TestChangedFilesAreNamed(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	h2, s2 := host(t, "gpu2", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s, s2}, h, h2)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	packages := filepath.Join(current(t, s), "lib/python3.11/site-packages")
	sound := filepath.Join(t.TempDir(), "sound")
	copyTree(t, s.Home, sound)
	for name, c := range map[string]struct {
		change func() error
		want   string
		mended bool // with --force
	}{
		"altered": {func() error { return replace(filepath.Join(packages, "alpha/__init__.py"), "x = 1\n") }, "alpha/__init__.py is altered", true},
		"missing": {func() error { return os.Remove(filepath.Join(packages, "torch/version.py")) }, "torch/version.py is missing", false},
		"unknown": {func() error { return os.WriteFile(filepath.Join(packages, "sitecustomize.py"), nil, 0o644) }, "sitecustomize.py belongs to no package", false},
		"a pth":   {func() error { return os.WriteFile(filepath.Join(packages, "x.pth"), nil, 0o644) }, "x.pth belongs to no package", false},
		"anything else": {func() error {
			more := []string{
				"plug.egg-info/entry_points.txt", "alpha/libgomp.so.1", "alpha/notes.txt", "alpha/.hidden", "x.egg-link",
				"alpha-1.0.dist-info/extra", "alpha/__pycache__/other.cpython-311.pyc", "alpha/__pycache__/x.nbc", "listed.py",
			}
			for _, name := range more {
				path := filepath.Join(packages, name)
				if err := joined(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
					return err
				}
			}
			record := filepath.Join(packages, "alpha-1.0.dist-info/RECORD") // a row without a digest vouches for nothing
			return joined(os.Symlink("/etc/hostname", filepath.Join(packages, "link.txt")),
				replace(record, content(t, record)+"listed.py,,\n"))
		}, "alpha-1.0.dist-info/extra belongs to no package, alpha/.hidden belongs to no package, alpha/__pycache__/other.cpython-311.pyc belongs to no package, " +
			"alpha/__pycache__/x.nbc belongs to no package, alpha/libgomp.so.1 belongs to no package, alpha/notes.txt belongs to no package, " +
			"link.txt belongs to no package, listed.py belongs to no package, plug.egg-info/entry_points.txt belongs to no package, x.egg-link belongs to no package", false},
		"byte code": {func() error { // unchecked, and of another module: an import of alpha would run it
			cmd := exec.Command("python3", "-c", "import sys, py_compile; py_compile.compile(sys.argv[1], sys.argv[2], invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)",
				filepath.Join(packages, "torch/version.py"), filepath.Join(packages, "alpha/__pycache__/__init__.cpython-311.pyc"))
			return cmd.Run()
		}, "alpha/__pycache__/__init__.cpython-311.pyc is byte code that does not match its module", false},
		"a command": {func() error { return replace(filepath.Join(current(t, s), "bin/alpha-tool"), "#!/bin/sh\n") }, "bin/alpha-tool is altered", false},
		"a package": {func() error {
			info := filepath.Join(packages, "extra-1.dist-info")
			return joined(os.Mkdir(info, 0o755), os.WriteFile(filepath.Join(info, "RECORD"), nil, 0o644), os.WriteFile(filepath.Join(info, "METADATA"), []byte("Name: extra\nVersion: 1\n"), 0o644))
		}, "extra is not in the lockfile", false},
		"with its RECORD": {func() error {
			return replaceRecorded(packages, "alpha/__init__.py", "x = 1\n")
		}, "files of alpha do not match alpha-1.0-py3-none-any.whl", true},
	} {
		must(t, os.RemoveAll(s.Home))
		copyTree(t, sound, s.Home)
		must(t, c.change())
		one := opt
		one.Hosts = opt.Hosts[:1]
		if !c.mended {
			one.Verify = verify.LevelFiles
		}
		n := look(t, one).Nodes[0]
		if n.Status != report.Differs || !strings.Contains(strings.Join(n.Differs, ", "), c.want) {
			t.Errorf("%s: %+v", name, n)
		}
		if !c.mended {
			continue
		}
		r := run(t, t.Context(), opt)
		if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "verify" || !strings.Contains(n.Hint, "--force") || r.Nodes[1].Status != report.OK {
			t.Errorf("%s: %+v", name, r.Nodes)
		}
		one.Force = true
		if r := run(t, t.Context(), one); r.Err() != nil || !r.Nodes[0].Changed {
			t.Errorf("%s: with --force: %v", name, r.Err())
		}
		if r := look(t, opt); r.Err() != nil {
			t.Errorf("%s: after --force: %v", name, r.Err())
		}
		if link, err := os.Readlink(filepath.Join(place(s), "previous")); err == nil || len(leftovers(t, s)) > 0 {
			t.Errorf("%s: a rollback would go to the changed environment %s, left %q", name, link, leftovers(t, s))
		}
	}
	// Without the wheels, the note on the environment tells what was deployed.
	must(t, os.RemoveAll(s.Home))
	copyTree(t, sound, s.Home)
	must(t, replaceRecorded(packages, "alpha/__init__.py", "x = 1\n"))
	opt.Hosts, opt.Files, opt.Verify = opt.Hosts[:1], nil, verify.LevelFiles
	if n := look(t, opt).Nodes[0]; strings.Join(n.Differs, ", ") != "alpha 1.0 is another build than was deployed" {
		t.Errorf("%q", n.Differs)
	}
}

// copyTree copies a directory, with times and hard links.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// The files that belong to no package are those of the environment itself: each change is named, and a new file, too.
// A file that RECORD lists outside of the environment is not read.
func TestChangedFilesOfTheEnvironmentItself(t *testing.T) {
	t.Parallel()
	l, files := newSite(t).lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	in := func(name string) string { return filepath.Join(current(t, s), name) }
	record := in("lib/python3.11/site-packages/alpha-1.0.dist-info/RECORD")
	changed := errors.Join(
		replace(in("pyvenv.cfg"), "home = /usr/bin\ninclude-system-site-packages = true\n"), replace(in("bin/activate"), "evil\n"),
		os.Remove(in("bin/python3")), os.Symlink("/bin/true", in("bin/python3")), os.Remove(in("bin/activate.fish")),
		os.WriteFile(in("bin/torchrun"), []byte("#!/bin/sh\n"), 0o755),
		replace(record, content(t, record)+strings.Repeat("../", 20)+"etc/passwd,sha256=x,1\n"),
	)
	if changed != nil {
		t.Fatal(changed)
	}
	n := look(t, opt).Nodes[0]
	want := []string{
		"/etc/passwd, listed in alpha-1.0.dist-info, is outside the environment",
		"bin/activate is altered", "bin/activate.fish is missing", "bin/python3 is altered", "bin/torchrun belongs to no package", "pyvenv.cfg is altered",
	}
	if n.Status != report.Differs || !slices.Equal(n.Differs, want) {
		t.Errorf("%s: %q, want %q", n.Status, n.Differs, want)
	}
}

// A command is no file of a wheel: if RECORD was changed with it, only the comparison with other nodes
// finds that. Two nodes have no majority.
func TestChangedCommands(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for _, name := range []string{"gpu1", "gpu2", "gpu3"} {
		h, s := host(t, name, sshtest.Options{})
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, l, files, servers, hosts...)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	if err := replaceRecorded(filepath.Join(current(t, servers[0]), "lib/python3.11/site-packages"), "../../../bin/alpha-tool", "#!/bin/sh\n"); err != nil {
		t.Fatal(err)
	}
	const differs = "commands or data files differ from "
	r := look(t, opt)
	if n := r.Nodes[0]; !slices.Equal(n.Differs, []string{differs + "most nodes"}) || r.Summary.OK != 2 {
		t.Errorf("of three nodes: %+v", n)
	}
	opt.Hosts = hosts[:2]
	for _, n := range look(t, opt).Nodes {
		if !slices.Equal(n.Differs, []string{differs + "other nodes (no majority)"}) || n.Status != report.Differs {
			t.Errorf("of two nodes: %+v", n)
		}
	}
}

// replaceRecorded changes a file of alpha, and its line in RECORD.
func replaceRecorded(packages, name, text string) error {
	sum := sha256.Sum256([]byte(text))
	record := filepath.Join(packages, "alpha-1.0.dist-info/RECORD")
	old, err := os.ReadFile(record)
	var lines []string
	for line := range strings.Lines(string(old)) {
		if strings.HasPrefix(line, name+",") {
			line = fmt.Sprintf("%s,sha256=%s,%d\n", name, urlsafe(sum[:]), len(text))
		}
		lines = append(lines, line)
	}
	return joined(err, replace(filepath.Join(packages, name), text), replace(record, strings.Join(lines, "")))
}

// replace writes a file anew: what is written in place would change the cache, too.
func replace(path, text string) error {
	return joined(os.Remove(path), os.WriteFile(path, []byte(text), 0o755))
}

func joined(errs ...error) error { return errors.Join(errs...) }

func urlsafe(sum []byte) string { return base64.RawURLEncoding.EncodeToString(sum) }
