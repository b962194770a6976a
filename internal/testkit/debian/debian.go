// Package debian installs packages of Debian and its derivatives on this machine, for tests that
// need their programs.
package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// Ensure installs packages by apt-get, as root, unless have reports that their programs exist
// already. It starts none of their servers. Test programs that miss the same package at the same
// time install it one after the other.
func Ensure(ctx context.Context, have func() bool, packages ...string) error {
	if have() {
		return nil
	}
	unlock, err := lockedfile.MutexAt("/run/dsbuild-apt.lock").Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if have() {
		return nil
	}
	remove, err := refuseServers()
	if err != nil {
		return err
	}
	defer remove()
	args := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if aptGet(ctx, args...) == nil {
		return nil
	}
	if err := aptGet(ctx, "update"); err != nil { // the machine's package lists may be old or missing
		return err
	}
	return aptGet(ctx, args...)
}

// OnPath returns whether all programs are on PATH, for Ensure.
func OnPath(programs ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(programs, func(name string) bool {
			_, err := exec.LookPath(name)
			return err != nil
		})
	}
}

// refuseServers installs a policy that keeps packages from starting their servers, unless the
// machine has a policy.
func refuseServers() (remove func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); !errors.Is(err, os.ErrNotExist) {
		return func() {}, err
	}
	return func() { os.Remove(policy) }, os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755)
}

func aptGet(ctx context.Context, args ...string) error {
	_, err := runApt(ctx, "", append([]string{"-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	return err
}

// runApt runs apt-get in a folder and returns its output.
func runApt(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, child.LastLines(out, 1))
	}
	return out, nil
}
