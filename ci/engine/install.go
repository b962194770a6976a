package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Up installs each part that is missing or whose inputs changed, then starts the engine. If
// there is nothing to do, it takes a fraction of a second.
func Up(ctx context.Context, l Layout, con *console) error {
	if err := checkMachine(l); err != nil {
		return err
	}
	g, err := readGround(ctx)
	if err != nil {
		return err
	}
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	wanted, err := allPieces(l, con, g)
	if err != nil {
		return err
	}
	var stale []piece
	for _, p := range wanted {
		if !l.isCurrent(p) {
			stale = append(stale, p)
		}
	}
	if len(stale) > 0 {
		if err := buildPiece(ctx, l, con, stale, needFree); err != nil {
			return err
		}
	}
	if err := hostPackages(ctx, con); err != nil {
		return err
	}
	if err := installSelf(l); err != nil {
		return fmt.Errorf("installing enginectl: %w", err)
	}
	if err := startEngine(ctx, l, con); err != nil {
		return err
	}
	con.printLine("engine", "answers on %s", l.Socket())
	return nil
}

// allPieces lists the parts of an installation: tools, the engine's root, the default base, and
// each other base that was requested before.
func allPieces(l Layout, con *console, g ground) ([]piece, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	src, err := findCheckout(wd)
	if err != nil {
		return nil, err
	}
	tools, err := toolsPiece(l, con, src)
	if err != nil {
		return nil, err
	}
	all := []piece{tools, rootfsPiece(l, con, g.debian)}
	for _, r := range debianReleases() {
		if _, err := os.Stat(l.Base(r.suite)); err == nil || r.suite == defaultBase {
			all = append(all, basePiece(l, con, g, r))
		}
	}
	return all, nil
}

// buildPiece builds the stale parts and puts them into place. It first stops a running engine whose
// own parts change.
func buildPiece(ctx context.Context, l Layout, con *console, stale []piece, free uint64) error {
	if err := checkDisk(l.Root, free); err != nil {
		return err
	}
	if err := l.removeTemporary(); err != nil {
		return fault.WithHint(err, "unmount it, then retry")
	}
	if err := hostPackages(ctx, con); err != nil {
		return err
	}
	if err := makeAll(ctx, con, stale); err != nil {
		return err
	}
	for _, p := range stale {
		if p.inUse && socketAnswers(l.Socket()) {
			con.printLine("engine", "restarting it: its %s changed", p.name)
			if err := stopEngine(ctx, l, con); err != nil {
				return err
			}
		}
	}
	for _, p := range stale {
		if err := l.installPiece(p); err != nil {
			return err
		}
	}
	return l.removeTemporary()
}

// makeAll makes the tools (which use all cores, for minutes) in parallel with the file systems
// (which mostly wait for the network and the disk). The first failure ends both.
func makeAll(ctx context.Context, con *console, stale []piece) error {
	lanes := map[bool][]piece{}
	for _, p := range stale {
		lanes[p.name == "tools"] = append(lanes[p.name == "tools"], p)
	}
	both, ctx := errgroup.WithContext(ctx)
	for _, lane := range lanes {
		both.Go(func() error {
			for _, p := range lane {
				if err := p.make(ctx, con); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return both.Wait()
}

// installSelf copies the running program to its place, unless the same program is there.
func installSelf(l Layout) error {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	to := l.Bin("enginectl")
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, self) {
		return nil
	}
	return writeFile(to, string(self), 0o755)
}

// copyFile copies a file atomically.
func copyFile(from, to string, mode os.FileMode) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, string(b), mode)
}
