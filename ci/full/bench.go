package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// bench is where the proofs are made: a folder of the user's cache, which keeps downloads for the
// next run. Tests know it as DSBUILD_FULL_DIR.
//
//	tools    Python environment of the tools
//	wheels/  the files of wheels.txt, and nothing else
//	logs/    of the last run of each part
//	run/     of the last run: engine, wheel.json, dist/
//	tmp/     unfinished downloads
type bench struct {
	dir   string
	ui    ui.Reporter
	log   io.Writer
	lock  *os.File
	built string // the wheel of this checkout, where a part needs one
}

// newBench locks the folder: two runs would measure each other.
func newBench(cache string, r ui.Reporter) (*bench, error) {
	b := &bench{dir: filepath.Join(cache, "full"), ui: r, log: io.Discard}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(b.path("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	b.lock = lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		b.close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another test-full runs: it holds %s", lock.Name())
		}
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	if err := b.removeUnfinished(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// removeUnfinished makes the folders, and empties those that are of one run only.
func (b *bench) removeUnfinished() error {
	err := errors.Join(os.RemoveAll(b.path("run")), os.RemoveAll(b.path("tmp")))
	for _, d := range []string{"logs", "run", "tmp", "wheels"} {
		err = errors.Join(err, os.MkdirAll(b.path(d), 0o755))
	}
	return err
}

// close frees the lock.
func (b *bench) close() { b.lock.Close() }

func (b *bench) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

// openLog starts the log of a part.
func (b *bench) openLog(name string) (file string, done func(), err error) {
	log, err := os.Create(b.path("logs", name+".log"))
	if err != nil {
		return "", nil, err
	}
	b.log = log
	return log.Name(), func() { b.log = io.Discard; log.Close() }, nil
}

// tailLines is how much of an output is shown where something failed.
const tailLines = 40

// tail keeps the last lines of an output.
type tail []string

func (t *tail) add(line string) {
	if *t = append(*t, line); len(*t) > tailLines {
		*t = (*t)[1:]
	}
}

func (t tail) String() string { return strings.Join(t, "\n") }

// runCommand runs a program to its end. Its output goes to the log, and the end of it into the
// error; stdout, if not nil, is kept apart.
func (b *bench) runCommand(ctx context.Context, step ui.Step, stdout io.Writer, name string, args ...string) error {
	fmt.Fprintf(b.log, "\n$ %s %s\n", name, strings.Join(args, " "))
	var last tail
	out := io.MultiWriter(b.log, child.NewLines(func(line string) {
		step.Log(line)
		last.add(line)
	}))
	cmd := child.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, last)
	}
	return nil
}
