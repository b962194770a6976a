//go:build full

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/wheel"
)

// nobody is the number of the user that owns nothing.
const nobody = 65534

// login is a user of this machine who is not root, as on a login node: a home
// of its own, and PATH as it comes.
type login struct {
	home    string
	program string // dsbuild
}

func newLogin(t *testing.T) login {
	t.Helper()
	hostPackages(t)
	home, err := os.MkdirTemp("/var/tmp", "dsbuild-login-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	l := login{home, filepath.Join(home, "dsbuild")} // a copy, in a folder that this user can read
	command(t, ".", "cp", makeProgram(t), l.program)
	if os.Getuid() == 0 {
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// hostPackages installs what dsbuild would otherwise say that this machine lacks.
func hostPackages(t *testing.T) {
	t.Helper()
	wanted := []string{"gcc", "g++", "libc6-dev", "binutils", "python3-dev", "python3-venv"}
	if exec.Command("dpkg", append([]string{"--status"}, wanted...)...).Run() == nil {
		return
	}
	if os.Getuid() != 0 {
		t.Fatalf("this machine needs %s", strings.Join(wanted, ", "))
	}
	command(t, ".", "apt-get", append([]string{"-qy", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"}, wanted...)...)
}

// wheel runs dsbuild wheel as this user.
func (l login) wheel(t *testing.T, args ...string) wheel.Artifact {
	t.Helper()
	cmd := exec.Command(l.program, append([]string{"wheel", "--builder", "host", "--json"}, args...)...)
	cmd.Dir = l.home
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{"PATH", "HOME", "TMPDIR"}, name) && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "PYTHON") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+l.home, "PATH=/usr/local/bin:/usr/bin:/bin")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(&stderr, testLog{t})
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var doc wheelResult
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, &stdout)
	}
	a := doc.Wheels[0]
	a.Path = filepath.Join(l.home, a.Path) // was said from there
	return a
}

// On Debian 12, which is what the default base is, the host builder makes as
// another user than root what the Dagger builder makes: the manifests differ in
// builder, base, and what follows from the base; the extensions in nothing that
// inspect sees, and those without device code not in a byte. For an environment
// with the same torch it makes them once more, beside it.
func TestFullHost(t *testing.T) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil || !strings.Contains(string(release), "VERSION_CODENAME=bookworm") {
		t.Fatal("this compares builds on Debian 12 with builds in it: it needs a machine with Debian 12")
	}
	dagger := build(t, "--builder", "dagger", "--arch", "8.0", "-o", t.TempDir())
	user := newLogin(t)
	host := user.wheel(t, "--arch", "8.0", "-o", "dist")
	if host.Cached {
		t.Error("the wheel comes from a store")
	}
	if a, b := withoutBase(t, dagger.Manifest), withoutBase(t, host.Manifest); a != b {
		t.Errorf("the manifests differ:\n%s\n%s", a, b)
	}
	if host.Manifest.Builder != "host" || host.Manifest.Base.Ref != "host" || host.Manifest.Base.Digest == "" {
		t.Errorf("%+v", host.Manifest)
	}
	sameExtensions(t, host.Path, dagger.Path)
	t.Logf("result: host builder, not root: the extensions that Dagger makes, in %.0f s", host.Seconds)
	user.beside(t, build(t, "--builder", "dagger", "--arch", "8.0", "--cuda", "13", "-o", t.TempDir()).Path)
	if left, _ := filepath.Glob(filepath.Join(user.home, ".cache/dsbuild/host/run-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// beside builds for an environment that is there.
func (l login) beside(t *testing.T, want string) {
	t.Helper()
	runtime := filepath.Join(l.home, ".cache/dsbuild/host/environments/*/runtime")
	torches, err := filepath.Glob(filepath.Join(runtime, "lib/python*/site-packages/torch-"+nodes.DefaultTorch+"*.dist-info"))
	if err != nil || len(torches) != 1 {
		t.Fatalf("%q, %v; want one environment with torch %s", torches, err, nodes.DefaultTorch)
	}
	env := filepath.Join(l.home, "train")
	command(t, ".", "cp", "-al", filepath.Join(torches[0], "../../../.."), env)
	before := tree(t, env)
	built := l.wheel(t, "--env", filepath.Join(env, "bin", "python"), "--arch", "8.0", "-o", "beside")
	if after := tree(t, env); !maps.Equal(before, after) {
		t.Error("the build has changed the environment that it was for")
	}
	sameExtensions(t, built.Path, want)
	t.Logf("result: beside an environment of %d files, none of which changed: the same extensions, in %.0f s", len(before), built.Seconds)
}

// withoutBase is a manifest without what differs from builder to builder.
func withoutBase(t *testing.T, m wheel.Manifest) string {
	t.Helper()
	m.Name, m.Builder, m.Base, m.PlanDigest, m.SHA256, m.Size, m.BuiltAt, m.Dsbuild = "", "", wheel.Base{}, "", "", 0, nil, ""
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sameExtensions compares what is inside two wheels. Names that nvcc makes up may
// hold the place of a build, which a container has in common with every other one.
func sameExtensions(t *testing.T, got, want string) {
	t.Helper()
	a, b := contents(t, got), contents(t, want)
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%d extensions, in a container %d", len(a), len(b))
	}
	sums, expected := extensions(t, got), extensions(t, want)
	for i := range a {
		device := len(a[i].SASS)+len(a[i].PTX) > 0
		switch same := sums[a[i].Path] == expected[a[i].Path]; {
		case !device && !same:
			t.Errorf("%s differs from that of the container", a[i].Path)
		case device:
			t.Logf("result: %s, with device code: the same bytes: %v; needs glibc %s, in a container %s", a[i].Path, same, a[i].Glibc, b[i].Glibc)
			a[i].Glibc, b[i].Glibc = "", ""
		}
		a[i].Size, b[i].Size = 0, 0
		if x, y := inspected(t, a[i]), inspected(t, b[i]); x != y {
			t.Errorf("%s\nin a container %s", x, y)
		}
	}
}

// inspected is an extension as inspect --json shows it. The number of its instructions is not there: beside an environment
// CUB finds no headers of NVTX, and leaves out the names of its kernels for profilers.
func inspected(t *testing.T, e wheel.Extension) string {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func contents(t *testing.T, file string) []wheel.Extension {
	t.Helper()
	c, err := wheel.Inspect(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	return c.Extensions
}

// extensions are the hashes of the extensions in a wheel, by name.
func extensions(t *testing.T, file string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", file, dir)
	all := map[string]string{}
	for name, sum := range tree(t, dir) {
		if strings.HasSuffix(name, ".so") {
			all[name] = sum
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no extension", file)
	}
	return all
}

// tree hashes every file below a directory, by name.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			all[name], err = os.Readlink(path)
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all[name] = hex.EncodeToString(h.Sum(nil))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
