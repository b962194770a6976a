package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// mount is one line of the engine's mount table. target is inside its root.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

// engineMounts is the table, in order. A fresh sysfs shows only the new network namespace. A
// private /dev hides the host's device nodes. The leases of container addresses end with the
// engine.
func engineMounts(l Layout) []mount {
	bind := func(from, to string) mount { return mount{from, to, "", unix.MS_BIND, ""} }
	return []mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"/sys/fs/cgroup", "/sys/fs/cgroup", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
		{"devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=666,mode=620"},
		{"tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
		{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777"},
		bind(l.path("run"), "/run/dagger"),
		bind(l.Cache(), "/var/lib/dagger"),
		{"tmpfs", "/var/lib/cni", "tmpfs", 0, "mode=700"},
		bind(l.Bin("dagger-engine"), "/usr/local/bin/dagger-engine"),
		bind(l.Bin("dagger-init"), "/usr/local/bin/dagger-init"),
		bind(l.Bin("dnsname"), "/opt/cni/bin/dnsname"),
	}
}

// device is a character device of the private /dev.
type device struct {
	name         string
	major, minor uint32
}

func deviceNodes() []device {
	return []device{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {"fuse", 10, 229}}
}

func devLinks() map[string]string {
	return map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
}

// engineSocket is the path of the engine's socket inside its root.
const engineSocket = "/run/dagger/engine.sock"

// engineCommand is the command line inside the namespaces. A small pool of prepared networks is
// enough, and starts and stops faster than the engine's default of 128.
func engineCommand() []string {
	return []string{"/usr/local/bin/dagger-engine", "--addr", "unix://" + engineSocket, "--root", "/var/lib/dagger", "--oci-cni-pool-size", "4", "--config", "/etc/dagger/engine.toml"}
}

// runInNamespaces is the main program of the first process in the new namespaces: it prepares
// the root, waits for the network and becomes the engine.
func runInNamespaces(l Layout) error {
	if err := enterRoot(l); err != nil {
		return fmt.Errorf("preparing the engine's root: %w", err)
	}
	gate := os.NewFile(3, "gate")
	if n, _ := gate.Read(make([]byte, 1)); n != 1 {
		return errors.New("no network: giving up")
	}
	gate.Close()
	cmd := engineCommand()
	return fmt.Errorf("%s: %w", cmd[0], unix.Exec(cmd[0], cmd, os.Environ()))
}

func enterRoot(l Layout) error {
	root := l.Rootfs()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s: %w", root, err)
	}
	for _, m := range engineMounts(l) {
		to := filepath.Join(root, m.target)
		if m.fstype != "" || m.flags&unix.MS_BIND == 0 || isDir(m.source) {
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.source, to, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
		if m.target == "/dev" {
			if err := makeDevices(to); err != nil {
				return err
			}
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root now lies over the new one
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's root: %w", err)
	}
	return os.Chdir("/")
}

func makeDevices(dev string) error {
	defer unix.Umask(unix.Umask(0))
	for _, d := range deviceNodes() {
		if err := unix.Mknod(filepath.Join(dev, d.name), unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("making /dev/%s: %w", d.name, err)
		}
	}
	links := devLinks()
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if err := os.Symlink(links[name], filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}
