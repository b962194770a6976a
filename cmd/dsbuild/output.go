package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// nodeReport is a report on nodes.
type nodeReport interface {
	Print(io.Writer) error
	EditHints(func(hint string) string)
	Err() error
}

// reportEndings are the endings of the names of report files, which select the form.
func reportEndings() []string { return []string{".json", ".html"} }

// reportOutcome prints and writes the report. The nodes' error comes first, so that a full disk
// here does not hide it.
func reportOutcome(ctx context.Context, a *app, opts fleetFlags, r nodeReport) error {
	outcome := r.Err()
	if ctx.Err() != nil {
		outcome = context.Cause(ctx)
	}
	return errors.Join(outcome, printReport(a, opts, r))
}

// printReport prints before it writes files, so that the user sees the report also where a file
// cannot be written.
func printReport(a *app, opts fleetFlags, r nodeReport) error {
	r.EditHints(opts.nameInventory)
	var err error
	if opts.json {
		err = ui.JSON(a.stdout, r)
	} else {
		err = r.Print(a.stdout)
	}
	return errors.Join(err, writeReports(opts, r))
}

// writeReports writes the files that --report names, each in the form of its name's ending.
func writeReports(opts fleetFlags, r nodeReport) error {
	about := report.About{Command: opts.command, Inventory: opts.inventory, By: localUser(), At: time.Now()}
	var errs []error
	for _, file := range opts.reports {
		var text bytes.Buffer
		var err error
		full, ok := r.(*report.Report)
		switch {
		case filepath.Ext(file) == ".json":
			err = ui.JSON(&text, r)
		case ok:
			err = page.Write(&text, full, about)
		default:
			err = fmt.Errorf("%s: this report is written as .json only", file)
		}
		if err == nil {
			err = atomicfile.Write(file, &text, 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("writing the report: %w", err))
		}
	}
	return errors.Join(errs...)
}
