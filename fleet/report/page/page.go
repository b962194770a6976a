// Package page writes the report of a fleet as one HTML page. The page needs only a browser,
// shows everything that the report holds, and runs no code that came from a node.
package page

import (
	"embed"
	"html/template"
	"io"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
)

//go:embed page.html.tmpl page.css page.js
var files embed.FS

// Write writes the page of a report.
//
// All text from nodes goes through html/template, or is JSON in a script whose type no browser
// runs. The page's content security policy is a second barrier: it allows only our one style and
// one script, by their hashes, and no other script and no request.
func Write(w io.Writer, r *report.Report, about report.About) error {
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
		htmlpage.Page
		view
	}{htmlpage.New(style, script), newView(r, about)})
}
