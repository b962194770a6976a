// Command full is `make test-full`: the long tests of dsbuild's promises.
//
//	go run ./ci/full           # all parts
//	go run ./ci/full inside    # one of them
//
// It prepares the needs of a part (tools, real wheels, an engine, a wheel of this checkout). Then
// it runs the tests called TestFull and the part's name, in files *_full_test.go with the build
// tag full. If a part passes, it writes the results into docs/testing.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// partLimit is what docs/design.md promises of each part.
const partLimit = time.Hour

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runParts(ctx, os.Args[1:], filepath.Join(xdg.CacheHome, "dsbuild"), os.Stderr))
}

// runParts works in the checkout that is the current folder.
func runParts(ctx context.Context, args []string, cache string, w io.Writer) int {
	chosen, err := chooseParts(args)
	if err != nil {
		fmt.Fprintf(w, "test-full: %v\n", err)
		return 2
	}
	err = proveAll(ctx, chosen, cache, w)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(w, "interrupted")
		return 130
	case err != nil:
		ui.PrintError(w, err)
		return 1
	}
	return 0
}

// proveAll goes on with the next part after one has failed.
func proveAll(ctx context.Context, chosen []part, cache string, w io.Writer) error {
	console := ui.New(w, ui.FromEnvironment(w))
	defer console.Close()
	b, err := newBench(cache, console)
	if err != nil {
		return err
	}
	defer b.close()
	var failed error
	for _, p := range chosen {
		if err := b.provePart(ctx, p); err != nil {
			failed = errors.Join(failed, fmt.Errorf("part %s: %w", p.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// provePart runs one part and, if it passes, writes down its results.
func (b *bench) provePart(ctx context.Context, p part) error {
	r, err := newRecord(ctx, p.name)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, partLimit, fmt.Errorf("not done within %s", partLimit))
	defer cancel()
	logName, closeLog, err := b.openLog(p.name)
	if err != nil {
		return err
	}
	defer closeLog()
	b.ui.Note("part %s: %s; the whole log: %s", p.name, p.about, logName)
	begin := time.Now()
	if err := b.prepareNeeds(limited, p); err != nil {
		return endReason(limited, err)
	}
	r.preparing = time.Since(begin)
	r.results, err = b.runTests(limited, p)
	r.wall = time.Since(begin)
	r.origin.Close(ctx)
	if err != nil && limited.Err() == nil {
		b.ui.Note("%s", r)
	}
	if err != nil {
		return endReason(limited, err)
	}
	if err := resultsDocument().Save(r.part, r.String()); err != nil {
		return err
	}
	b.ui.Note("part %s passed in %s: %d tests, results in %s", p.name, ui.Duration(r.wall), len(r.results.tests), resultsDocument().File)
	return nil
}

// endReason names why ctx ended, where that is why err happened.
func endReason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
