package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Root in a plain container learns which right is missing before anything is installed. The test
// runs the program once more without that right.
func TestRightsOfRoot(t *testing.T) {
	if os.Getenv("DSBUILD_TEST_RIGHTS") != "" {
		err := checkRights(cgroupRoot)
		if err == nil || !strings.Contains(err.Error(), os.Getenv("DSBUILD_TEST_RIGHTS")) || fault.Hint(err) == "" {
			t.Fatalf("%v, hint %q", err, fault.Hint(err))
		}
		return
	}
	skip := t.Skipf
	if os.Getenv("CI") == "true" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("needs root")
	}
	if err := checkRights(cgroupRoot); err != nil {
		skip("%v", err)
	}
	for capability, want := range map[string]string{
		"-sys_admin": "making namespaces: operation not permitted",
		"-mknod":     "making a device: operation not permitted",
	} {
		cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set="+capability, os.Args[0], "-test.run=^TestRightsOfRoot$")
		cmd.Env = append(os.Environ(), "DSBUILD_TEST_RIGHTS="+want)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", capability, err, out)
		}
	}
}

func TestCgroups(t *testing.T) {
	if err := tryCgroup(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no control groups") {
		t.Error(err)
	}
	for _, tree := range []string{"", "memory"} {
		root := t.TempDir()
		put(t, filepath.Join(root, tree, "cgroup.procs"), "")
		if err := tryCgroup(root); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(root, tree, "dsbuild-*")); len(left) > 0 {
			t.Error(left)
		}
	}
}

// The engine's containers have the weight of a process for each core, in both versions of control groups.
func TestWeighCgroup(t *testing.T) {
	for file, want := range map[string]string{"cpu/engine/cpu.shares": "4096", "engine/cpu.weight": "400"} {
		root := t.TempDir()
		put(t, filepath.Join(root, file), "")
		weighCgroup(root, "engine", 4)
		if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %s", file, got, err, want)
		}
	}
}

// If there is no engine, check and ensure say so in one line, with the same exit code, and make
// nothing.
func TestNoEngine(t *testing.T) {
	var stdout bytes.Buffer
	err := &noEngineError{[]engine.Attempt{
		{Where: "dsbuild's own engine in /x", Why: "not installed"},
		{Where: "docker", Why: "cannot reach the daemon (permission denied)"},
		{Where: "podman", Why: "not installed"},
	}, errors.New("dsbuild's own engine needs root")}
	const want = "no engine in Docker, podman or nerdctl (docker: cannot reach the daemon (permission denied)), and dsbuild's own engine needs root"
	if err.Error() != want || err.ExitCode() != 3 {
		t.Errorf("%d %s", err.ExitCode(), err)
	}
	home := filepath.Join(t.TempDir(), "state", "engine")
	t.Setenv("DSBUILD_ENGINE", "tcp://127.0.0.1:1")
	if err := Check(t.Context(), At(home), &stdout); err == nil || !strings.Contains(err.Error(), "DSBUILD_ENGINE") {
		t.Errorf("an engine that was asked for: %v", err)
	}
	if err := Ensure(t.Context(), At(home), newConsole(&stdout), &stdout); err == nil || !strings.Contains(err.Error(), "DSBUILD_ENGINE") {
		t.Errorf("an engine that was asked for: %v", err)
	}
	if nearestFolder(home) != filepath.Dir(filepath.Dir(home)) {
		t.Errorf("%s was made", nearestFolder(home))
	}
}

// A container client whose registry is out of reach starts no engine: ensure goes on with another one.
func TestBringImage(t *testing.T) {
	bin := t.TempDir()
	put(t, filepath.Join(bin, "podman"), "#!/bin/sh\n[ \"$1\" = pull ] && echo trying >&2 && echo 'no such host' >&2\nexit 125\n")
	put(t, filepath.Join(bin, "docker"), "#!/bin/sh\n[ \"$1 $2\" = 'image inspect' ]\n")
	for _, client := range []string{"podman", "docker"} {
		if err := os.Chmod(filepath.Join(bin, client), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	con := newConsole(io.Discard)
	if err := bringImage(t.Context(), con, "docker"); err != nil {
		t.Errorf("a client that has the image: %v", err)
	}
	var none *engine.NotFoundError
	if err := bringImage(t.Context(), con, "podman"); !errors.As(err, &none) || !strings.Contains(err.Error(), "podman: cannot pull "+engine.Image+" (no such host)") {
		t.Errorf("a client that cannot pull the image: got %v", err)
	}
}
