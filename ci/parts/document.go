package parts

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/hint"
)

// Document is a file of the checkout with a place for results: between two marks, a section
// for each part, with when, where and of which commit.
type Document struct {
	// File is relative to the checkout's root.
	File string
	// Begin and End are the lines that the results stand between.
	Begin, End string
	// Order are the titles of sections in the order in which they are written
	// down; one that is not among them comes last.
	Order []string
}

// Check finds out whether there is a place for results, before an hour is
// spent on them.
func (d Document) Check() error {
	text, err := os.ReadFile(d.File)
	if err != nil {
		return hint.With(err, "run it in the root of a checkout")
	}
	_, err = d.replaceSection(string(text), "", "")
	return err
}

// Save writes the section with that title: "### title" and the text after it. It writes all of the
// section or nothing. Other sections stay as they are.
func (d Document) Save(title, section string) error {
	old, err := os.ReadFile(d.File)
	if err != nil {
		return err
	}
	text, err := d.replaceSection(string(old), title, section)
	if err != nil {
		return err
	}
	return atomicfile.Write(d.File, strings.NewReader(text), 0o644)
}

// replaceSection puts a section in its place.
func (d Document) replaceSection(text, title, section string) (string, error) {
	before, rest, found := strings.Cut(text, d.Begin)
	old, after, closed := strings.Cut(rest, d.End)
	if !found || !closed || strings.Contains(rest, d.Begin) {
		return "", fmt.Errorf("%s: the results belong between one line %q and one line %q", d.File,
			strings.TrimSpace(d.Begin), strings.TrimSpace(d.End))
	}
	sections := map[string]string{}
	var titles []string
	for _, s := range strings.Split("\n"+old, "\n### ")[1:] {
		t, _, _ := strings.Cut(s, "\n")
		sections[t] = "### " + strings.TrimSpace(s) + "\n"
		titles = append(titles, t)
	}
	if !slices.Contains(titles, title) {
		titles = append(titles, title)
	}
	sections[title] = section
	slices.SortStableFunc(titles, func(a, b string) int { return d.sectionOrder(a) - d.sectionOrder(b) })
	var out strings.Builder
	for _, t := range titles {
		out.WriteString("\n" + sections[t])
	}
	return before + d.Begin + out.String() + "\n" + d.End + after, nil
}

// sectionOrder returns the place of a section in the document.
func (d Document) sectionOrder(title string) int {
	if i := slices.Index(d.Order, title); i >= 0 {
		return i
	}
	return len(d.Order)
}

// Markdown is text that ends no table cell and no mark.
func Markdown(text string) string {
	return strings.NewReplacer("<", "&lt;", "|", `\|`).Replace(text)
}
