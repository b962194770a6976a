package pipeline_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/pipeline"
)

// looked is an answer of the script, whole.
const looked = "look\t1\nmachine\tx86_64\nglibc\t2.36\nos\tdebian\tbookworm\tDebian GNU/Linux 12 (bookworm)\n" +
	"python\t3.11.2\t/usr/bin/python3\tvenv,ensurepip,pip,Python.h\npython\t3.9.18\t/opt/py/bin/python3.9\t-\n" +
	"gcc\t12.2.0\t/usr/bin/gcc\t/usr/bin/g++\theaders\ngcc\t12.2.0\t/usr/bin/gcc-12\t/usr/bin/g++-12\theaders\ngcc\t11.3.0\t/usr/bin/gcc-11\t-\t-\n" +
	"cuda\t12.4\t/usr/local/cuda\ntool\tstrip\nend\n"

func TestParseGround(t *testing.T) {
	g, err := pipeline.ParseBuildHost(looked)
	if err != nil {
		t.Fatal(err)
	}
	want := compat.BuildHost{
		Name: "Debian GNU/Linux 12 (bookworm)", Suite: "bookworm", Glibc: "2.36", Pythons: []string{"3.11", "3.9"}, GCCs: []string{"12"},
		CUDA: "12.4", CUDAHome: "/usr/local/cuda", Machine: "x86_64",
	}
	if got := g.BuildHost; got.Name != want.Name || got.Suite != want.Suite || got.Glibc != want.Glibc || !slices.Equal(got.Pythons, want.Pythons) ||
		!slices.Equal(got.GCCs, want.GCCs) || got.CUDA != want.CUDA || got.CUDAHome != want.CUDAHome || got.Machine != want.Machine {
		t.Errorf("%+v", got)
	}
	if i := g.Interpreters[0]; !i.Has("ensurepip") || i.Minor() != "3.11" || g.Interpreters[1].Has("venv") {
		t.Errorf("%+v", g.Interpreters)
	}
	if c := g.Compilers[2]; c.Complete() || c.CC != "/usr/bin/gcc-11" || !g.Compilers[0].Complete() {
		t.Errorf("%+v", g.Compilers)
	}
	other, err := pipeline.ParseBuildHost(strings.Replace(looked, "12.2.0\t/usr/bin/gcc\t", "12.3.0\t/usr/bin/gcc\t", 1))
	if err != nil || other.Digest == g.Digest {
		t.Errorf("another gcc gives the same digest: %v", err)
	}
}

// A base is not trusted: what is not just as the script says it is refused.
func TestParseGroundRefuses(t *testing.T) {
	with := func(line string) string { return "look\t1\n" + line + "\nend\n" }
	for name, text := range map[string]string{
		"nothing":              "",
		"another version":      strings.Replace(looked, "look\t1", "look\t2", 1),
		"cut off":              strings.TrimSuffix(looked, "end\n"),
		"noise behind":         looked + "x\n",
		"an unknown fact":      with("shell\t/bin/sh"),
		"a field too many":     with("machine\tx86_64\tx"),
		"a field too few":      with("cuda\t12.4"),
		"an escape":            with("os\tdebian\tbookworm\tDebian \x1b[31m"),
		"a relative path":      with("cuda\t12.4\tusr/local/cuda"),
		"a path for a shell":   with("cuda\t12.4\t/usr/$(reboot)"),
		"a path of two":        with("cuda\t12.4\t/usr/local:/tmp"),
		"a path with a space":  with("gcc\t12\t/opt/my gcc\t-\t-"),
		"no version":           with("cuda\ttwelve\t/usr"),
		"an unknown part":      with("python\t3.11.2\t/usr/bin/python3\tnumpy"),
		"an endless word":      with("machine\t" + strings.Repeat("x", 1000)),
		"endless":              with("tool\t" + strings.Repeat("x", 1<<17)),
		"lines without end":    "look\t1\n" + strings.Repeat("tool\tstrip\n", 1000) + "end\n",
		"a path that is a dot": with("cuda\t12.4\t."),
	} {
		if g, err := pipeline.ParseBuildHost(text); err == nil {
			t.Errorf("%s: %+v", name, g)
		} else if len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\x1b") {
			t.Errorf("%s: %q", name, err)
		}
	}
}

func FuzzParseGround(f *testing.F) {
	f.Add(looked)
	f.Add("look\t1\nend\n")
	f.Add("look\t1\npython\t3.1\t/a/../..\t-\nend")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := pipeline.ParseBuildHost(text)
		if err != nil {
			return
		}
		for _, path := range append([]string{g.CUDAHome}, paths(g)...) {
			if path != "" && (!filepath.IsAbs(path) || strings.ContainsAny(path, ": \t\n$;'\"\\")) {
				t.Errorf("path %q", path)
			}
		}
	})
}

func paths(g pipeline.BuildHost) []string {
	var out []string
	for _, i := range g.Interpreters {
		out = append(out, i.Path)
	}
	for _, c := range g.Compilers {
		out = append(out, c.CC, c.CXX)
	}
	return out
}

// look runs the script with a PATH and an environment of its own.
func look(t *testing.T, env ...string) string {
	t.Helper()
	text, err := pipeline.InspectText()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// program writes a program of the shell.
func program(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// In the place of pyenv's shims the versions are asked that they would start; the shims
// of others, and those of a pyenv that does not answer, are asked themselves.
func TestLookBehindShims(t *testing.T) {
	const answer = "printf '%s\\t%s\\t-\\n' "
	home := t.TempDir()
	pyenv, other, bin := filepath.Join(home, "pyenv"), filepath.Join(home, "other"), filepath.Join(home, "bin")
	program(t, filepath.Join(pyenv, "shims/python3.7"), answer+"3.7.1 /shim\n")
	program(t, filepath.Join(pyenv, "versions/3.8.18/bin/python3.8"), answer+"3.8.18 /active\n")
	program(t, filepath.Join(pyenv, "versions/3.9.18/bin/python3.9"), answer+"3.9.18 /inactive\n")
	program(t, filepath.Join(other, "shims/python3.6"), answer+"3.6.15 /other\n")
	path := "PATH=" + strings.Join([]string{bin, pyenv + "/shims", other + "/shims", "/usr/bin", "/bin"}, ":")
	for name, c := range map[string]struct {
		pyenv         string
		found, passed []string
	}{
		"no pyenv":              {"", []string{"/shim", "/other"}, []string{"/active", "/inactive"}},
		"pyenv":                 {`[ "$PYENV_ROOT" = ` + pyenv + " ] && echo system:3.8.18\n", []string{"/active", "/other"}, []string{"/shim", "/inactive"}},
		"pyenv without version": {"echo 'pyenv: version 1 is not installed'; exit 1\n", []string{"/shim", "/other"}, []string{"/active", "/inactive"}},
	} {
		if c.pyenv != "" {
			program(t, filepath.Join(bin, "pyenv"), c.pyenv)
		}
		g, err := pipeline.ParseBuildHost(look(t, path))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range c.found {
			if !slices.Contains(paths(g), want) {
				t.Errorf("%s: %s not found: %+v", name, want, g.Interpreters)
			}
		}
		for _, not := range c.passed {
			if slices.Contains(paths(g), not) {
				t.Errorf("%s: %s found: %+v", name, not, g.Interpreters)
			}
		}
		_ = os.Remove(filepath.Join(bin, "pyenv")) // of the next case
	}
}

// The script finds a toolkit by its variable, by nvcc on PATH, and compilers
// with another number; what it cannot ask it leaves out.
func TestLookScript(t *testing.T) {
	home, bin := t.TempDir(), t.TempDir()
	write := func(file, text string) { program(t, file, text) }
	write(filepath.Join(home, "bin/nvcc"), "echo 'Cuda compilation tools, release 12.4, V12.4.131'\n")
	write(filepath.Join(bin, "gcc-13"), "printf '13.2.0\\033[1m\\n'\n")
	write(filepath.Join(bin, "g++-13"), "exit 0\n")
	write(filepath.Join(bin, "gcc-14"), "exit 1\n")
	write(filepath.Join(bin, "python3.7"), "echo 'pyenv: python3.7: command not found' >&2; exit 127\n")
	path := bin + ":/usr/bin:/bin"
	for name, env := range map[string][]string{
		"CUDA_HOME": {"PATH=" + path, "CUDA_HOME=" + home},
		"PATH":      {"PATH=" + path + ":" + home + "/bin"},
		"both":      {"PATH=relative:" + path, "CUDA_PATH=" + home, "CUDA_HOME=/nowhere"},
	} {
		g, err := pipeline.ParseBuildHost(look(t, env...))
		if err == nil {
			t.Errorf("%s: an escape in a version came through: %+v", name, g.Compilers)
		}
	}
	write(filepath.Join(bin, "gcc-13"), "echo 13.2.0\n")
	for name, env := range map[string][]string{
		"CUDA_HOME": {"PATH=" + path, "CUDA_HOME=" + home},
		"PATH":      {"PATH=" + path + ":" + home + "/bin"},
		"CUDA_PATH": {"PATH=relative:" + path, "CUDA_PATH=" + home, "CUDA_HOME=/nowhere"},
	} {
		g, err := pipeline.ParseBuildHost(look(t, env...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if g.CUDA != "12.4" || g.CUDAHome != home {
			t.Errorf("%s: CUDA %q in %q", name, g.CUDA, g.CUDAHome)
		}
		i := slices.IndexFunc(g.Compilers, func(c pipeline.Compiler) bool { return c.CC == filepath.Join(bin, "gcc-13") })
		if i < 0 || g.Compilers[i].CXX != filepath.Join(bin, "g++-13") || !slices.Contains(g.GCCs, "13") {
			t.Errorf("%s: %+v", name, g.Compilers)
		}
		if strings.Contains(strings.Join(paths(g), " "), "gcc-14") || slices.Contains(g.Pythons, "3.7") {
			t.Errorf("%s: what does not run was found: %+v", name, g)
		}
	}
}
