package index

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"html/template"
	"path"
	"strings"
)

//go:embed simple.html.tmpl project.html.tmpl
var templates embed.FS

// htmlPage is the name of each page.
const htmlPage = "index.html"

// files returns the project page and the index page that lists the project.
func (p Page) files() ([]file, error) {
	tmpl, err := template.New("").Funcs(template.FuncMap{
		"href":           Entry.href,
		"requiresPython": func(w Entry) string { return w.requiresPython },
		"metadataSHA256": func(w Entry) string { return hashOf(w.metadata) },
	}).ParseFS(templates, "*.html.tmpl")
	if err != nil {
		return nil, err
	}
	var root, list bytes.Buffer
	data := struct {
		Page
		Project string
	}{p, project}
	err = errors.Join(
		tmpl.ExecuteTemplate(&list, "project.html.tmpl", data),
		tmpl.ExecuteTemplate(&root, "simple.html.tmpl", data))
	return []file{
		{path: path.Join(p.Path, project, htmlPage), text: list.Bytes()},
		{path: path.Join(p.Path, htmlPage), text: root.Bytes()},
	}, err
}

// href is the relative URL of the file, with the hash for installers. It escapes the plus, which some
// servers read as a space.
func (w Entry) href() template.URL {
	//nolint:gosec // a wheel's name has no character that means anything there
	return template.URL(strings.ReplaceAll(w.Name, "+", "%2B") + "#sha256=" + w.SHA256)
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// document returns a value as a JSON file.
func document(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", " ")
	return append(text, '\n'), err
}
