package engine

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Bases makes root file system tars of releases of Debian and Ubuntu with dsbuild's own engine,
// and names them by their suites: "bookworm", "jammy". They work with any engine, because dsbuild
// sends them to it.
type Bases struct {
	Home string               // directory of dsbuild's own engine
	Root bool                 // whether the user may make one
	Note func(string, ...any) // prints a message for the user
}

// NewBases returns the tars of the user's own engine.
func NewBases(note func(string, ...any)) *Bases {
	return &Bases{Home: Home(), Root: os.Geteuid() == 0, Note: note}
}

// There returns the tar of a suite if it has been made, else "". It makes nothing, so a dry run
// names the image where a run would make a tar first.
func (b *Bases) There(suite string) string {
	tar := filepath.Join(b.Home, "base", suite+".tar")
	if suite == "" || filepath.Base(suite) != suite {
		return ""
	}
	if info, err := os.Stat(tar); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return tar
}

// Get returns the tar of a suite. If it is missing, dsbuild's own engine is installed and the
// user is root, Get makes it, which takes a minute or two. Otherwise Get returns "", and the
// caller must use an image. Get never updates a tar: 'make engine' makes it again after a change
// of this host's mirrors or certificates.
func (b *Bases) Get(ctx context.Context, suite string) (string, error) {
	if tar := b.There(suite); tar != "" {
		return tar, nil
	}
	control := filepath.Join(b.Home, "bin", "enginectl")
	if _, err := os.Stat(control); err != nil || suite == "" {
		return "", nil
	}
	if !b.Root {
		b.Note("no base for %s in %s, and only root can create it: using an image instead", suite, b.Home)
		return "", nil
	}
	b.Note("creating the base for %s (once, takes a minute or two)", suite)
	if err := b.make(ctx, control, suite); err != nil {
		return "", fmt.Errorf("creating the base for %s: %w", suite, err)
	}
	tar := b.There(suite)
	if tar == "" {
		return "", &fs.PathError{
			Op:   "creating the base for " + suite,
			Path: filepath.Join(b.Home, "base", suite+".tar"),
			Err:  fs.ErrNotExist,
		}
	}
	return tar, nil
}

// make runs the program that came with the engine. At the end of ctx it asks the program to end
// instead of killing it, because the program has to clean up after mmdebstrap.
func (b *Bases) make(ctx context.Context, control, suite string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, control, "base", suite)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Dir(filepath.Dir(b.Home)))
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	if cmd.ProcessState != nil && strings.HasPrefix(said.String(), "usage: ") {
		return fault.WithHint(fmt.Errorf("%s is from an older dsbuild", control), "update it: make engine")
	}
	// The error and its hint are in the output of enginectl.
	_, what, ok := strings.Cut("\n"+said.String(), "\nerror: ")
	if !ok {
		return fmt.Errorf("%w: %s", err, lastLine(said.String()))
	}
	what, advice, ok := strings.Cut(what, "\nhint: ")
	err = fmt.Errorf("%s", strings.TrimSpace(what))
	if !ok {
		return err
	}
	return fault.WithHint(err, "%s", strings.TrimSpace(advice))
}
