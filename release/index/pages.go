package index

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/htmlpage"
	"github.com/dsbuild/dsbuild/wheel"
)

//go:embed simple.html.tmpl project.html.tmpl
var files embed.FS

// htmlPage is the name of each page.
const htmlPage = "index.html"

// pages returns the pages of one index, for installers.
func (t Toolchain) pages() ([]file, error) {
	tmpl, err := template.New("").Funcs(template.FuncMap{
		"href":           Wheel.href,
		"requiresPython": func(w Wheel) string { return w.requiresPython },
		"metadataSHA256": func(w Wheel) string { return hashOf(w.metadata) },
	}).ParseFS(files, "*.html.tmpl")
	if err != nil {
		return nil, err
	}
	var root, list bytes.Buffer
	data := struct {
		Toolchain
		Project string
	}{t, project}
	err = errors.Join(tmpl.ExecuteTemplate(&list, "project.html.tmpl", data), tmpl.ExecuteTemplate(&root, "simple.html.tmpl", data))
	return []file{
		{path: path.Join(t.Name, project, htmlPage), text: list.Bytes()},
		{path: path.Join(t.Name, htmlPage), text: root.Bytes()},
	}, err
}

// Link is the relative address of the file. It escapes the plus, which some servers read as a
// space.
func (w Wheel) Link() string { return strings.ReplaceAll(w.Name, "+", "%2B") }

// href is the link with the hash. Installers check the downloaded file against it.
func (w Wheel) href() template.URL {
	return template.URL(w.Link() + "#sha256=" + w.SHA256) //nolint:gosec // a wheel's name has no character that means anything there
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// unknown stands for the address of the page if the caller did not give it. The page's script
// fills the address in.
const unknown = "ADDRESS-OF-THIS-PAGE/"

// chooser returns the page on which people choose an index, and the same data for programs.
func chooser(opt Options, all []Toolchain) ([]file, error) {
	page := htmlpage.Page{
		Title: "DeepSpeed wheels",
		Lines: []htmlpage.Text{
			"Each index below holds the wheels for one torch, CUDA, list of GPUs and CPU level. " +
				"In a single index, pip would take the highest version, even if it does not fit your machine.",
			"These commands show the versions and GPUs of your machine:",
		},
		Commands: []htmlpage.Command{
			{Text: "python -c 'import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda)'"},
			{Text: "nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader"},
		},
	}
	if opt.URL == "" {
		page.Here = unknown
	}
	for _, tc := range all {
		page.Sections = append(page.Sections, tc.section(opt))
	}
	var text bytes.Buffer
	if err := page.Write(&text); err != nil {
		return nil, err
	}
	list, err := document(struct {
		Indexes []Toolchain `json:"indexes"`
	}{all})
	return []file{{path: htmlPage, text: text.Bytes()}, {path: "index.json", text: list}}, err
}

// section shows a toolchain: the machines that it fits, how to install from it, and its wheels.
func (t Toolchain) section(opt Options) htmlpage.Section {
	at := cmp.Or(t.URL, unknown+t.Name+"/")
	gpus := each.Map(t.Archs, func(arch string) string { return named(arch, opt.GPUs) })
	for _, arch := range t.PTX {
		gpus = append(gpus, "newer than "+arch+", compiled at first use")
	}
	s := htmlpage.Section{
		ID: t.Name, Title: htmlpage.Text(t.title()),
		Facts: []htmlpage.Fact{
			{Label: "GPUs", Text: htmlpage.Text(cmp.Or(strings.Join(gpus, "; "), "any: it has no device code"))},
			{Label: "CPU", Text: htmlpage.Text(t.CPU)},
			{Label: "Index", Text: htmlpage.Text(t.Name), Link: t.Name + "/" + htmlPage},
		},
		Commands: []htmlpage.Command{
			{Text: htmlpage.Text("pip install --no-deps --index-url " + at + " " + project)},
			{
				Label: "with its requirements, from your usual index:",
				Text:  htmlpage.Text(fmt.Sprintf("pip install --extra-index-url %s %s==%s", at, project, t.Wheels[0].Version)),
			},
		},
		Table: &htmlpage.Table{Columns: []htmlpage.Column{
			{Title: "Version"}, {Title: "Python"}, {Title: "glibc"}, {Title: "Operators"}, {Title: "Built"}, {Title: "Size", Number: true}, {Title: "File"}, {Title: "sha256"},
		}},
	}
	if t.Dev {
		s.Note = "not from a release"
	}
	for _, w := range t.Wheels {
		s.Table.Rows = append(s.Table.Rows, w.row(t.Name+"/"+project+"/"))
	}
	return s
}

// row shows a wheel whose files lie in folder.
func (w Wheel) row(folder string) htmlpage.Row {
	version := htmlpage.Cell{Text: htmlpage.Text(w.Version)}
	if w.commit != "" {
		version.Small = htmlpage.Text("commit " + w.commit[:min(len(w.commit), 12)] + " ")
	}
	version.Small += htmlpage.Text(w.Yanked)
	links := []htmlpage.Link{{Text: "wheel", To: folder + w.Link()}}
	if w.beside[wheel.ManifestSuffix] != "" {
		links = append(links, htmlpage.Link{Text: "manifest", To: folder + w.Link() + wheel.ManifestSuffix})
	}
	return htmlpage.Row{Dim: w.Yanked != "", Cells: []htmlpage.Cell{
		version,
		{Text: htmlpage.Text(w.Python)},
		{Text: htmlpage.Text(wheel.InstallableGlibc(w.Name, w.Glibc))},
		{Text: htmlpage.Text(strings.Join(w.Ops, ", "))},
		{Text: htmlpage.Text(w.BuiltAt.Format(time.DateOnly))},
		{Text: htmlpage.Text(fmt.Sprintf("%.1f MB", float64(w.Size)/1e6))},
		{Links: links},
		{Text: htmlpage.Text(w.SHA256)},
	}}
}

// title describes a toolchain in one line.
func (t Toolchain) title() string {
	text := "torch " + t.Torch
	if t.newer {
		text += " and newer"
	}
	text += ", CUDA " + t.CUDA
	switch {
	case len(t.Archs) == 1:
		return text + ", GPU " + t.Archs[0]
	case len(t.Archs) > 1:
		return text + ", GPUs " + strings.Join(t.Archs, ", ")
	case len(t.PTX) > 0:
		return text + ", GPUs newer than " + t.PTX[0]
	}
	return text + ", any GPU"
}

// named returns a compute capability with the names of some GPUs that have it.
func named(arch string, names func(string) []string) string {
	const most = 4
	if names == nil {
		return arch
	}
	gpus := names(arch)
	switch {
	case len(gpus) == 0:
		return arch
	case len(gpus) > most:
		gpus = append(slices.Clone(gpus[:most]), "…")
	}
	return arch + " (" + strings.Join(gpus, ", ") + ")"
}

// document returns a value as a JSON file.
func document(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", " ")
	return append(text, '\n'), err
}
