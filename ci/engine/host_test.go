package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestCheckHost(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := checkHost("ID=debian\nVERSION_ID=\"12\"\n"); err == nil || !strings.Contains(err.Error(), "root") {
			t.Fatal(err)
		}
		t.Skip("the rest needs root")
	}
	for release, ok := range map[string]bool{
		"ID=debian\nVERSION_ID=\"12\"\n": true,
		"ID=debian\nVERSION_ID=\"13\"\n": true,
		"ID=debian\nVERSION_ID=\"11\"\n": false,
		"ID=ubuntu\nVERSION_ID=\"12\"\n": false,
		"":                               false,
	} {
		err := checkHost(release)
		if (err == nil) != ok || (err != nil && fault.Hint(err) == "") {
			t.Errorf("%q: %v, hint %q", release, err, fault.Hint(err))
		}
	}
}

func TestCheckDisk(t *testing.T) {
	if err := checkDisk(t.TempDir(), 1); err != nil {
		t.Error(err)
	}
	err := checkDisk(t.TempDir(), math.MaxUint64)
	if err == nil || !strings.Contains(err.Error(), " are free") || !strings.Contains(err.Error(), "needs ") || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}

func TestMissingPackages(t *testing.T) {
	no := func(string) bool { return false }
	yes := func(string) bool { return true }
	if got := missingPackages(yes, yes); len(got) != 0 {
		t.Error(got)
	}
	want := []string{"ca-certificates", "debian-archive-keyring", "mmdebstrap", "slirp4netns", "tar"}
	if got := missingPackages(no, no); !reflect.DeepEqual(got, want) {
		t.Error(got)
	}
}

func TestFindMirrors(t *testing.T) {
	const listed = `'cdrom:[Debian]/dists/trixie/InRelease' Debian_dists_trixie_InRelease 0 
'http://mirror.example/debian/dists/trixie/InRelease' mirror.example_debian_dists_trixie_InRelease 0 
'http://other.example/debian//dists/trixie/InRelease' other.example_debian_dists_trixie_InRelease 0 
'http://mirror.example/debian/dists/trixie-updates/InRelease' mirror.example_debian_dists_trixie-updates_InRelease 0 
'http://mirror.example/debian-security/dists/trixie-security/InRelease' mirror.example_dists_trixie-security_InRelease 0 
'https://apt.example/apt/dists/stable/InRelease' apt.example_apt_dists_stable_InRelease 0 
'http://mirror.example/debian/dists/trixie/main/binary-amd64/Packages.xz' mirror.example_Packages 0 
`
	m, err := findMirrors(listed, "trixie")
	if err != nil || m != (mirrors{"http://mirror.example/debian", "http://mirror.example/debian-security"}) {
		t.Fatalf("%+v, %v", m, err)
	}
	want := `deb [signed-by=` + keyring + `] http://mirror.example/debian bookworm main
deb [signed-by=` + keyring + `] http://mirror.example/debian bookworm-updates main
deb [signed-by=` + keyring + `] http://mirror.example/debian-security bookworm-security main
`
	if got := m.sourcesList("bookworm"); got != want {
		t.Errorf("sources.list:\n%s", got)
	}
	if m, err := findMirrors("'http://a.example/debian//dists/trixie/InRelease' a 0 \n", "trixie"); err != nil || m.main != "http://a.example/debian" || m.security != "" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := findMirrors(listed, "bookworm"); err == nil {
		t.Error("a mirror out of nowhere")
	}
}

func TestGuestResolv(t *testing.T) {
	for host, want := range map[string]string{
		"nameserver 10.1.2.3\nsearch example.org\n":                      "nameserver 10.1.2.3\nsearch example.org\n",
		"nameserver 127.0.0.53\noptions edns0\n":                         "nameserver 10.0.2.3\noptions edns0\n",
		"nameserver ::1\nnameserver 127.0.0.1\nnameserver 192.168.0.1\n": "nameserver 10.0.2.3\nnameserver 192.168.0.1\n",
	} {
		if got := guestResolv(host); got != want {
			t.Errorf("%q: %q", host, got)
		}
	}
}

func TestEngineEnvKeepsProxiesOnly(t *testing.T) {
	env := strings.Join(engineEnv([]string{"HTTPS_PROXY=http://p:1", "no_proxy=a,b", "SECRET=x", "PATH=/evil"}), "\n")
	for _, want := range []string{"HTTPS_PROXY=http://p:1", "https_proxy=http://p:1", "no_proxy=a,b", "NO_PROXY=a,b"} {
		if !strings.Contains(env, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(env, "SECRET") || strings.Contains(env, "/evil") {
		t.Errorf("the caller's environment leaks:\n%s", env)
	}
}

// The inputs of a piece decide whether it is built again.
func TestPieceInputs(t *testing.T) {
	l, con := At(t.TempDir()), newConsole(&bytes.Buffer{})
	of := func(l Layout, suite string, change func(*ground)) string {
		t.Helper()
		g := ground{debian: mirrors{"http://a/debian", ""}, ubuntu: mirrors{"http://u", "http://s"}, cas: map[string]string{"a.crt": "A"}}
		change(&g)
		r, err := releaseOf(suite)
		if err != nil {
			t.Fatal(err)
		}
		return basePiece(l, con, g, r).digest
	}
	same := func(*ground) {}
	for _, suite := range []string{"trixie", "noble"} {
		base := of(l, suite, same)
		if base != of(At("/elsewhere"), suite, same) {
			t.Error("the base depends on where it lies")
		}
		if base == of(l, suite, func(g *ground) { g.cas["a.crt"] = "B" }) {
			t.Errorf("%s: another certificate does not change the base", suite)
		}
		if changed := base != of(l, suite, func(g *ground) { g.debian.main = "http://b/debian" }); changed != (suite == "trixie") {
			t.Errorf("%s: with another Debian mirror it changes: %v", suite, changed)
		}
		if changed := base != of(l, suite, func(g *ground) { g.ubuntu.main = "http://b" }); changed != (suite == "noble") {
			t.Errorf("%s: with another Ubuntu mirror it changes: %v", suite, changed)
		}
	}
	src := t.TempDir()
	put(t, filepath.Join(src, "go.mod"), "module a\n")
	one, err := toolsPiece(l, con, src)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(src, "distconsts", "consts.go"), "package distconsts\n")
	if two, _ := toolsPiece(l, con, src); two.digest == one.digest {
		t.Error("a new file does not change the tools")
	}
}

func TestHostCAs(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a.crt"), "A")
	put(t, filepath.Join(dir, "corp", "b.crt"), "B")
	put(t, filepath.Join(dir, "README"), "no")
	got, err := hostCAs(dir)
	if err != nil || !reflect.DeepEqual(got, map[string]string{"a.crt": "A", "corp-b.crt": "B"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := hostCAs(filepath.Join(dir, "none")); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestSweepCgroups(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"memory/dsbuild-1/buildkit/a", "dsbuild-1/buildkit", "memory/dsbuild-2/buildkit"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sweepCgroups(root, "dsbuild-1")
	for d, want := range map[string]bool{"memory/dsbuild-1": false, "dsbuild-1": false, "memory/dsbuild-2/buildkit": true} {
		if _, err := os.Stat(filepath.Join(root, d)); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", d, err == nil, want)
		}
	}
}

func TestCommandErrorShowsTheEnd(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log", "x.log")
	var lines []string
	err := command{args: []string{"sh", "-c", "for i in $(seq 30); do echo line $i; done; exit 3"}, log: log, line: func(s string) { lines = append(lines, s) }}.runCommand(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "line 30") || strings.Contains(err.Error(), "line 15\n") || !strings.Contains(err.Error(), log) {
		t.Errorf("%v", err)
	}
	if b, _ := os.ReadFile(log); len(lines) != 30 || strings.Count(string(b), "\n") != 30 {
		t.Errorf("%d lines, log %d bytes", len(lines), len(b))
	}
}

func TestUsage(t *testing.T) {
	var out, errs bytes.Buffer
	for _, args := range [][]string{nil, {"bogus"}, {"up", "now"}, {"base"}, {"image"}} {
		errs.Reset()
		if code := runCommandLine(args, &out, &errs); code != 2 || !strings.HasPrefix(errs.String(), "usage: ") {
			t.Errorf("%v: exit %d, %s", args, code, errs.String())
		}
	}
}

func TestUnknownSuite(t *testing.T) {
	var out, errs bytes.Buffer
	if code := runCommandLine([]string{"base", "sid"}, &out, &errs); code != 2 || out.Len() > 0 {
		t.Errorf("exit %d, %s", code, out.String())
	}
	for _, r := range debianReleases() {
		if !strings.Contains(errs.String(), r.suite) || !strings.Contains(usage, r.suite) {
			t.Errorf("%s is missing in %q or in the usage", r.suite, errs.String())
		}
	}
}

func TestUbuntuSources(t *testing.T) {
	none := func(string) string { return "" }
	want := `deb http://archive.ubuntu.com/ubuntu noble main universe
deb http://archive.ubuntu.com/ubuntu noble-updates main universe
deb http://security.ubuntu.com/ubuntu noble-security main universe
`
	if got := ubuntuMirrors(none).ubuntuList("noble"); got != want {
		t.Errorf("sources.list:\n%s", got)
	}
	own := ubuntuMirrors(func(k string) string { return map[string]string{"DSBUILD_UBUNTU_MIRROR": "http://m/u"}[k] })
	if got := own.ubuntuList("jammy"); strings.Contains(got, "ubuntu.com") || strings.Count(got, "deb http://m/u jammy") != 3 {
		t.Errorf("sources.list with a mirror of the site:\n%s", got)
	}
}
