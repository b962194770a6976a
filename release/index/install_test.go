package index_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/pages"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/index"
	"github.com/dsbuild/dsbuild/wheel"
)

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

// site is an index with all kinds of builds on a plain web server, and beside it a package index, such as PyPI, that has a DeepSpeed of
// the same version and newer sources.
type site struct {
	dir, url string
	asked    asked
	others   *wheelindex.Index
	complete []string // the names of the complete builds for this machine, the newest first
	py, pip  string
	vars     []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	py, err := python.Find(t.Context(), "3.11")
	if err != nil {
		needs.Missing(t, "no Python 3.11: %v", err)
	}
	s := &site{dir: t.TempDir(), others: wheelindex.New(t), py: py}
	if s.pip, err = python.Pip(t.Context(), py); err != nil {
		t.Fatal(err)
	}
	newer, arm, commit := wheeltest.OfKind(wheel.KindComplete), wheeltest.OfKind(wheel.KindComplete), commitOf("1")
	newer.Recipe, newer.Plan = 10, strings.Repeat("1", 64)
	arm.CPU, commit.Version = wheel.CPUArm, "0.19.9"
	wheels := append(some(t), ofKind(t, wheel.KindAllOps), build(t, t.TempDir(), arm, evening), build(t, t.TempDir(), commit, morning))
	wheels = append(wheels, build(t, t.TempDir(), newer, morning))
	s.complete = []string{filepath.Base(wheels[len(wheels)-1]), filepath.Base(wheels[0])}
	write(t, index.Options{Dir: s.dir, Wheels: wheels})
	s.url = s.asked.serve(t, http.FileServer(http.Dir(s.dir)))

	for _, w := range []wheelindex.Wheel{{Name: "torch", Version: "2.9.0"}, {Name: "torch", Version: "2.15.0"}, {Name: "deepspeed", Version: "0.19.8"}} {
		s.others.Add(t, w)
	}
	if err := os.WriteFile(filepath.Join(s.others.Dir, "deepspeed-0.20.0.tar.gz"), []byte("sources that nobody builds"), 0o644); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	s.vars = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "UV_CACHE_DIR="+filepath.Join(home, "uv"), "UV_DEFAULT_INDEX="+s.others.URL, "UV_PYTHON_DOWNLOADS=never",
		"PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1", "PIP_INDEX_URL="+s.others.URL)
	return s
}

// environment is one of Python, with the programs pip and uv.
type environment struct {
	*site
	dir string
}

// environment makes an environment with these packages of the package index.
func (s *site) environment(t *testing.T, packages ...string) environment {
	t.Helper()
	e := environment{s, t.TempDir()}
	e.mustRun(t, fmt.Sprintf("%s venv -q --no-project --python %s .venv", s.others.UV, s.py))
	bin := filepath.Join(e.dir, ".venv", "bin")
	pip := fmt.Sprintf("#!/bin/sh\nPYTHONPATH=%s exec %s/python -m pip \"$@\"\n", s.pip, bin)
	if err := os.WriteFile(filepath.Join(bin, "pip"), []byte(pip), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.others.UV, filepath.Join(bin, "uv")); err != nil {
		t.Fatal(err)
	}
	if len(packages) > 0 {
		e.mustRun(t, "uv pip install -q --no-deps "+strings.Join(packages, " "))
	}
	return e
}

// run runs a command as in an activated environment.
func (e environment) run(t *testing.T, command string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", command)
	cmd.Dir = e.dir
	cmd.Env = append(slices.Clone(e.vars), "VIRTUAL_ENV="+e.dir+"/.venv", "PATH="+e.dir+"/.venv/bin:"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e environment) mustRun(t *testing.T, command string) string {
	t.Helper()
	out, err := e.run(t, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// installed returns the versions of torch, and the file name of DeepSpeed's wheel. It is the version of one that dsbuild has not built.
func (e environment) installed(t *testing.T) (torch, deepspeed string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(e.dir, ".venv/lib/python3.11/site-packages/*.dist-info"))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range found {
		name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
		switch name {
		case "torch":
			torch += version
		case "deepspeed":
			deepspeed += version
			if text, err := os.ReadFile(filepath.Join(info, "dsbuild.json")); err == nil {
				m, err := wheel.ParseManifest(text)
				if err != nil {
					t.Fatal(err)
				}
				deepspeed = m.Name
			}
		}
	}
	return torch, deepspeed
}

// pageCommands returns the commands of docs/distribute.md that TestInstall executes, and the file for uv.
func (s *site) pageCommands(t *testing.T) (commands []string, project string) {
	t.Helper()
	page, err := pages.Read("../../docs/distribute.md")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("https://wheels.example.org", s.url)
	for _, b := range page.Blocks {
		if b.File == "pyproject.toml" {
			project = here.Replace(b.Text)
		}
		for _, c := range b.Commands {
			if slices.Contains(c.Tests, t.Name()) {
				commands = append(commands, here.Replace(c.Text))
			}
		}
	}
	if len(commands) != 6 || project == "" {
		t.Fatalf("docs/distribute.md has the commands %q and the file %q; want six and one", commands, project)
	}
	return commands, project
}

// pip and uv install the complete build by the commands of docs/distribute.md, each in an environment of its own. The index has all kinds of
// builds, and two builds of one version.
func TestInstall(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	s := newSite(t)
	commands, project := s.pageCommands(t)
	for i, c := range []struct {
		before []string // installed
		torch  string   // then
	}{
		{[]string{"torch==2.9.0"}, "2.9.0"}, {[]string{"torch==2.9.0"}, "2.9.0"}, // --no-deps leaves torch as it is
		{[]string{"torch==2.9.0"}, "2.15.0"}, {[]string{"torch==2.9.0"}, "2.15.0"}, // else it is replaced
		{[]string{"torch==2.15.0", "deepspeed==0.19.8"}, "2.15.0"}, {[]string{"torch==2.15.0", "deepspeed==0.19.8"}, "2.15.0"},
	} {
		t.Run(commands[i], func(t *testing.T) {
			t.Parallel()
			e := s.environment(t, c.before...)
			if len(c.before) == 2 { // the commands for an empty environment replace nothing
				e.mustRun(t, commands[i-2])
				if _, deepspeed := e.installed(t); deepspeed != "0.19.8" {
					t.Errorf("%s replaces 0.19.8 of the package index by %s", commands[i-2], deepspeed)
				}
			}
			said := e.mustRun(t, commands[i])
			if torch, deepspeed := e.installed(t); torch != c.torch || deepspeed != s.complete[0] {
				t.Errorf("torch %s, DeepSpeed %s; want %s, %s\n%s", torch, deepspeed, c.torch, s.complete[0], said)
			}
		})
	}
	t.Run("uv project", func(t *testing.T) {
		t.Parallel()
		s.lockProject(t, project)
	})
	t.Run("requirements", func(t *testing.T) {
		t.Parallel()
		s.installRequirements(t)
	})
	t.Run("pages", func(t *testing.T) {
		t.Parallel()
		s.installFromEachPage(t)
	})
	t.Cleanup(func() { // of the parallel tests
		if !slices.ContainsFunc(s.asked.paths, func(p string) bool { return strings.HasSuffix(p, ".whl.metadata") }) {
			t.Errorf("nobody asked for the metadata beside a wheel: %q", s.asked.paths)
		}
	})
}

// lockProject has uv lock the files of both CPUs, and install that of this one.
func (s *site) lockProject(t *testing.T, project string) {
	e := s.environment(t)
	project = "[project]\nname = \"job\"\nversion = \"1\"\nrequires-python = \">=3.11\"\ndependencies = [\"deepspeed>=0.19\"]\n\n" + project
	if err := os.WriteFile(filepath.Join(e.dir, "pyproject.toml"), []byte(project), 0o644); err != nil {
		t.Fatal(err)
	}
	e.mustRun(t, "uv lock && uv sync --locked")
	lock, err := os.ReadFile(filepath.Join(e.dir, "uv.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, machine := range []string{wheel.X86, wheel.Arm} {
		if locked := regexp.MustCompile(`deepspeed-0\.19\.8-\S+_` + machine + `\.whl", hash = "sha256:`); !locked.Match(lock) {
			t.Errorf("uv.lock has no file for %s:\n%s", machine, lock)
		}
	}
	if torch, deepspeed := e.installed(t); torch != "2.15.0" || deepspeed != s.complete[0] {
		t.Errorf("uv sync installs torch %s, DeepSpeed %s; want 2.15.0, %s", torch, deepspeed, s.complete[0])
	}
}

// installRequirements has pip and uv install what people write into requirements, with a package index that has newer sources. A hash
// selects the older build of a version.
func (s *site) installRequirements(t *testing.T) {
	sum, _, err := wheel.HashFile(filepath.Join(s.dir, "deepspeed", s.complete[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, options string
		want          string
	}{
		{"deepspeed===0.19.8", "", s.complete[0]},
		{"deepspeed>=0.19", "", s.complete[0]},
		{"deepspeed==0.19.8 --hash=sha256:" + sum, "--require-hashes", s.complete[1]},
	} {
		for _, install := range []string{
			"pip install --no-deps --only-binary deepspeed --extra-index-url " + s.url + "/",
			"uv pip install --no-deps --index " + s.url + "/",
		} {
			e := s.environment(t)
			if err := os.WriteFile(filepath.Join(e.dir, "requirements.txt"), []byte(c.text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			said := e.mustRun(t, install+" -r requirements.txt "+c.options)
			if _, deepspeed := e.installed(t); deepspeed != c.want {
				t.Errorf("%s, %s: %s; want %s\n%s", install, c.text, deepspeed, c.want, said)
			}
		}
	}
}

// installFromEachPage has uv install from the directory of each kind, over HTTP and from files. Then it finds other bytes than the page
// promises.
func (s *site) installFromEachPage(t *testing.T) {
	e := s.environment(t)
	for kind, version := range map[string]string{"": "0.19.8", "all-ops/": "0.19.8+allops", "custom/": "0.19.8+sm80", "abi-torch/": "0.19.8+torch2.15.cu132.sm80.v3"} {
		requirement := "deepspeed"
		if kind == "custom/" {
			requirement += "==" + version // it has other versions
		}
		for _, base := range []string{s.url, "file://" + s.dir} {
			e.mustRun(t, fmt.Sprintf("uv pip install -q --no-deps --reinstall --default-index %s/%s %s", base, kind, requirement))
			if _, deepspeed := e.installed(t); !strings.HasPrefix(deepspeed, "deepspeed-"+version+"-") {
				t.Errorf("%s/%s: %s; want %s", base, kind, deepspeed, version)
			}
		}
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(copied, "deepspeed", "*.whl"))
	if err != nil {
		t.Fatal(err)
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
	for _, install := range []string{"pip install --force-reinstall --index-url", "uv pip install --no-cache --reinstall --default-index"} {
		out, err := e.run(t, install+" file://"+copied+"/ --no-deps deepspeed")
		if err == nil || !strings.Contains(strings.ToLower(out), "hash") {
			t.Errorf("%s, another wheel than was promised: %v\n%s", install, err, out)
		}
	}
}
