// Package htmlpage writes dsbuild's HTML reports. The caller provides the contents; all pages share the
// template, the style and the script.
//
// A page is a single file that makes no requests. Its texts may come from nodes, so they are escaped, and
// the page's policy allows only dsbuild's style and script. Without JavaScript only searching and sorting
// are missing.
package htmlpage

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed page.html.tmpl page.css page.js
var files embed.FS

// Text is untrusted text. It is shown without control characters.
type Text string

func (t Text) String() string { return ui.Clean(string(t)) }

// Page is the contents of a page.
type Page struct {
	Title    Text
	Outcome  Outcome
	About    []Fact
	Counts   []Count // the rows of the main table, or the nodes behind them, by status
	Sections []Section
}

// Outcome is the overall result in a page.
type Outcome string

// The outcomes.
const (
	Good Outcome = "good"
	Bad  Outcome = "bad"
)

// OutcomeOf returns Good or Bad.
func OutcomeOf(good bool) Outcome {
	if good {
		return Good
	}
	return Bad
}

// Fact is a labelled text.
type Fact struct{ Label, Text Text }

// Count is a number of nodes, or of other things that the main table shows, with one status.
type Count struct {
	Status string
	N      int
}

// Section is a part of the page. Its empty fields are not shown.
type Section struct {
	Title Text
	Items []Item
	List  []Text
	Table *Table
	After Text
}

// Item is a finding or a note about some nodes.
type Item struct {
	Status string // decides its colour
	Title  Text
	Nodes  Text // the names, folded
	Count  int  // of the nodes
	List   []Text
	Text   Text
	From   Text // the node that said Text, if others used other words
	Hint   Text
	Log    Text // a file
}

// Table is a table. A page has at most one main table, which can be searched and sorted.
type Table struct {
	Main    bool
	Columns []Column
	Rows    []Row
}

// Column is the head of a column. Numbers are aligned to the right.
type Column struct {
	Title  Text
	Number bool
}

// Row is a row of a table, for one node or for several that are alike.
type Row struct {
	Status string
	Dim    bool
	Cells  []Cell // the first is the head of the row
	Nodes  []Text // the name of each, by which a search finds the row
}

// Cell is a cell of a table.
type Cell struct {
	Text   Text
	Small  Text   // after the text
	Status string // decides the colour
	Odd    string // "must" or "may" marks a value that differs from most, and says whether it must not
	Copy   Text   // a text to copy
}

// class returns the class of a cell in column i.
func (t Table) class(i int, c Cell) string {
	var words []string
	if t.Columns[i].Number {
		words = append(words, "number")
	}
	if c.Odd != "" {
		words = append(words, "odd", c.Odd)
	}
	if c.Status != "" {
		words = append(words, "status", "is-"+c.Status)
	}
	return strings.Join(words, " ")
}

// Hint is a hint, split around the command in it.
type Hint struct{ Before, Command, After Text }

// Split finds the command of a hint. It follows a colon and ends before a bracket, a semicolon,
// ", or " or a line break.
func (t Text) Split() Hint {
	text := t.String()
	at := strings.Index(text, ": dsbuild ")
	if at < 0 {
		return Hint{Before: Text(text)}
	}
	at += len(": ")
	end := len(text)
	for _, mark := range []string{" (", ";", ", or ", "\n"} {
		if i := strings.Index(text[at:], mark); i >= 0 {
			end = min(end, at+i)
		}
	}
	return Hint{Text(text[:at]), Text(text[at:end]), Text(text[end:])}
}

// Part is a part of the bar, with the number of nodes before it.
type Part struct {
	Count
	Before int
}

// Write writes the page.
func (p Page) Write(w io.Writer) error {
	const name = "page.html.tmpl"
	tmpl, err := template.New(name).Funcs(template.FuncMap{"class": Table.class, "split": Text.Split}).ParseFS(files, name)
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
	var bar []Part
	total := 0
	for _, c := range p.Counts {
		bar = append(bar, Part{c, total})
		total += c.N
	}
	var page bytes.Buffer
	// The Content-Security-Policy of a page. It allows the style and the script by their hashes,
	// and nothing else: no other script, no request.
	err = tmpl.Execute(&page, struct {
		Page
		Bar    []Part
		Total  int
		Policy string
		Style  template.CSS
		Script template.JS
	}{p, bar, total, strings.Join([]string{
		"default-src 'none'",
		"style-src " + source(style),
		"script-src " + source(script),
		"base-uri 'none'",
		"form-action 'none'",
		"require-trusted-types-for 'script'", // no text becomes markup, even after a mistake in the script
		"trusted-types 'none'",
	}, "; "), template.CSS(style), template.JS(script)}) //nolint:gosec // our own
	if err != nil {
		return err
	}
	_, err = page.WriteTo(w)
	return err
}

// source returns the Content-Security-Policy hash of a text of the page.
func source(text []byte) string {
	sum := sha256.Sum256(text)
	return fmt.Sprintf("'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}
