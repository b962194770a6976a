package envdeploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// onSharedDisk returns a lock whose environments lie on a disk that every user may write, with its folder there.
func onSharedDisk(t *testing.T) (x *site, opt envdeploy.Options, disk string) {
	t.Helper()
	x, disk = newSite(t), t.TempDir()
	must(t, os.Chmod(filepath.Dir(disk), 0o755), os.Chmod(disk, 0o777|os.ModeSticky))
	l, files := x.lock(t, small+"folder: "+disk+"\n")
	h, s := host(t, "gpu1", sshtest.Options{})
	return x, options(t, l, files, []*sshtest.Server{s}, h), disk
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An environment on a shared disk is used only if no other user can change a part of its path: such a user could
// plant the installer, the Python or another home. Nothing is changed otherwise, by whichever command.
func TestPlacesOfOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give a folder to another user")
	}
	t.Parallel()
	_, opt, disk := onSharedDisk(t)
	home := filepath.Join(disk, "dsbuild/env")
	treasure := filepath.Join(t.TempDir(), "treasure/letters")
	const other = 4242
	for name, c := range map[string]struct {
		plant func()
		names string // the part that the error names
	}{
		"made by another user": {func() { must(t, os.MkdirAll(home, 0o755), os.Chown(home, other, other)) }, "dsbuild/env (owner 4242, mode drwxr-xr-x"},
		"written by everybody": {func() { must(t, os.MkdirAll(home, 0o755), os.Chmod(home, 0o777)) }, "dsbuild/env (owner root, mode drwxrwxrwx"},
		"written by everybody, sticky": {func() {
			must(t, os.MkdirAll(home, 0o755), os.Chmod(home, 0o777|os.ModeSticky))
		}, "dsbuild/env (owner root, mode drwxrwxrwt"},
		"files written by a group": {func() {
			files := filepath.Join(home, ".dsbuild/files")
			must(t, os.MkdirAll(files, 0o755), os.Chown(files, 0, 100), os.Chmod(files, 0o775))
		}, "files (owner root, mode drwxrwxr-x"},
		"a link to somebody's home": {func() {
			must(t, os.MkdirAll(home, 0o755), os.MkdirAll(treasure, 0o755), os.Symlink(filepath.Dir(treasure), filepath.Join(home, "train")))
		}, "train (owner root, mode lrwxrwxrwx"},
	} {
		must(t, os.RemoveAll(filepath.Join(disk, "dsbuild")))
		c.plant()
		before := tree(t, disk)
		for command, do := range map[string]func() *report.Report{
			"deploy": func() *report.Report { return run(t, t.Context(), opt) }, "rollback": func() *report.Report { return back(t, opt) },
			"verify": func() *report.Report { return look(t, opt) },
		} {
			n := do().Nodes[0]
			if n.Status == report.OK || n.Changed || !strings.Contains(n.Error, "other users can change "+disk) || !strings.Contains(n.Error, c.names) || !strings.Contains(n.Hint, "chmod go-w") {
				t.Errorf("%s, %s: %+v, want an error that names %s", name, command, n, c.names)
			}
		}
		mustBe(t, tree(t, disk), before)
	}
	if _, err := os.Stat(treasure); err != nil {
		t.Errorf("the folder behind the link: %v", err)
	}
}

// What lies on a shared disk belongs to its owner alone, even under a umask of 002, and nobody else can open the lock.
// A file that was changed there is not used, and the note of one environment breaks no other.
func TestFilesOnASharedDisk(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x, opt, disk := onSharedDisk(t)
	opt.Hosts[0].Setup = "umask 002"
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	home := filepath.Join(disk, "dsbuild/env")
	found, err := exec.Command("find", filepath.Join(disk, "dsbuild"), "-path", "*/.dsbuild/cache/*", "-prune", "-o", "!", "-type", "l", "-perm", "/022", "-print").CombinedOutput()
	if err != nil || len(found) > 0 {
		t.Errorf("others may write %s, %v", found, err)
	}
	for name, want := range map[string]os.FileMode{"lock": 0o600, "cache": 0o700} {
		info, err := os.Stat(filepath.Join(home, ".dsbuild", name))
		must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, want %v", name, info.Mode(), want)
		}
	}
	// A script in the place of the installer must not run.
	ran, installer := filepath.Join(t.TempDir(), "ran"), opt.Lock.Sets[0].Installer
	path := filepath.Join(home, ".dsbuild/files", installer.SHA256, installer.File)
	info, err := os.Stat(path)
	must(t, err)
	fake := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(fake, "uv.data/scripts"), 0o755), os.WriteFile(filepath.Join(fake, "uv.data/scripts/uv"), fmt.Appendf(nil, "#!/bin/sh\ntouch %s\n", ran), 0o755))
	must(t, os.Remove(path))
	zip := exec.Command("python3", "-m", "zipfile", "-c", path, "uv.data/")
	zip.Dir = fake
	must(t, zip.Run(), os.Chtimes(path, info.ModTime(), info.ModTime()))
	opt.Force = true
	if n := run(t, t.Context(), opt).Nodes[0]; n.Status == report.OK || !strings.Contains(n.Error, "changed after it was sent") {
		t.Errorf("another installer: %+v", n)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the script in the place of the installer ran")
	}
	broken := filepath.Join(home, "other/0123456789abcdef/environment.json")
	must(t, os.MkdirAll(filepath.Dir(broken), 0o755), os.WriteFile(broken, []byte(`{"files": null}`), 0o644))
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha]\nfolder: "+disk+"\n")
	opt.Lock, opt.Files, opt.Force = l, files, false
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Errorf("with a broken note of another environment: %v", r.Err())
	}
}
