package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// Layout has the path of each part of the engine. It is a value and an argument of every
// function, so a test can have its own engine directory.
type Layout struct {
	Root string // ${XDG_STATE_HOME:-~/.local/state}/dsbuild/engine
	Proc string // /proc, or a fake one
}

// Default is the layout of the user who runs the program.
func Default() (Layout, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" || !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return Layout{}, fmt.Errorf("finding the state directory: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return At(filepath.Join(state, "dsbuild", "engine")), nil
}

// At is the layout below root.
func At(root string) Layout { return Layout{Root: filepath.Clean(root), Proc: "/proc"} }

func (l Layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.Root}, parts...)...)
}

// Bin is the path of an installed program: dagger, dagger-engine,
// dagger-init, dnsname or enginectl.
func (l Layout) Bin(name string) string { return l.path("bin", name) }

// Rootfs is the engine's own root file system.
func (l Layout) Rootfs() string { return l.path("rootfs") }

// Base is the tar of a release from which workload containers start.
func (l Layout) Base(suite string) string { return l.path("base", suite+".tar") }

// Socket is where the engine listens.
func (l Layout) Socket() string { return l.path("run", "engine.sock") }

// Cache is the engine's cache.
func (l Layout) Cache() string { return l.path("state") }

// Log is the file with the engine's output since its last start.
func (l Layout) Log() string { return l.path("engine.log") }

func (l Layout) recordFile() string        { return l.path("run", "engine.json") }
func (l Layout) stamp(piece string) string { return l.path("stamps", piece) }
func (l Layout) tmp(name string) string    { return l.path("tmp", name) }
func (l Layout) logOf(name string) string  { return l.path("log", name+".log") }

// cgroup is the name of the control group that holds the engine's containers. Two engine
// directories on one host must not share it.
func (l Layout) cgroup() string { return "dsbuild-" + digestOf(l.Root)[:12] }

// Installed reports whether every part that a start needs exists.
func (l Layout) Installed() bool {
	for _, p := range []string{l.Bin("dagger"), l.Bin("dagger-engine"), l.Bin("dagger-init"), l.Bin("dnsname"), l.Bin("enginectl"), l.Rootfs()} {
		if _, err := os.Stat(p); err != nil {
			return false
		}
	}
	return true
}
