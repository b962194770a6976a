package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// needFree is the disk space that an installation needs: its parts, the caches of the compiler,
// and a first toolchain with CUDA in the engine's cache.
const needFree = 25 << 30

// hostRelease returns the text of the host's os-release file, or "".
func hostRelease() string {
	text, _ := os.ReadFile("/etc/os-release")
	return string(text)
}

// checkHost returns the reason why no engine can be installed on this machine, or nil.
func checkHost(osRelease string) error {
	if os.Geteuid() != 0 {
		return fault.WithHint(errors.New("dsbuild's own engine needs root"),
			"run it as root, or build without an engine: --builder host")
	}
	r := parseRelease(osRelease)
	if r["ID"] != "debian" || (r["VERSION_ID"] != "12" && r["VERSION_ID"] != "13") {
		return fault.WithHint(fmt.Errorf("dsbuild's own engine runs on Debian 12 and 13 only, this is %q", r["PRETTY_NAME"]),
			"use another engine (--engine ADDR, Docker, Podman) or --builder host")
	}
	return nil
}

// checkDisk returns an error if the file system of dir has too little space.
func checkDisk(dir string, need uint64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("asking for the free disk below %s: %w", dir, err)
	}
	free := s.Bavail * uint64(s.Bsize)
	if free >= need {
		return nil
	}
	return fault.WithHint(fmt.Errorf("dsbuild's own engine needs %s of disk below %s, %s are free", ui.Size(int64(need)), dir, ui.Size(int64(free))),
		"free some, or put the engine on another disk: XDG_STATE_HOME=/big/disk")
}

// parseRelease reads the format of /etc/os-release.
func parseRelease(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			m[k] = strings.Trim(v, `"'`)
		}
	}
	return m
}

// hostPrograms maps each required program of the host to its package.
func hostPrograms() map[string]string {
	return map[string]string{"mmdebstrap": "mmdebstrap", "slirp4netns": "slirp4netns", "tar": "tar"}
}

// missingPackages lists the packages whose program or file is missing.
func missingPackages(have func(program string) bool, exists func(path string) bool) []string {
	var out []string
	for program, pkg := range hostPrograms() {
		if !have(program) {
			out = append(out, pkg)
		}
	}
	if !exists(keyring) {
		out = append(out, "debian-archive-keyring")
	}
	if !exists(hostCertificates) {
		out = append(out, "ca-certificates")
	}
	sort.Strings(out)
	return out
}

// hostPackages installs the missing packages.
func hostPackages(ctx context.Context, con *console) error {
	missing := func() []string {
		return missingPackages(
			func(p string) bool { _, err := exec.LookPath(p); return err == nil },
			func(p string) bool { _, err := os.Stat(p); return err == nil })
	}
	packages := missing()
	if len(packages) == 0 {
		return nil
	}
	con.printLine("host", "installing with apt-get: %s", strings.Join(packages, " "))
	if err := debian.Ensure(ctx, func() bool { return len(missing()) == 0 }, packages...); err != nil {
		return fault.WithHint(fmt.Errorf("installing host packages: %w", err),
			"check the package sources of this machine, then try by hand: apt-get update && apt-get install %s", strings.Join(packages, " "))
	}
	con.printLine("host", "installed")
	return nil
}

// findCheckout finds ci/engine/tools above the current directory.
func findCheckout(from string) (string, error) {
	for dir := from; ; dir = filepath.Dir(dir) {
		tools := filepath.Join(dir, "ci", "engine", "tools")
		if _, err := os.Stat(filepath.Join(tools, "go.mod")); err == nil {
			return tools, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fault.WithHint(fmt.Errorf("no ci/engine/tools at or above %s", from), "run it in a checkout of dsbuild: make engine")
		}
	}
}
