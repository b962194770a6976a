//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/ci/ledger"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// part is one comparison, which can be made by itself.
type part struct {
	name  string
	needs []need // got in this order
	do    func(*yard, context.Context) (finding, error)
}

// need is something that a part finds ready.
type need struct {
	title string
	get   func(*yard, context.Context, ui.Step) (detail string, err error)
}

// finding is what a part came to.
type finding struct {
	text     string            // of its section, below the heading
	pictures map[string]string // files in docs with their contents
}

// parts are all there are, in the order in which they run and are written down.
func parts() []part {
	checkout := need{"dsbuild of this checkout", (*yard).program}
	peers := need{"the other tools", (*yard).peers}
	fleet := need{fmt.Sprintf("%d nodes", fleetSize), (*yard).nodes}
	wheels := need{"two wheels of DeepSpeed", (*yard).realWheels}
	toolchain := need{"a toolchain", (*yard).toolchain}
	return []part{
		{"build", []need{checkout, toolchain}, (*yard).building},
		{"archs", []need{checkout, toolchain}, (*yard).archs},
		{"ops", []need{checkout, toolchain, {"what ops need of this system", (*yard).opPackages}}, (*yard).allOps},
		{"deploy", []need{checkout, peers, fleet, wheels}, (*yard).deploy},
		{"large", []need{checkout, peers, fleet, wheels, {"the same wheels with 30 MiB more", (*yard).bigWheels}}, (*yard).large},
		{"load", []need{checkout, peers, fleet, wheels}, (*yard).load},
		{"copy", []need{checkout, peers, fleet}, (*yard).copying},
		{"verify", []need{checkout, peers, fleet, wheels}, (*yard).verify},
		{"growth", []need{checkout, wheels}, (*yard).growth},
	}
}

// choose returns the named parts in the order of the list, or all.
func choose(names []string) ([]part, error) {
	all := parts()
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no part %q; parts: %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

// document holds what was last found in each part.
func document() ledger.Document {
	d := ledger.Document{
		File:  "docs/benchmarks.md",
		Begin: "<!-- results of make bench: written by ci/bench -->\n",
		End:   "<!-- end -->\n",
	}
	for _, p := range parts() {
		d.Order = append(d.Order, p.name)
	}
	return d
}

// pictures are where parts draw.
const pictures = "docs/bench-*.svg"

// perform gets what a part needs, measures, and writes down what came of it.
func (y *yard) perform(ctx context.Context, p part) error {
	doc := document()
	if err := doc.Check(); err != nil {
		return err
	}
	origin, err := ledger.Now(ctx, doc.File, pictures)
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, n := range p.needs {
		if err := y.get(ctx, n); err != nil {
			return err
		}
	}
	found, err := p.do(y, ctx)
	if err != nil {
		return err
	}
	origin.Close(ctx)
	for file, text := range found.pictures {
		if err := ledger.Write("docs/"+file, text); err != nil {
			return err
		}
	}
	section := fmt.Sprintf("### %s\n\n%s; %s.\n\n%s", p.name, origin, ui.Duration(time.Since(begin)), found.text)
	if err := doc.Save(p.name, section); err != nil {
		return err
	}
	y.ui.Note("part %s: done in %s, written to %s", p.name, ui.Duration(time.Since(begin)), doc.File)
	return nil
}

// get gets what a part needs, unless an earlier part has needed it.
func (y *yard) get(ctx context.Context, n need) error {
	if slices.Contains(y.got, n.title) {
		return nil
	}
	step := y.ui.Step(n.title)
	detail, err := n.get(y, ctx, step)
	if err != nil {
		step.End(ui.Failed, "")
		return fmt.Errorf("%s: %w", n.title, err)
	}
	step.End(ui.Done, detail)
	y.got = append(y.got, n.title)
	return nil
}
