package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// environment is a fake training environment: a real venv with a torch that
// is a version file and little more.
type environment struct {
	dir, python, site string
}

// newEnvironment makes one with torch of the given version for CUDA 13.2, and the quick pip,
// which TestQuickPip compares with the real one.
func newEnvironment(t *testing.T, torch string) environment {
	t.Helper()
	return newEnvironmentIn(t, t.TempDir(), torch).withPip(t, quickPip)
}

// withPip gives an environment a link to a pip that all tests share, in place of the one that it has.
func (e environment) withPip(t *testing.T, pip sharedPip) environment {
	t.Helper()
	link := filepath.Join(e.site, "pip")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(pip.folder(t), "pip"), link); err != nil {
		t.Fatal(err)
	}
	return e
}

// sharedPip returns the folder of an unpacked pip with its byte code. Python compiles the wheel that it brings along anew in each
// run, which takes longer than all else of a deploy.
type sharedPip func() (string, error)

func (p sharedPip) folder(t *testing.T) string {
	t.Helper()
	dir, err := p()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var (
	realPip  sharedPip = sync.OnceValues(func() (string, error) { return python.Pip(context.Background(), "python3") })
	quickPip sharedPip = sync.OnceValues(func() (string, error) {
		dir := filepath.Join(scratch, "quickpip")
		return dir, python.UnpackQuickPip(context.Background(), "python3", dir)
	})
)

// scratch is a directory that TestMain makes and removes.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "dsbuild-environments-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = os.Chmod(scratch, 0o755) // for environments of other users
	code := m.Run()
	_ = os.RemoveAll(scratch) // in the temporary folder
	os.Exit(code)
}

// newEnvironmentIn makes one below parent that has no pip but the wheel that comes with
// Python.
func newEnvironmentIn(t *testing.T, parent, torch string) environment {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	template, ok := templates.byTorch[torch]
	if !ok {
		template = makeTemplate(t, filepath.Join(scratch, fmt.Sprint("template", len(templates.byTorch))), torch)
		templates.byTorch[torch] = template
	}
	return template.copied(t, parent)
}

// templates are environments without pip, from which tests copy theirs: a copy takes a tenth of the time of venv.
var templates = struct {
	sync.Mutex
	byTorch map[string]environment
}{byTorch: map[string]environment{}}

// oneInstalled is an environment in which dsbuild has installed a wheel.
type oneInstalled struct {
	environment
	wheel string // its path
}

// installed are environments from which tests copy theirs, by the version of the wheel: each is deployed once.
var installed = struct {
	sync.Mutex
	byVersion map[string]oneInstalled
}{byVersion: map[string]oneInstalled{}}

// withInstalled makes an environment in which dsbuild has installed a wheel of this version, and loads the wheel.
func withInstalled(t *testing.T, version string) (environment, []wheel.Loaded) {
	t.Helper()
	installed.Lock()
	defer installed.Unlock()
	template, ok := installed.byVersion[version]
	if !ok {
		dir := filepath.Join(scratch, "installed-"+version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		template = oneInstalled{newEnvironmentIn(t, dir, "2.15.0").withPip(t, quickPip), makeWheel(t, dir, wheelOptions{version: version})}
		h, s := host(t, "gpu1", template.environment, sshtest.Options{})
		if r := run(t, context.Background(), options(t, load(t, template.wheel), []*sshtest.Server{s}, h)); r.Err() != nil {
			t.Fatal(r.Err())
		}
		installed.byVersion[version] = template
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(template.wheel))
	data, err := os.ReadFile(template.wheel)
	if err == nil {
		err = os.WriteFile(copied, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return template.twin(t, t.TempDir()), load(t, copied)
}

// twin is a copy of an environment as if dsbuild had installed DeepSpeed there: so say the command, RECORD and the notes.
func (e environment) twin(t *testing.T, parent string) environment {
	t.Helper()
	twin := e.copied(t, parent)
	was := map[string]string{e.dir: twin.dir}
	for _, path := range []string{
		filepath.Join(twin.dir, "bin", "ds_report"), only(t, twin.site, "deepspeed-*.dist-info/RECORD"), twin.own("installed.json"),
		twin.own("previous", "change.json"),
	} {
		if !exists(path)() { // not installed by dsbuild
			continue
		}
		old := text(t, path)
		now := old
		for a, b := range was {
			now = strings.ReplaceAll(now, a, b)
		}
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
		before, after := sha256.Sum256([]byte(old)), sha256.Sum256([]byte(now))
		was[fmt.Sprintf("%x", before)] = fmt.Sprintf("%x", after)
		row := func(sum [32]byte, n int) string {
			return base64.RawURLEncoding.EncodeToString(sum[:]) + "," + fmt.Sprint(n)
		}
		was[row(before, len(old))] = row(after, len(now))
	}
	if err := os.Chmod(filepath.Join(twin.dir, "bin", "ds_report"), 0o755); err != nil {
		t.Fatal(err)
	}
	return twin
}

func makeTemplate(t *testing.T, dir, torch string) environment {
	t.Helper()
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Fatalf("making an environment: %v\n%s", err, out)
	}
	sites, _ := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatal("a new environment without site-packages")
	}
	e := environment{dir, filepath.Join(dir, "bin", "python"), sites[0]}
	if torch != "" {
		e.write(t, "torch/version.py", "__version__ = '"+torch+"+cu132'\ncuda = '13.2'\n")
		e.write(t, "torch/__init__.py", "from . import version\n__version__ = version.__version__\n")
		e.dist(t, "torch", torch)
		// Its byte code is there before anything is compared.
		cmd := exec.Command(e.python, "-c", "import torch")
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the fake torch: %v\n%s", err, out)
		}
	}
	e.dist(t, "einops", "0.8.0")
	return e
}

// copied is another environment with the same files, in a folder.
func (e environment) copied(t *testing.T, parent string) environment {
	t.Helper()
	dir := filepath.Join(parent, "venv")
	if out, err := exec.Command("cp", "-a", e.dir, dir).CombinedOutput(); err != nil {
		t.Fatalf("copying an environment: %v\n%s", err, out)
	}
	move := func(path string) string { return dir + strings.TrimPrefix(path, e.dir) }
	return environment{dir, move(e.python), move(e.site)}
}

func (e environment) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(e.site, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (e environment) dist(t *testing.T, name, version string) {
	t.Helper()
	e.write(t, name+"-"+version+".dist-info/METADATA", "Metadata-Version: 2.1\nName: "+name+"\nVersion: "+version+"\n")
}

// hookName is the file that runs a test's code at the start of Python.
const hookName = "zz-test-hook.pth"

// snapshot is every file of the environment but dsbuild's own, with mode,
// time and content: what "as it was" means.
func (e environment) snapshot(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(e.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".dsbuild" {
				return filepath.SkipDir
			}
			files[path] = "folder"
			return nil
		}
		if d.Name() == hookName {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Type()&os.ModeSymlink != 0 {
			files[path], err = os.Readlink(path)
			return err
		}
		if !d.Type().IsRegular() { // a pipe, which nobody writes to
			files[path] = info.Mode().String()
			return nil
		}
		content, err := os.ReadFile(path)
		files[path] = fmt.Sprintf("%s %d %x", info.Mode(), info.ModTime().UnixNano(), sha256.Sum256(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (e environment) mustBe(t *testing.T, want map[string]string) {
	t.Helper()
	got := e.snapshot(t)
	for path, w := range want {
		if got[path] != w {
			t.Errorf("%s: was %q, is %q", path, w, got[path])
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s was not there before", path)
		}
	}
}

// own is dsbuild's own folder for the environment, or a file in it.
func (e environment) own(name ...string) string {
	return filepath.Join(append([]string{node.Facts{SitePackages: e.site}.Home()}, name...)...)
}

// leftovers are names in the environment's .dsbuild that no finished run leaves.
func (e environment) leftovers(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(e.own())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		if !slices.Contains([]string{"lock", "installed.json", "journal.jsonl", "previous", "bytecode.xz", "signed"}, e.Name()) {
			left = append(left, e.Name())
		}
	}
	return left
}

// version is what an import on the node finds.
func (e environment) version(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(e.python, "-c", "import deepspeed; print(deepspeed.__version__)")
	cmd.Dir = e.dir
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// wheelOptions change what makeWheel makes.
type wheelOptions struct {
	version     string            // "" means 0.19.8
	files       map[string]string // further files, or other contents of those there
	torch, cuda string            // "" means 2.15.0 and 13.2
	require     []string
	code        *wheel.ByteCode // that the manifest speaks of
	stable      string          // of a wheel for every torch: the oldest, X.Y
	plain       bool            // without device code
}

// makeWheel makes a small real wheel with the outer shape of DeepSpeed's: a
// version, one op with a builder, a script. The op that is loaded is Python; the
// shared object beside it is what the wheel is judged by.
func makeWheel(t *testing.T, dir string, opt wheelOptions) string {
	t.Helper()
	return wheeltest.Packed(t, dir, testWheel(t, opt))
}

// testWheel describes the wheel that makeWheel makes.
func testWheel(t *testing.T, opt wheelOptions) wheeltest.Options {
	t.Helper()
	files := map[string]string{
		"deepspeed/ops/cpu_adam_loaded.py":     "",
		"deepspeed/ops/op_builder/__init__.py": "",
		"deepspeed/ops/op_builder/all_ops.py":  "class Builder:\n    def load(self):\n        from deepspeed.ops import cpu_adam_loaded\n        return cpu_adam_loaded\nALL_OPS = {'cpu_adam': Builder()}\n",
	}
	maps.Copy(files, opt.files)
	tag := pythonTag(t)
	op := wheeltest.Op{Name: "cpu_adam", Dir: "adam", SASS: []string{"8.0"}}
	if opt.plain {
		op.SASS = nil
	}
	return wheeltest.Options{
		Version: opt.version, Python: tag, Torch: opt.torch, CUDA: opt.cuda, CPU: wheel.CPUv2, Files: files,
		Scripts:  map[string]string{"ds_report": "#!python\nprint('report')\n"},
		Ops:      []wheeltest.Op{op},
		Requires: append([]string{"einops", "sphinx; extra == 'doc'"}, opt.require...),
		ByteCode: opt.code, Stable: opt.stable,
	}
}

func pythonTag(t *testing.T) string {
	t.Helper()
	tag, err := askedTag()
	if err != nil {
		t.Fatalf("python3: %v", err)
	}
	return tag
}

var askedTag = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").Output()
	return strings.TrimSpace(string(out)), err
})

func load(t *testing.T, path string) []wheel.Loaded {
	t.Helper()
	loaded, err := wheel.LoadAll(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// host is a node of an inventory on a test server.
func host(t *testing.T, name string, e environment, opt sshtest.Options) (inventory.Host, *sshtest.Server) {
	t.Helper()
	opt.Name = name
	s := sshtest.Start(t, opt)
	return inventory.Host{Name: name, Node: name, Address: s.Address, Port: s.Port, User: s.User, IdentityFile: s.IdentityFile, Python: e.python}, s
}

// options are those of a deploy to test servers.
func options(t *testing.T, offered []wheel.Loaded, servers []*sshtest.Server, hosts ...inventory.Host) deploy.Options {
	t.Helper()
	return deploy.Options{
		Options: fleet.Options{
			Hosts:      hosts,
			KnownHosts: sshtest.KnownHosts(t, servers...),
			By:         "tester",
			Forks:      4,
			Dialer:     remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute}),
			Reporter:   ui.New(testWriter{t}, ui.Options{}),
		},
		Verify: verify.LevelLoad,
		Wheels: offered,
	}
}

// impatient is a dialer for tests of silent nodes, which it gives up after seconds.
func impatient() remote.Dialer {
	return remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: 8 * time.Second, KeepAlive: 2 * time.Second})
}

// verifyOptions are those of a verification of the same nodes.
func verifyOptions(o deploy.Options) verify.Options {
	return verify.Options{Options: o.Options, Wheels: o.Wheels, Level: o.Verify}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// run deploys and returns the report, which it logs.
func run(t *testing.T, ctx context.Context, opt deploy.Options) *report.Report {
	t.Helper()
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err != nil {
		t.Fatalf("survey: %v", err)
	}
	r := d.Apply(ctx)
	for _, n := range r.Nodes {
		t.Logf("%s: %s at %s, changed %v, before %v, after %v, %v\n  error: %s\n  hint: %s", n.Name, n.Status, n.Step, n.Changed, n.Before, n.After, n.Seconds, n.Error, n.Hint)
	}
	return r
}

// fakeTorchWheel is a wheel for the fake torch of test nodes.
func fakeTorchWheel() wheelOptions {
	return wheelOptions{torch: nodes.FakeTorchVersion, cuda: nodes.FakeTorchCUDA}
}
