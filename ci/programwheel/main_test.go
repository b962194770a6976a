package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// pip and uv install the program from its wheel, and the same program gives the same wheel.
func TestPipAndUVInstallTheProgram(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := needs.Program(t, root)
	t.Chdir(t.TempDir())
	for _, file := range []string{"README.md", "LICENSE", "NOTICE"} {
		if err := os.Symlink(filepath.Join(root, file), file); err != nil {
			t.Fatal(err)
		}
	}
	run(t, program, "man", "bin/share/man")
	if err := os.MkdirAll("bin/share/completions", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if err := os.WriteFile("bin/share/completions/dsbuild."+shell, []byte(run(t, program, "completion", shell)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	made, texts := [2]string{}, [2][]byte{}
	for i, dir := range []string{"first", "second"} {
		if made[i], err = writeWheel(program, system, "0.1.0", dir); err != nil {
			t.Fatal(err)
		}
		if texts[i], err = os.ReadFile(made[i]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Errorf("two wheels of one program differ; want the same bytes")
	}
	archive, err := wheel.Open(made[0])
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if found, err := archive.VerifyRecord(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("RECORD: %v, %v; want no difference", found, err)
	}
	py, err := python.Find(t.Context(), "3.11")
	if err != nil {
		needs.Missing(t, "no Python 3.11: %v", err)
	}
	uv, err := python.GetUV(t.Context(), py, func(line string) { t.Log(line) })
	if err != nil {
		needs.Missing(t, "no uv: %v", err)
	}
	run(t, py, "-m", "venv", "pip")
	run(t, "pip/bin/python", "-m", "pip", "install", "-q", "--no-index", made[0])
	run(t, uv.Program(), "venv", "-q", "--python", py, "uv")
	run(t, uv.Program(), "pip", "install", "-q", "--no-index", "--python", "uv", made[0])
	want := run(t, program, "version")
	for _, env := range []string{"pip", "uv"} {
		if got := run(t, filepath.Join(env, "bin/dsbuild"), "version"); got != want {
			t.Errorf("dsbuild version, installed by %s: %q; want %q", env, got, want)
		}
		for _, file := range []string{"man/man1/dsbuild-wheel.1", "bash-completion/completions/dsbuild", "zsh/site-functions/_dsbuild", "fish/vendor_completions.d/dsbuild.fish"} {
			if _, err := os.Stat(filepath.Join(env, "share", file)); err != nil {
				t.Errorf("installed by %s: %v", env, err)
			}
		}
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

func TestPythonVersion(t *testing.T) {
	for _, c := range []struct{ release, want string }{
		{"0.1.0", "0.1.0"},
		{"0.1.0-rc.2", "0.1.0rc2"},
		{"0.1.0-snapshot.bd3915c8", "0.1.0.dev0+bd3915c8"},
		{"0.0.0-snapshot.none", "0.0.0.dev0+none"},
		{"v0.1.0", ""},
		{"0.1", ""},
		{"0.1.0-next", ""},
	} {
		got, err := pythonVersion(c.release)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.release, got, err, c.want)
		}
	}
}

// A link of README.md leads to the repository, wherever the description is read.
func TestRelativeLink(t *testing.T) {
	const text = "[a](docs/a.md), [b](docs/b.md#c), [d](https://x/y), [e](#f), [g](LICENSE)"
	const want = "[a](R/docs/a.md), [b](R/docs/b.md#c), [d](https://x/y), [e](#f), [g](R/LICENSE)"
	if got := relativeLink.ReplaceAllString(text, "](R/$1"); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
