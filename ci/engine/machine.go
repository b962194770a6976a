package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// noEngineError is why this machine has no engine: none starts in a container, and dsbuild's own
// cannot run here.
type noEngineError struct {
	clients []engine.Attempt
	own     error
}

func (e *noEngineError) Error() string {
	clients := "no engine in Docker, podman or nerdctl"
	var told []string
	for _, a := range e.clients {
		if a.Why != "not installed" && !strings.Contains(a.Where, "own engine") {
			told = append(told, a.Where+": "+a.Why)
		}
	}
	if len(told) > 0 {
		clients += " (" + strings.Join(told, "; ") + ")"
	}
	return clients + ", and " + e.own.Error()
}

func (e *noEngineError) Unwrap() error { return e.own }

// ExitCode returns 3: the caller can only build without an engine.
func (e *noEngineError) ExitCode() int { return 3 }

// Check prints which engine Ensure would use, or returns a *noEngineError. It
// starts, installs and changes nothing.
func Check(ctx context.Context, l Layout, stdout io.Writer) error {
	finder := engine.NewFinder("", func(string, ...any) {})
	finder.Root = false // an installed engine is not started
	found, err := finder.Find(ctx)
	var none *engine.NotFoundError
	if !errors.As(err, &none) {
		if err == nil {
			fmt.Fprintln(stdout, found.How)
		}
		return err
	}
	if finder.Env != "" {
		return err // the user chose another engine
	}
	if err := checkMachine(l); err != nil {
		err = &noEngineError{none.Attempts, err}
		fmt.Fprintln(stdout, err)
		return err
	}
	fmt.Fprintln(stdout, "dsbuild's own engine")
	return nil
}

// checkMachine returns why dsbuild's own engine cannot run on this machine.
func checkMachine(l Layout) error {
	if err := checkHost(hostRelease()); err != nil {
		return err
	}
	if err := checkRights(cgroupRoot); err != nil {
		return err
	}
	if l.Installed() {
		return nil
	}
	return checkDisk(nearestFolder(l.Root), needFree)
}

// nearestFolder returns dir, or the nearest existing folder above it.
func nearestFolder(dir string) string {
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if isDir(dir) {
			break
		}
	}
	return dir
}

// checkRights tries all privileged operations of the engine's start: namespaces, mounts, a device, a
// control group. Root in a container often lacks the permission.
func checkRights(cgroups string) error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and its namespaces with it
		tried <- errors.Join(tryNamespaces(), tryCgroup(cgroups), tryTunnel())
	}()
	err := <-tried
	if err == nil {
		return nil
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fault.WithHint(fmt.Errorf("dsbuild's own engine needs more rights than root has here: %s", first),
		"in a container, start it with those rights (docker run --privileged), or build without an engine: --builder host")
}

func tryNamespaces() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("making namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	dir, err := os.MkdirTemp("", "dsbuild-rights-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	for _, fs := range []string{"proc", "sysfs", "devpts", "tmpfs"} {
		if err := unix.Mount(fs, dir, fs, 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", fs, err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH) //nolint:errcheck // the namespace ends
	}
	null := filepath.Join(dir, "null")
	if err := unix.Mknod(null, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("making a device: %w", err)
	}
	f, err := os.OpenFile(null, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("opening a device: %w", err)
	}
	return f.Close()
}

// tryCgroup makes a control group and removes it.
func tryCgroup(root string) error {
	procs := "cgroup.procs"
	tops, err := filepath.Glob(filepath.Join(root, "*", procs))
	if _, single := os.Stat(filepath.Join(root, procs)); single == nil {
		tops = []string{filepath.Join(root, procs)}
	}
	if err != nil || len(tops) == 0 {
		return fmt.Errorf("no control groups in %s", root)
	}
	dir := filepath.Join(filepath.Dir(tops[0]), fmt.Sprintf("dsbuild-rights-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("making a control group: %w", err)
	}
	return os.Remove(dir)
}

// tryTunnel opens the device with which the engine's network is made.
func tryTunnel() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening a network tunnel: %w", err)
	}
	return f.Close()
}
