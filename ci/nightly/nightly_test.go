// Package nightly tests the script that runs a night.
package nightly

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// night runs nightly.sh in a checkout whose dsbuild is the given script, and
// returns its output, its exit code and the folder it worked in.
func night(t *testing.T, dsbuild string, args ...string) (string, int, string) {
	t.Helper()
	root := t.TempDir()
	script, err := os.ReadFile("nightly.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ci/nightly/nightly.sh": string(script), "bin/dsbuild": "#!/bin/bash\n" + dsbuild} {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(root, "ci/nightly/nightly.sh"), args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode(), root
}

func TestNight(t *testing.T) {
	const works = `echo "$@" >>calls; echo some progress >&2; [ "$1" = wheel ] && echo '{"wheels":[]}'; exit 0`
	out, code, root := night(t, works, "inventory.yaml", "8.0")
	if code != 0 || out != "" {
		t.Errorf("a good night: exit %d, says %q", code, out)
	}
	calls, err := os.ReadFile(filepath.Join(root, "calls"))
	if want := "wheel --arch 8.0 --json -o nightly/dist\ndeploy inventory.yaml --wheel nightly/dist --report nightly/report.json\n"; err != nil || string(calls) != want {
		t.Errorf("%v, calls %q", err, calls)
	}
	if text, err := os.ReadFile(filepath.Join(root, "nightly/wheel.json")); err != nil || string(text) != "{\"wheels\":[]}\n" {
		t.Errorf("wheel.json %q, %v", text, err)
	}
}

func TestNightFails(t *testing.T) {
	for what, c := range map[string]struct {
		dsbuild string
		code    int
	}{
		"wheel":  {"echo 'the audit says no' >&2; exit 4", 4},
		"deploy": {`[ "$1" = wheel ] && exit 0; echo 'the audit says no' >&2; exit 3`, 3},
	} {
		out, code, _ := night(t, c.dsbuild, "inventory.yaml", "8.0")
		if code != c.code || !strings.Contains(out, "the audit says no") {
			t.Errorf("%s: exit %d, says %q", what, code, out)
		}
	}
	if _, code, _ := night(t, "", "inventory.yaml"); code != 2 {
		t.Errorf("no arch: exit %d", code)
	}
}

// An engine that the night starts lives on; the lock must not live with it.
func TestLock(t *testing.T) {
	const leaves = `sleep 30 >/dev/null 2>&1 & echo $! >>child; exit 0`
	_, code, root := night(t, leaves, "inventory.yaml", "8.0")
	defer exec.Command("sh", "-c", `kill $(cat "$0")`, filepath.Join(root, "child")).Run() //nolint:errcheck // it may have ended
	if code != 0 {
		t.Fatal(code)
	}
	again := exec.Command(filepath.Join(root, "ci/nightly/nightly.sh"), "inventory.yaml", "8.0")
	again.Dir = root
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("the second night: %v %s", err, out)
	}
	held := exec.Command("flock", filepath.Join(root, "nightly/.lock"), filepath.Join(root, "ci/nightly/nightly.sh"), "inventory.yaml", "8.0")
	held.Dir = root
	if out, err := held.CombinedOutput(); err == nil || !strings.Contains(string(out), "another night still runs") {
		t.Errorf("while one runs: %v %s", err, out)
	}
}
