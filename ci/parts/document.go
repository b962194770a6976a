package parts

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/hint"
)

// Document is a file of the checkout with a place for results. Between two marks it has a
// section for each part, with date, machine and commit.
type Document struct {
	// File is relative to the checkout's root.
	File string
	// Begin and End are the lines around the results.
	Begin, End string
	// Order has the titles of sections in the order of the file. A section with another title
	// comes last.
	Order []string
}

// Check makes sure that the document has a place for results, before the part takes an hour to
// produce them.
func (d Document) Check() error {
	text, err := os.ReadFile(d.File)
	if err != nil {
		return hint.With(err, "run it in the root of a checkout")
	}
	_, err = d.replaceSection(string(text), "", "")
	return err
}

// Save writes the section with this title ("### title" and its text). The file is written
// completely or not at all. The other sections stay unchanged.
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

// replaceSection replaces a section, or inserts it in its place.
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

// sectionOrder returns the position of a section in the document.
func (d Document) sectionOrder(title string) int {
	if i := slices.Index(d.Order, title); i >= 0 {
		return i
	}
	return len(d.Order)
}

// Markdown escapes a text so that it ends no table cell and no mark.
func Markdown(text string) string {
	return strings.NewReplacer("<", "&lt;", "|", `\|`).Replace(text)
}
