// Package page writes the report of a fleet as one HTML page: a file that needs
// nothing but a browser, says all that the report knows, and runs nothing that
// came from a node.
package page

import (
	"embed"
	"html/template"
	"io"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/sealed"
)

//go:embed page.html.tmpl page.css page.js
var files embed.FS

// Write writes the page of a report.
//
// All that nodes said goes through html/template or is JSON in a script of no
// type that a browser runs. The policy of the page is the second wall: it allows
// the one style and the one script that are ours, by their hashes, and nothing
// else: no other script, no request.
func Write(w io.Writer, r *deploy.Report, about deploy.About) error {
	tmpl, err := template.ParseFS(files, "page.html.tmpl")
	if err != nil {
		return err
	}
	style, err := files.ReadFile("page.css")
	if err != nil {
		return err
	}
	script, err := files.ReadFile("page.js")
	if err != nil {
		return err
	}
	return tmpl.Execute(w, struct {
		sealed.Page
		view
	}{sealed.New(style, script), newView(r, about)})
}
