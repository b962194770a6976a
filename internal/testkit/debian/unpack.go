package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// CanUnpack reports whether the programs that Unpack needs exist.
func CanUnpack() bool {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return true
}

// installs matches a line of a simulated installation.
var installs = regexp.MustCompile(`(?m)^Inst (\S+)`)

// Unpack puts the files of a package, and of its dependencies that are not installed, into dir.
// It needs no root and changes nothing else: apt-get downloads and verifies, with package lists
// of its own if the machine has none.
func Unpack(ctx context.Context, dir, name string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	unlock, err := lockedfile.MutexAt(dir + ".lock").Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil // another program unpacked it meanwhile
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	debs, root := filepath.Join(work, "debs"), filepath.Join(work, "root")
	if err := errors.Join(os.Mkdir(debs, 0o755), os.Mkdir(root, 0o755)); err != nil {
		return err
	}
	if err := downloadPackages(ctx, work, debs, name); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpacking %s: %w: %s", filepath.Base(deb), err, child.LastLines(out, 1))
		}
	}
	return os.Rename(root, dir)
}

// downloadPackages puts the package and its dependencies into debs. If the machine's lists do
// not have the package, it fetches new lists into work.
func downloadPackages(ctx context.Context, work, debs, name string) error {
	machine := []string{"-o", "Acquire::Retries=3"}
	lists := filepath.Join(work, "lists")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		return err
	}
	own := append([]string{"-o", "Dir::State::lists=" + lists, "-o", "Dir::Cache=" + work}, machine...)
	fetch := func(options []string) error {
		out, err := runApt(ctx, debs, append(options, "-s", "install", "--no-install-recommends", name)...)
		if err != nil {
			return err
		}
		needed := installs.FindAllSubmatch(out, -1)
		if len(needed) == 0 {
			return fmt.Errorf("%s is installed already, according to apt-get", name)
		}
		options = append(options, "download")
		for _, m := range needed {
			options = append(options, string(m[1]))
		}
		_, err = runApt(ctx, debs, options...)
		return err
	}
	if fetch(machine) == nil {
		return nil
	}
	if _, err := runApt(ctx, debs, append(own, "update")...); err != nil {
		return err
	}
	return fetch(own)
}
