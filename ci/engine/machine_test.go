package main

import (
	"bytes"
	"errors"
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

// If there is no engine, check and ensure say so in one line, with the same exit code, and make
// nothing.
func TestNoEngine(t *testing.T) {
	var stdout bytes.Buffer
	err := &noEngineError{[]engine.Attempt{
		{Where: "dsbuild's own engine in /x", Why: "not installed"},
		{Where: "docker", Why: "client without a daemon (permission denied)"},
		{Where: "podman", Why: "not installed"},
	}, errors.New("dsbuild's own engine needs root")}
	const want = "no engine in Docker, podman or nerdctl (docker: client without a daemon (permission denied)), and dsbuild's own engine needs root"
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

// If podman answers but cannot get the engine's image, dsbuild's own engine takes its place.
func TestClientWithoutImage(t *testing.T) {
	bin := t.TempDir()
	podman := "#!/bin/sh\ncase $1 in version|info) echo 4.3.1 ;; container) echo 'Error: no such container' >&2; exit 1 ;;\n" +
		"image) exit 1 ;; pull) echo 'Error: no route to the registry' >&2; exit 125 ;; *) exit 9 ;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte(podman), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	finder := engine.NewFinder("", t.Logf)
	finder.Home = t.TempDir()
	found, err := finder.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = startContainer(t.Context(), found, newConsole(&bytes.Buffer{}))
	tried := failedAttempts(found, err)
	if len(tried) != 1 || tried[0].Where != "podman" || !strings.Contains(tried[0].Why, "no route to the registry") {
		t.Errorf("%v: %+v", err, tried)
	}
	if tried := failedAttempts(found, errors.New("another")); tried != nil {
		t.Errorf("%+v", tried)
	}
}
