package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/ci/ledger"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// resultsDocument holds the last results of each part.
func resultsDocument() ledger.Document {
	d := ledger.Document{
		File:  "docs/testing.md",
		Begin: "<!-- results of make test-full: written by ci/full -->\n",
		End:   "<!-- end -->\n",
	}
	for _, p := range allParts() {
		d.Order = append(d.Order, p.name)
	}
	return d
}

// record holds the results of a part, with place and time.
type record struct {
	part      string
	origin    ledger.Origin
	preparing time.Duration
	wall      time.Duration // the preparation included
	results   results
}

// newRecord notes the state before the tests run, and finds out
// whether there is a place for the results before an hour is spent on them.
func newRecord(ctx context.Context, name string) (*record, error) {
	doc := resultsDocument()
	if err := doc.Check(); err != nil {
		return nil, err
	}
	origin, err := ledger.Now(ctx, doc.File)
	return &record{part: name, origin: origin}, err
}

// String is the part's section of the document.
func (r *record) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "### %s\n\n%s; %s, of which %s were preparation.\n\n", r.part, r.origin, ui.Duration(r.wall), ui.Duration(r.preparing))
	fmt.Fprint(&out, "| test | result | seconds |\n|---|---|---|\n")
	for _, t := range r.results.tests {
		fmt.Fprintf(&out, "| %s | %s | %.1f |\n", ledger.Markdown(id{t.pkg, t.name}.String()), t.action, t.seconds)
	}
	if len(r.results.facts) > 0 {
		fmt.Fprintln(&out)
	}
	for _, f := range r.results.facts {
		fmt.Fprintf(&out, "- %s: %s\n", ledger.Markdown(f.name), ledger.Markdown(f.value))
	}
	return out.String()
}
