//go:build full && linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// system is the root folder of another Linux, with a user who is not root.
type system struct {
	root string
	home string // of the user, seen there at userHome
}

// userHome has a space in it, as some homes have.
const userHome = "/home/a user"

// enter runs a program in namespaces of its own with the system as its root: /proc,
// /dev, a /tmp of 2 GB, the user's home.
const enter = `set -e
mount --make-rprivate /
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t tmpfs -o size=2g,mode=1777 tmpfs "$1/tmp"
mkdir -p "$1/home/a user"
mount --bind "$2" "$1/home/a user"
root=$1 user=$3
shift 3
exec chroot --userspec="$user" "$root" "$@"`

func newSystem(t *testing.T, suite, home string) system {
	t.Helper()
	tar, err := engine.NewBases(t.Logf).Get(t.Context(), suite)
	if err != nil || tar == "" {
		t.Fatalf("no base of %s: %v", suite, err)
	}
	root, err := os.MkdirTemp("/var/tmp", "dsbuild-system-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	command(t, root, "tar", "--exclude=./dev/*", "-xf", tar)
	command(t, ".", "cp", "/etc/resolv.conf", filepath.Join(root, "etc", "resolv.conf"))
	return system{root, home}
}

// command is a program of the system, run by a user.
func (s system) command(t *testing.T, user string, args ...string) *exec.Cmd {
	t.Helper()
	words := append([]string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enter, "sh", s.root, s.home, user}, args...)
	cmd := exec.CommandContext(t.Context(), "unshare", words...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	if user != "0:0" {
		cmd.Env = append(cmd.Env, "HOME="+userHome)
	}
	return cmd
}

// run runs a command as root and returns its output.
func (s system) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.command(t, "0:0", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// install installs packages.
func (s system) install(t *testing.T, packages ...string) {
	t.Helper()
	s.run(t, "apt-get", "-q", "update")
	s.run(t, append([]string{"apt-get", "-qy", "install", "--no-install-recommends"}, packages...)...)
}

// hintedPackages returns the packages that a hint names.
func hintedPackages(hint string) []string {
	names := regexp.MustCompile(`\b(gcc|g\+\+|libc6-dev|binutils|tar|python3[a-z0-9.-]*)(?:[ ,;]|$)`).FindAllStringSubmatch(hint, -1)
	var packages []string
	for _, n := range names {
		packages = append(packages, n[1])
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// Where neither root nor a container engine is there, other systems than Debian 12, an Ubuntu with an older gcc and a
// Debian with a newer one, name all that they lack at once, before anything is downloaded; with what the hint
// says they build the wheel. The user's home has a space in its name, and /tmp has 2 GB.
func TestFullHostSystems(t *testing.T) {
	home, err := os.MkdirTemp("/var/tmp", "dsbuild-login-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for _, suite := range []string{"trixie", "jammy"} {
		t.Run(suite, func(t *testing.T) {
			s := newSystem(t, suite, home)
			command(t, ".", "cp", makeProgram(t), filepath.Join(s.root, "usr", "local", "bin", "dsbuild"))
			wheel := s.command(t, "65534:65534", "dsbuild", "wheel", "--builder", "host", "--arch", "8.0", "--json", "-o", userHome+"/dist "+suite)
			lacks := s.command(t, "65534:65534", wheel.Args[slices.Index(wheel.Args, "dsbuild"):]...)
			said, err := lacks.CombinedOutput()
			_, hint, hinted := strings.Cut(string(said), "hint: ")
			if err == nil || lacks.ProcessState.ExitCode() != 2 || !hinted || !strings.Contains(string(said), "missing build requirements on this machine") {
				t.Fatalf("%v: %s", err, said)
			}
			if left, _ := filepath.Glob(filepath.Join(home, ".cache", "dsbuild", "host", "environments", "*")); suite == "trixie" && len(left) > 0 {
				t.Errorf("something was downloaded before: %q", left)
			}
			packages := hintedPackages(hint)
			s.install(t, packages...)
			var stdout, stderr bytes.Buffer
			wheel.Stdout, wheel.Stderr = &stdout, &stderr
			if err := wheel.Run(); err != nil {
				t.Fatalf("with %q: %v\n%s", packages, err, &stderr)
			}
			var doc wheelResult
			if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
				t.Fatalf("%v: %s", err, &stdout)
			}
			name := filepath.Base(doc.Wheels[0].Path)
			if !regexp.MustCompile(`-manylinux_2_(17|24|26|27|28)_x86_64\.whl$`).MatchString(name) {
				t.Errorf("%s needs a newer glibc than RHEL 8 has", name)
			}
			t.Logf("result: %s, not root, after installing %s: %s in %.0f s", suite, strings.Join(packages, " "), name, doc.Wheels[0].Seconds)
		})
	}
}
