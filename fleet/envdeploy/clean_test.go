package envdeploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// The interpreter may be a program that starts a Python. In another file system it is refused before anything is sent;
// what it sets changes no environment.
func TestInterpreterIsAProgram(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	if os.Getuid() != 0 || exec.CommandContext(t.Context(), "unshare", "-m", "true").Run() != nil {
		needs.Missing(t, "no right to mount")
	}
	python, err := systemPython()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "python")
	write := func(lines string) {
		t.Helper()
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+lines), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(t)
	l, files := s.lock(t, small+"interpreter: "+program+"\n")
	h, server := host(t, "gpu1", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{server}, h)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	site, err := exec.CommandContext(t.Context(), python, "-c", "import site; print(next(p for p in site.getsitepackages() if __import__('os').path.isdir(p)), end='')").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ folder, end string }{
		"a namespace": {server.Home, ""}, "a runtime that closes files": {server.Home, " 3<&-"}, "other packages": {string(site), ""},
	} {
		write("exec unshare -m sh -c 'mount --bind " + t.TempDir() + " " + c.folder + " && exec " + python + ` "$@"` + c.end + `' sh "$@"` + "\n")
		n := run(t, t.Context(), opt).Nodes[0]
		if want := "its " + c.folder + " is not the node's"; n.Status != report.Refused || !strings.Contains(n.Error, want) || n.Hint == "" || count.Puts.Load() > 0 {
			t.Errorf("%s: %s %q, %d files sent; want %s, %q and none sent", name, n.Status, n.Error, count.Puts.Load(), report.Refused, want)
		}
		if entries, err := os.ReadDir(filepath.Join(server.Home, ".local")); err == nil {
			t.Errorf("%s: the node has %v", name, entries)
		}
	}
	write("export PYTHONOPTIMIZE=2 PYTHONINSPECT=1 PYTHONWARNINGS=error PYTHONPYCACHEPREFIX=" + t.TempDir() + "\nexec " + python + ` -OO -i -v "$@"` + "\n")
	for range 2 {
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
		if r := look(t, opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
}
