package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/check"
)

// reportForms are the forms of a report on nodes.
type reportForms struct {
	document any // of the JSON
	text     func(io.Writer) error
	html     func(io.Writer, report.About) error
	junit    func(io.Writer, report.About) error
	private  func() bool // JUnit quotes logs
}

func fleetForms(r *report.Report) reportForms {
	html := func(w io.Writer, about report.About) error { return page.Write(w, r, about) }
	return reportForms{r, r.Print, html, r.JUnit, r.QuotesLogs}
}

func checkForms(r *check.Report) reportForms {
	return reportForms{r, r.Print, r.Page, r.JUnit, func() bool { return false }}
}

// reportEndings are the endings of the names of report files, which select the form.
func reportEndings() []string { return []string{".json", ".html", ".xml"} }

// print prints before it writes files, so that the user sees the report also where a file
// cannot be written.
func (f reportForms) print(a *app, asJSON bool, files []string, about report.About) error {
	var err error
	if asJSON {
		err = ui.JSON(a.stdout, f.document)
	} else {
		err = f.text(a.stdout)
	}
	return errors.Join(err, f.writeFiles(files, about))
}

// writeFiles writes the files that --report names.
func (f reportForms) writeFiles(files []string, about report.About) error {
	var errs []error
	for _, file := range files {
		if err := f.writeFile(file, about); err != nil {
			errs = append(errs, fmt.Errorf("writing the report: %w", err))
		}
	}
	return errors.Join(errs...)
}

// writeFile writes a file in the form of its name's ending.
func (f reportForms) writeFile(file string, about report.About) error {
	var text bytes.Buffer
	var err error
	mode := os.FileMode(0o644)
	switch filepath.Ext(file) {
	case ".json":
		err = ui.JSON(&text, f.document)
	case ".html":
		err = f.html(&text, about)
	case ".xml":
		err = f.junit(&text, about)
		if f.private() {
			mode = 0o600 // as the logs
		}
	}
	if err != nil {
		return err
	}
	return writeWhole(file, text.Bytes(), mode)
}
