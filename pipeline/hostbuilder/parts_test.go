package hostbuilder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/pipeline"
)

// This machine builds dsbuild's own tests: there is something to be found.
func TestLookHere(t *testing.T) {
	g, err := Inspect(t.Context(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if !g.Host || g.Glibc == "" || g.Machine == "" || g.Name == "" || len(g.Pythons) == 0 || len(g.Digest) != 71 {
		t.Errorf("%+v", g)
	}
	for _, i := range g.Interpreters {
		if info, err := os.Stat(i.Path); err != nil || info.IsDir() {
			t.Errorf("%+v: %v", i, err)
		}
	}
	again, err := Inspect(t.Context(), append(os.Environ(), "PYTHONPATH=/tmp", "PYTHONHOME=/nowhere"))
	if err != nil || again.Digest != g.Digest {
		t.Errorf("looked at again it is another: %v", err)
	}
}

// programs makes a directory with links to programs of this machine, and files.
func programs(t *testing.T, names []string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.Symlink("/usr/bin/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// All that is missing is named at once, each with what gets it.
func TestMissing(t *testing.T) {
	bare := []string{"sh", "sed", "tr", "cut", "uname", "getconf", "head", "dirname", "readlink"}
	python := "#!/bin/sh\nprintf '3.11.4\\t/opt/py/bin/python3\\tvenv\\n'\n"
	gcc := "#!/bin/sh\necho 12.2.0\n"
	for name, c := range map[string]struct {
		names []string
		files map[string]string
		want  []string
		tries []string
	}{
		"nothing":     {bare, nil, []string{"gcc and g++", "Python (python3)", "strip", "tar"}, []string{"module load gcc", "module load python", "--env PYTHON"}},
		"half of all": {append(bare, "strip", "tar"), map[string]string{"python3": python, "gcc": gcc}, []string{"g++ matching ", "Python.h of Python 3.11 (/opt/py/bin/python3)"}, []string{"install python3.11-dev"}},
		"no uv":       {append(bare, "strip", "tar"), map[string]string{"python3": strings.Replace(python, "venv", "Python.h", 1), "gcc": gcc, "g++": "#!/bin/sh\nexit 1\n"}, []string{"C++ standard library headers for ", "uv, or a Python that can install it"}, []string{"libc6-dev", "python3-venv"}},
	} {
		dir := programs(t, c.names, c.files)
		_, err := New(t.Context(), Options{Dir: t.TempDir(), Environ: []string{"PATH=" + dir}})
		if fault.ExitCode(err) != fault.Usage || strings.Count(err.Error(), "\n") != len(c.want) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %q", name, err, want)
			}
		}
		for _, try := range c.tries {
			if !strings.Contains(fault.Hint(err), try) {
				t.Errorf("%s: the hint %q does not name %q", name, fault.Hint(err), try)
			}
		}
	}
}

// A Python without its header is none to choose from; with --env there is no
// other than its own.
func TestGroundToChooseFrom(t *testing.T) {
	dir := programs(t, []string{"sh", "sed", "tr", "cut", "uname", "getconf", "head", "strip", "tar"}, map[string]string{
		"python3":    "#!/bin/sh\nprintf '3.12.1\\t/opt/py/bin/python3\\tvenv,ensurepip,pip\\n'\n",
		"python3.9":  "#!/bin/sh\nprintf '3.9.1\\t/opt/py/bin/python3.9\\tvenv,ensurepip,pip,Python.h\\n'\n",
		"python3.13": "#!/bin/sh\necho 'version 3.13 is not installed' >&2; exit 127\n",
		"gcc":        "#!/bin/sh\necho 12.2.0\n", "g++": "#!/bin/sh\n", "gcc-13": "#!/bin/sh\necho 13\n", "g++-13": "#!/bin/sh\n", "gcc-14": "#!/bin/sh\necho 14\n",
	})
	uv := filepath.Join(t.TempDir(), "pythons")
	for name, version := range map[string]string{"cpython-3.13.0 odd": "3.13.0", "cpython-3.9.5-linux-x86_64-gnu": "3.9.5", "cpython-3.14.0-linux-x86_64-gnu": "3.14.0"} {
		bin := filepath.Join(uv, name, "bin")
		script := fmt.Sprintf("#!/bin/sh\nprintf '%s\\t%s/python\\tvenv,ensurepip,pip,Python.h\\n'\n", version, bin)
		err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "python3."+strings.Split(version, ".")[1]), []byte(script), 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := New(t.Context(), Options{Dir: t.TempDir(), Environ: []string{"PATH=" + dir, "UV_PYTHON_INSTALL_DIR=" + uv}})
	if err != nil {
		t.Fatal(err)
	}
	g := b.Host()
	if i := slices.IndexFunc(g.Interpreters, func(i pipeline.Interpreter) bool { return i.Minor() == "3.9" }); i < 0 || g.Interpreters[i].Path != "/opt/py/bin/python3.9" {
		t.Errorf("a Python of uv is taken before the one on PATH: %+v", g.Interpreters)
	}
	if !slices.Equal(g.Pythons, []string{"3.9", "3.14"}) || !slices.Equal(g.GCCs, []string{"12", "13"}) {
		t.Errorf("%q %q", g.Pythons, g.GCCs)
	}
	env := &pipeline.GivenPython{CUDAHome: "/conda", Nvcc: "12.4"}
	env.Facts.Python, env.Executable = "3.10.2", "/conda/bin/python"
	env.Details.Header = true
	with, err := New(t.Context(), Options{Dir: t.TempDir(), Environ: []string{"PATH=" + dir}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	g = with.Host()
	if !slices.Equal(g.Pythons, []string{"3.10"}) || g.CUDA != "12.4" || g.CUDAHome != "/conda" {
		t.Errorf("%+v", g)
	}
	if a, b := b.Base(), with.Base(); a.Digest == b.Digest || !a.Host || a.Ref != "host" {
		t.Errorf("%+v %+v", a, b)
	}
	if i, ok := with.uvInstaller(); !ok || i.Path != "/opt/py/bin/python3" {
		t.Errorf("uv is installed by %+v", i)
	}
}

func TestStreamKeepsBothEnds(t *testing.T) {
	var log bytes.Buffer
	s := &stream{log: &log, step: newRecord()}
	s.Write([]byte("first error: here\nhalf"))
	s.Write([]byte(" a line\n"))
	filler := bytes.Repeat([]byte("a line that says nothing\n"), 1000)
	for range 200 {
		s.Write(filler)
	}
	s.Write(bytes.Repeat([]byte("x"), 3*maxLine))
	s.Write([]byte("\nthe last"))
	s.flushLine()
	kept := s.keptText()
	if !strings.HasPrefix(kept, "first error: here\nhalf a line\n") || !strings.HasSuffix(kept, "\nthe last\n") || len(kept) > 4*keptBytes {
		t.Errorf("kept are %d bytes: %.40q … %.40q", len(kept), kept, kept[len(kept)-40:])
	}
	if log.Len() < 5_000_000 {
		t.Errorf("the log has %d bytes", log.Len())
	}
}

func TestParseStat(t *testing.T) {
	pid, state, sid := parseStat([]byte("42 (a) R 7 (b) S 1 42 17 0 -1\n"))
	if pid != 42 || state != 'S' || sid != 17 {
		t.Error(pid, string(state), sid)
	}
	for _, bad := range []string{"", ")(", "1 (x", "1 (x) S", "x"} {
		if _, _, sid := parseStat([]byte(bad)); sid != 0 {
			t.Errorf("%q: %d", bad, sid)
		}
	}
}

func TestSiteVariables(t *testing.T) {
	for name, want := range map[string]bool{
		"HTTPS_PROXY": true, "no_proxy": true, "UV_DEFAULT_INDEX": true, "UV_INDEX_CORP_USERNAME": true, "PIP_CONFIG_FILE": true, "REQUESTS_CA_BUNDLE": true,
		"PIP_PREFIX": false, "PIP_TARGET": false, "UV_PYTHON": false, "UV_CACHE_DIR": false, "PYTHONPATH": false, "XPIP_INDEX_URL": false, "CCACHE_DIR": false, "AWS_SECRET_ACCESS_KEY": false,
	} {
		if siteVariables.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// The nodes of make quickstart download torch to where a build looks for it.
func TestDownloadsAreShared(t *testing.T) {
	b := &Builder{opt: Options{Dir: DefaultDir()}}
	got, err := python.Downloads()
	if err != nil || got != b.downloadsDir() {
		t.Errorf("%s, %v, and the build's are in %s", got, err, b.downloadsDir())
	}
}
