//go:build full && linux

package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// TestFullFleetWindows deploys from dsbuild for Windows, which Wine runs, to
// OpenSSH nodes: paths, locks, keys, known_hosts and reports as they are there.
func TestFullFleetWindows(t *testing.T) {
	wine := newWine(t)
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch})
	for _, n := range fleet.Nodes {
		environment{site: siteOf(t, n.Python)}.dist(t, "einops", "0.8.0")
	}
	dir := t.TempDir()
	wheel := makeWheel(t, dir, fakeTorchWheel())
	inv, err := os.ReadFile(fleet.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(inv), `"`+fleet.IdentityFile+`"`, `'`+onWindows(fleet.IdentityFile)+`'`)
	text = strings.ReplaceAll(text, "known_hosts: known_hosts", "known_hosts: '"+onWindows(fleet.KnownHosts)+"'")
	file := filepath.Join(dir, "inventory.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(dir, "report.json")
	for _, step := range []struct{ command, says string }{
		{"nodes", "node2"},
		{"deploy --wheel " + onWindows(wheel) + " --report " + onWindows(report), "2 nodes ok, all equal: deepspeed 0.19.8"},
		{"deploy --wheel " + onWindows(wheel) + " --report " + onWindows(report), "ok, unchanged"},
		{"verify", "2 nodes ok"},
		{"rollback", "no deepspeed"},
	} {
		words := strings.Fields(step.command)
		out := wine.run(t, append([]string{words[0], onWindows(file)}, words[1:]...)...)
		if !strings.Contains(out, step.says) {
			t.Fatalf("%s: no %q in:\n%s", step.command, step.says, out)
		}
		if lines := strings.Split(strings.TrimSpace(out), "\n"); words[0] != "nodes" {
			t.Logf("result: dsbuild.exe %s: %s", words[0], lines[len(lines)-1])
		}
	}
	if text, err := os.ReadFile(report); err != nil || !strings.Contains(string(text), `"status": "ok"`) {
		t.Errorf("the report: %v %s", err, text)
	}
}

// onWindows is a path of this machine as Wine has it.
func onWindows(path string) string { return `Z:` + strings.ReplaceAll(path, "/", `\`) }

// wine runs dsbuild for Windows.
type wine struct{ prefix, program string }

// prng is what Go asks Windows for, and Wine before 9 does not have.
const prng = `#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return RtlGenRandom(p, n); }
`

func newWine(t *testing.T) *wine {
	t.Helper()
	const compiler = "x86_64-w64-mingw32-gcc-win32"
	err := debian.Ensure(t.Context(), debian.OnPath("wine", compiler), "wine", "wine64", "gcc-mingw-w64-x86-64-win32")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &wine{prefix: filepath.Join(dir, "prefix"), program: filepath.Join(dir, "dsbuild.exe")}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-w", "-o", w.program, "../../cmd/dsbuild")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v %s", err, out)
	}
	t.Cleanup(func() { w.command("wineserver", "-k").Run() })
	if out, err := w.command("wine", "wineboot", "-i").CombinedOutput(); err != nil {
		t.Fatalf("wineboot: %v %s", err, out)
	}
	system := filepath.Join(w.prefix, "drive_c", "windows", "system32", "bcryptprimitives.dll")
	if _, err := os.Stat(system); errors.Is(err, os.ErrNotExist) {
		source := filepath.Join(dir, "prng.c")
		if err := os.WriteFile(source, []byte(prng), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), compiler, "-shared", "-o", system, source, "-ladvapi32").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", compiler, err, out)
		}
	}
	return w
}

func (w *wine) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "WINEPREFIX="+w.prefix, "WINEDEBUG=-all")
	return cmd
}

func (w *wine) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.command("wine", append([]string{w.program}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("dsbuild.exe %s: %v\n%s", args[0], err, out)
	}
	return string(out)
}
