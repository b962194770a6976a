package environment_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
)

// A uv on PATH is used if it is new enough, by numbers and not by letters; another one comes from the
// index, once.
func TestFindUV(t *testing.T) {
	x := wheelindex.New(t)
	for _, v := range []string{"0.9.10", "0.9.11"} {
		x.Add(t, wheelindex.Wheel{Name: "uv", Version: v, Tag: "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", Files: map[string]string{"uv-" + v + ".data/scripts/uv": "from the index"}})
	}
	for said, own := range map[string]bool{
		"echo 'uv 0.9.10 (abc 2026-01-01)'":    true,
		"echo 'uv 0.10.0'":                     true,
		"echo 'uv 0.9.9'":                      false,
		"echo 'uv 0.9.10'; exit 1":             false,
		"echo 'ultraviolet 9.9'":               false,
		"echo uv":                              false,
		"exit 127":                             false,
		"echo 'pyenv: uv: command not found!'": false,
	} {
		bin, dir := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "uv"), []byte("#!/bin/sh\n"+said+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":/usr/bin:/bin")
		x.Gets.Store(0)
		c := collector(t, x)
		for range 2 {
			got, err := environment.FindUV(t.Context(), environment.UV{Version: "0.9.10", Sums: x.Installer(t).Sums}, dir, c)
			if err != nil || (got == filepath.Join(bin, "uv")) != own {
				t.Errorf("%s: %s, %v", said, got, err)
				continue
			}
			if text, _ := os.ReadFile(got); !own && string(text) != "from the index" {
				t.Errorf("%s: %s holds %q", said, got, text)
			}
			if info, err := os.Stat(got); err == nil && info.Mode()&0o111 == 0 {
				t.Errorf("%s cannot be executed", got)
			}
		}
		if n := x.Gets.Load(); n > 1 || (n == 0) != own {
			t.Errorf("%s: %d downloads", said, n)
		}
	}
}

// A uv in the cache is run only if it has the published sha256, compared each time: another account may have put it there.
func TestUVInTheCacheIsCompared(t *testing.T) {
	x := wheelindex.New(t)
	x.Add(t, wheelindex.Wheel{Name: "uv", Version: "9.0", Tag: "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", Files: map[string]string{"uv-9.0.data/scripts/uv": "published"}})
	t.Setenv("PATH", "/nonexistent")
	c, uv := collector(t, x), environment.UV{Version: "9.0", Sums: x.Installer(t).Sums}
	find := func() string {
		t.Helper()
		path, err := environment.FindUV(t.Context(), uv, t.TempDir(), c)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	find()
	wheels, err := filepath.Glob(filepath.Join(c.Cache, "*", "uv-*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("the cache has %q, %v, want one wheel", wheels, err)
	}
	evil := wheelindex.New(t).Add(t, wheelindex.Wheel{Name: "uv", Version: "9.0", Tag: "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", Files: map[string]string{"uv-9.0.data/scripts/uv": "evil"}})
	text, err := os.ReadFile(evil)
	if err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func() error{
		"another wheel": func() error { return os.WriteFile(wheels[0], text, 0o644) },
		"a pipe":        func() error { return errors.Join(os.Remove(wheels[0]), syscall.Mkfifo(wheels[0], 0o644)) },
		"a program in the place of older versions": func() error {
			old := filepath.Join(c.Cache, "uv-9.0")
			return errors.Join(os.RemoveAll(filepath.Dir(wheels[0])), os.MkdirAll(old, 0o755), os.WriteFile(filepath.Join(old, "uv"), []byte("evil"), 0o755))
		},
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if got := find(); got != "published" {
			t.Errorf("%s: ran %q, want the published uv", name, got)
		}
	}
}

// Without a uv the error says so and has a hint, and nothing is left that a later run takes for a uv.
func TestNoUV(t *testing.T) {
	x := wheelindex.New(t)
	const tag = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
	x.Add(t, wheelindex.Wheel{Name: "uv", Version: "1.0", Tag: "py3-none-macosx_11_0_arm64", Files: map[string]string{"uv-1.0.data/scripts/uv": "x"}})
	x.Add(t, wheelindex.Wheel{Name: "uv", Version: "2.0", Tag: tag})
	path := x.Add(t, wheelindex.Wheel{Name: "uv", Version: "3.0", Tag: tag, Files: map[string]string{"uv-3.0.data/scripts/uv": strings.Repeat("program ", 1000)}})
	t.Setenv("PATH", "/nonexistent")
	sums := x.Installer(t).Sums
	for version, want := range map[string]string{
		"0.1": "no wheel for this platform",
		"1.0": "no wheel for this platform",
		"2.0": "uv's wheel contains no executable",
		"3.0": "on the index, but ",
	} {
		c, dir := collector(t, x), t.TempDir()
		if version == "3.0" { // the page is read before the file changes
			if _, err := c.Client.Files(t.Context(), x.URL, "uv"); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text[len(text)/2] ^= 1
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_, err := environment.FindUV(t.Context(), environment.UV{Version: version, Sums: sums}, dir, c)
		if err == nil || !strings.HasPrefix(err.Error(), "no uv "+version+" or newer on PATH, and none from the index: ") || !strings.Contains(err.Error(), want) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, hint %q", version, err, fault.Hint(err))
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) > 0 {
			t.Errorf("%s: left %q", version, left)
		}
	}
}

// A uv that its makers did not publish is not run, on this machine or on a node, whatever the index says of it.
func TestOtherUV(t *testing.T) {
	x, dir := wheelindex.New(t), t.TempDir()
	published := environment.UV{Version: dockerfiles.UVVersion(), Sums: dockerfiles.UVSums()}
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	r := resolver(t, x)
	r.Installer = published
	_, err := r.Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\n"), []environment.Platform{old}, nil, dir)
	if err == nil || !strings.Contains(err.Error(), "no file on the index has a sha256 that this dsbuild accepts") || fault.ExitCode(err) != 4 {
		t.Errorf("%v (exit code %d), want a refusal with exit code 4", err, fault.ExitCode(err))
	}
	t.Setenv("PATH", "/nonexistent")
	dir = t.TempDir()
	_, err = environment.FindUV(t.Context(), published, dir, collector(t, x))
	if err == nil || !strings.Contains(err.Error(), "no file on the index has a sha256 that this dsbuild accepts") || fault.ExitCode(err) != 4 {
		t.Errorf("%v (exit code %d), want a refusal with exit code 4", err, fault.ExitCode(err))
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}
}

// Without a client Collect names the files that are here and fetches none; a file of the folder that is another one is an
// error also then.
func TestCollectHere(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	path := x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.0"})
	l, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha, beta]\n"), []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	files, c := l.Sets[0].Files, collector(t, x)
	c.Client = nil
	x.Gets.Store(0)
	if paths, err := c.Collect(t.Context(), l, files); err != nil || len(paths) != 0 {
		t.Errorf("%v, %v", paths, err)
	}
	c.Folder = t.TempDir()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(c.Folder, filepath.Base(path))
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if paths, err := c.Collect(t.Context(), l, files); err != nil || len(paths) != 1 || paths[files[0].SHA256] != copied || x.Gets.Load() != 0 {
		t.Errorf("%v, %v, %d downloads", paths, err, x.Gets.Load())
	}
	if err := os.WriteFile(copied, text[:len(text)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = c.Collect(t.Context(), l, files)
	if fault.ExitCode(err) != 4 || !strings.Contains(fault.Hint(err), `"env lock"`) || !strings.Contains(err.Error(), copied) {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}
