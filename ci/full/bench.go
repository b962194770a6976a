package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// bench is the folder of the proofs, in the user's cache. It keeps downloads for the next run.
// Tests find its path in DSBUILD_FULL_DIR.
//
//	tools    Python environment of the tools
//	wheels/  the files of wheels.txt, and nothing else
//	logs/    of the last run of each part
//	run/     of the last run: engine, wheel.json, dist/
//	tmp/     unfinished downloads
type bench struct {
	dir   string
	ui    ui.Reporter
	log   *os.File // of the part that runs
	built string   // the wheel of this checkout, if a part needs one
}

// begin prepares for a part. Before the first part it makes the folders, and empties those of a
// single run.
func (b *bench) begin(r ui.Reporter, log *os.File) error {
	var err error
	if b.log == nil {
		err = errors.Join(os.RemoveAll(b.path("run")), os.RemoveAll(b.path("tmp")))
		for _, d := range []string{"run", "tmp", "wheels"} {
			err = errors.Join(err, os.MkdirAll(b.path(d), 0o755))
		}
	}
	b.ui, b.log = r, log
	return err
}

func (b *bench) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

// tailLines is the number of lines of an output that a failure shows.
const tailLines = 40

// runCommand runs a program to its end. Its output goes to the log, and the last lines of it
// into the error; stdout, if not nil, is written separately.
func (b *bench) runCommand(ctx context.Context, step ui.Step, stdout io.Writer, name string, args ...string) error {
	fmt.Fprintf(b.log, "\n$ %s %s\n", name, strings.Join(args, " "))
	last := child.Tail{Most: tailLines}
	out := io.MultiWriter(b.log, child.NewLines(func(line string) {
		step.Log(line)
		last.Add(line)
	}))
	cmd := child.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, &last)
	}
	return nil
}
