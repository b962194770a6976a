package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// nodeReport is a report on nodes.
type nodeReport interface {
	Print(io.Writer) error
	EditHints(edit func(hint, nodes string) string)
	Err() error
}

// reportEndings are the suffixes of report files, which select the format.
func reportEndings() []string { return []string{".json", ".html"} }

// reportOutcome prints and writes the report. The nodes' error comes first, so that a full disk
// here does not hide it.
func reportOutcome(ctx context.Context, a *app, nodes nodeFlags, r nodeReport) error {
	outcome := r.Err()
	if ctx.Err() != nil {
		outcome = context.Cause(ctx)
	}
	return errors.Join(outcome, printReport(a, nodes, r))
}

// printReport prints before it writes files, so that the user sees the report also where a file
// cannot be written.
func printReport(a *app, nodes nodeFlags, r nodeReport) error {
	r.EditHints(a.hints.expand)
	var err error
	if nodes.json {
		err = ui.JSON(a.stdout, r)
	} else {
		err = r.Print(a.stdout)
	}
	return errors.Join(err, writeReports(nodes, r))
}

// writeReports writes the files of --report, each in the format of its suffix.
func writeReports(nodes nodeFlags, r nodeReport) error {
	about := report.About{Command: nodes.command, Inventory: nodes.inventory, By: localUser(), At: time.Now()}
	var errs []error
	for _, file := range nodes.reports {
		var text bytes.Buffer
		var err error
		full, ok := r.(*report.Report)
		switch {
		case filepath.Ext(file) == ".json":
			err = ui.JSON(&text, r)
		case ok:
			err = page.Write(&text, full, about)
		default:
			err = fmt.Errorf("%s: this report can only be written as .json", file)
		}
		if err == nil {
			err = atomicfile.Write(file, &text, 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot write the report: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkOutput returns an error if writing an output would destroy what has its name: a file that the command reads, a
// directory, a device or a pipe, or /dev/stdout. Files are replaced, not written in place.
func checkOutput(flag, output string, inputs ...string) error {
	out, err := os.Stat(output)
	if err != nil {
		return nil //nolint:nilerr // there is no such file, or writing it fails
	}
	if out.IsDir() {
		return usagef("%s: %s is a directory", flag, output)
	}
	if target, _ := os.Readlink(output); !out.Mode().IsRegular() || strings.HasPrefix(target, "/proc/") {
		return usagef("%s: %s is not a regular file", flag, output)
	}
	for _, input := range inputs {
		if in, err := os.Stat(input); err == nil && os.SameFile(in, out) {
			return fault.WithHint(usagef("%s: %s is a file that the command reads", flag, output), "choose another name")
		}
	}
	return nil
}

// changePlan is what the survey of a run that changes nodes finds.
type changePlan interface {
	Print(io.Writer) error
	Excluded() []report.ExcludedNode
	Err() error
}

// endSurvey prints the plan of a dry run. done is true if the command ends with its survey: if the survey
// failed with err, and after a dry run, which returns the same error as the report of its plan. After an
// interrupted survey the command continues, because Apply then only reports.
func (f changeFlags) endSurvey(
	ctx context.Context, a *app, nodes nodeFlags, plan changePlan, document func() any, err error,
) (done bool, _ error) {
	switch {
	case err != nil && (ctx.Err() == nil || f.dryRun):
		return true, err
	case !f.dryRun:
		return false, nil
	case nodes.json:
		return true, errors.Join(plan.Err(), ui.JSON(a.stdout, document()))
	}
	return true, errors.Join(plan.Err(), plan.Print(a.stdout), f.printGate(a.stdout),
		report.PrintHints(a.stdout, plan.Excluded(), a.hints.expand))
}

// relativePath returns a path relative to the working directory, if that is shorter.
func relativePath(path string) string {
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, cwd+string(os.PathSeparator)); ok {
		return rest
	}
	return path
}
