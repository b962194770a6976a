package envdeploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	pythons "github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
)

// bare is a node without any Python: its PATH has the programs of a small system alone.
func bare(t *testing.T) sshtest.Options {
	t.Helper()
	bin := t.TempDir()
	for _, tool := range []string{"sh", "ls", "id", "cat", "mkdir", "rm", "mv", "ln", "chmod", "tar", "gzip", "df", "tail", "head", "cut", "uname", "getconf", "sync", "sha256sum", "dirname", "readlink", "env"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	return sshtest.Options{Env: []string{"PATH=" + bin}}
}

const bareText = "name: train\npython: 3.11\nrequirements: [alpha, torch]\nnodes: [{glibc: 2.35}]\ninterpreter: "

// siteWithPython returns a site, and the text of an environment with which the archive of a Python comes
// along.
func siteWithPython(t *testing.T) (x *site, text string) {
	t.Helper()
	needs.Time(t)
	archive, err := pythons.Archive(t.TempDir(), "/usr/bin/python3.11")
	if err != nil {
		t.Fatal(err)
	}
	return newSite(t), bareText + archive + "\n"
}

func broughtTo(t *testing.T, s *sshtest.Server) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(place(s), "../.dsbuild/pythons/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Nodes without any Python, and with one, get the Python of the archive with their environment. It is
// shared by environments, verified to the last file, and goes with the last environment.
func TestPythonComesAlong(t *testing.T) {
	t.Parallel()
	x, text := siteWithPython(t)
	l, files := x.lock(t, text)
	h1, s1 := host(t, "bare", bare(t))
	h2, s2 := host(t, "some", sshtest.Options{})
	servers := []*sshtest.Server{s1, s2}
	opt := options(t, l, files, servers, h1, h2)
	r := run(t, t.Context(), opt)
	if r.Err() != nil || r.Nodes[0].Sent != l.Sets[0].Size()+l.Sets[0].Installer.Size+l.Sets[0].Python.Size {
		t.Fatalf("%v, %d bytes", r.Err(), r.Nodes[0].Sent)
	}
	for _, s := range servers {
		where := withByteCode(t, s, "import sys, alpha; print(sys.base_prefix)")
		if !strings.HasPrefix(where, broughtTo(t, s)[0]) {
			t.Errorf("the environment runs %s", where)
		}
	}
	if r := look(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
	opt.Hosts = opt.Hosts[:1]
	if r := run(t, t.Context(), opt); r.Err() != nil || r.Nodes[0].Changed || r.Nodes[0].Sent != 0 {
		t.Errorf("second run: %+v, %v", r.Nodes[0], r.Err())
	}

	// Another environment, of the node without any Python: the Python stays, and does not travel again.
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	second, files2 := x.lock(t, text)
	opt2 := options(t, second, files2, servers[:1], h1)
	if r := run(t, t.Context(), opt2); r.Err() != nil || r.Nodes[0].Sent != second.Sets[0].File("alpha").Size {
		t.Errorf("%v, %d bytes", r.Err(), r.Nodes[0].Sent)
	}
	if r := back(t, opt2); r.Err() != nil || withByteCode(t, s1, "import alpha; print(alpha.__version__)") != "1.0" {
		t.Error(r.Err())
	}

	// A changed file, a file too many and foreign byte code of the Python are named; --force
	// brings it anew.
	lib := filepath.Join(broughtTo(t, s1)[0], "tree/python/lib/python3.11")
	sound, err := os.ReadFile(filepath.Join(lib, "colorsys.py"))
	if err := errors.Join(err, os.WriteFile(filepath.Join(lib, "colorsys.py"), append(sound, '\n'), 0o644), os.WriteFile(filepath.Join(lib, "more.py"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	r = look(t, opt)
	if n := r.Nodes[0]; n.Status != report.Differs || !strings.Contains(n.Error, "colorsys.py is altered") || !strings.Contains(n.Error, "more.py is not in the archive") {
		t.Errorf("%s: %s", n.Status, n.Error)
	}
	force := opt
	force.Force = true
	if r := run(t, t.Context(), force); r.Err() != nil {
		t.Error(r.Err())
	}
	if r := look(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}

	// The nodes' own Python again, twice: nobody needs the other one.
	for _, version := range []string{"1.2", "1.3"} {
		x.Add(t, wheelindex.Wheel{Name: "alpha", Version: version})
		own, files := x.lock(t, small)
		if r := run(t, t.Context(), options(t, own, files, servers[1:], h2)); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	if left := broughtTo(t, s2); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// withByteCode runs lines in the environment of a node, as python does, but leaves byte code behind.
func withByteCode(t *testing.T, s *sshtest.Server, lines string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(place(s), "current/bin/python"), "-c", lines).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Where the Python cannot be unpacked, or is not that of the lock once it is, the node keeps what it
// has, and nothing is left.
func TestPythonThatCannotCome(t *testing.T) {
	t.Parallel()
	needs.Time(t)
	x := newSite(t)
	archive, err := pythons.Archive(t.TempDir(), "/usr/bin/python3.11")
	if err != nil {
		t.Fatal(err)
	}
	l, files := x.lock(t, bareText+archive+"\n")
	noTar, corrupt, full := bare(t), bare(t), bare(t)
	if err := os.Remove(filepath.Join(strings.TrimPrefix(noTar.Env[0], "PATH="), "tar")); err != nil {
		t.Fatal(err)
	}
	corrupt.Corrupt, full.NoSpaceAfter = true, 1<<20
	for want, o := range map[string]sshtest.Options{"cannot unpack": noTar, "sha256": corrupt, "no space left": full} {
		h, s := host(t, "gpu1", o)
		r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h))
		if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "python" || !strings.Contains(n.Error, want) || current(t, s) != "" || len(broughtTo(t, s)) > 0 {
			t.Errorf("%s: %s at %s: %s, left %q", want, n.Status, n.Step, n.Error, broughtTo(t, s))
		}
	}
	// An archive that has changed since it was locked is found out before any node is asked.
	l.Sets[0].Python.Tree = strings.Repeat("0", 64)
	if _, err := envdeploy.OpenFiles(t.Context(), l, files.Paths); err == nil || exitCode(err) != 2 {
		t.Error(err)
	}
}

// kill -9 of uv: the old environment stays, and the next run brings the new one.
func TestKilledInstaller(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	h, s := host(t, "gpu1", sshtest.Options{})
	restore := x.uv(t, "kill -9 $$")
	l, files := x.lock(t, small)
	r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h))
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "install" || !strings.Contains(n.Error, "status -9") || current(t, s) != "" || len(leftovers(t, s)) > 0 {
		t.Errorf("%s at %s: %s, left %q", n.Status, n.Step, n.Error, leftovers(t, s))
	}
	restore()
	l, files = x.lock(t, small)
	if r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h)); r.Err() != nil {
		t.Error(r.Err())
	}
}
