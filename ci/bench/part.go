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
	do    func(*workspace, context.Context) (section string, err error)
}

// need is something that a part finds ready.
type need struct {
	title string
	get   func(*workspace, context.Context, ui.Step) (detail string, err error)
}

// allParts are all there are, in the order in which they run and are written down.
func allParts() []part {
	checkout := need{"dsbuild of this checkout", (*workspace).findProgram}
	peers := need{"the other tools", (*workspace).installTools}
	fleet := need{fmt.Sprintf("%d nodes", fleetSize), (*workspace).startNodes}
	wheels := need{"two wheels of DeepSpeed", (*workspace).buildWheels}
	toolchain := need{"a toolchain", getForBuilds(wheelBuilds.makeToolchain)}
	return []part{
		{"build", []need{checkout, toolchain}, ofBuilds(wheelBuilds.compareBuilds)},
		{"archs", []need{checkout, toolchain}, ofBuilds(wheelBuilds.compareArchs)},
		{"ops", []need{checkout, toolchain, {"what ops need of this system", getForBuilds(wheelBuilds.installOpPackages)}}, ofBuilds(wheelBuilds.buildAllOps)},
		{"deploy", []need{checkout, peers, fleet, wheels}, ofRaces(fleetRaces.compareDeploys)},
		{"load", []need{checkout, peers, fleet, wheels}, ofRaces(fleetRaces.compareLoads)},
		{"copy", []need{checkout, peers, fleet}, ofRaces(fleetRaces.compareCopies)},
		{"verify", []need{checkout, peers, fleet, wheels}, ofRaces(fleetRaces.compareVerifications)},
		{"growth", []need{checkout, wheels}, (*workspace).measureGrowth},
	}
}

// ofBuilds makes a method of wheelBuilds the work of a part, ofRaces one of fleetRaces.
func ofBuilds(do func(wheelBuilds, context.Context) (string, error)) func(*workspace, context.Context) (string, error) {
	return func(ws *workspace, ctx context.Context) (string, error) { return do(wheelBuilds{ws}, ctx) }
}

func ofRaces(do func(fleetRaces, context.Context) (string, error)) func(*workspace, context.Context) (string, error) {
	return func(ws *workspace, ctx context.Context) (string, error) { return do(fleetRaces{ws}, ctx) }
}

func getForBuilds(get func(wheelBuilds, context.Context, ui.Step) (string, error)) func(*workspace, context.Context, ui.Step) (string, error) {
	return func(ws *workspace, ctx context.Context, step ui.Step) (string, error) {
		return get(wheelBuilds{ws}, ctx, step)
	}
}

// chooseParts returns the named parts in the order of the list, or all.
func chooseParts(names []string) ([]part, error) {
	all := allParts()
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

// resultsDocument holds the last results of each part.
func resultsDocument() ledger.Document {
	d := ledger.Document{
		File:  "docs/benchmarks.md",
		Begin: "<!-- results of make bench: written by ci/bench -->\n",
		End:   "<!-- end -->\n",
	}
	for _, p := range allParts() {
		d.Order = append(d.Order, p.name)
	}
	return d
}

// runPart prepares the needs of a part, measures, and writes the result down.
func (ws *workspace) runPart(ctx context.Context, p part) error {
	doc := resultsDocument()
	if err := doc.Check(); err != nil {
		return err
	}
	origin, err := ledger.Now(ctx, doc.File)
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, n := range p.needs {
		if err := ws.getNeed(ctx, n); err != nil {
			return err
		}
	}
	found, err := p.do(ws, ctx)
	if err != nil {
		return err
	}
	origin.Close(ctx)
	section := fmt.Sprintf("### %s\n\n%s; %s.\n\n%s", p.name, origin, ui.Duration(time.Since(begin)), found)
	if err := doc.Save(p.name, section); err != nil {
		return err
	}
	ws.ui.Note("part %s: done in %s, written to %s", p.name, ui.Duration(time.Since(begin)), doc.File)
	return nil
}

// getNeed prepares a need, unless an earlier part had it too.
func (ws *workspace) getNeed(ctx context.Context, n need) error {
	if slices.Contains(ws.got, n.title) {
		return nil
	}
	step := ws.ui.Step(n.title)
	detail, err := n.get(ws, ctx, step)
	if err != nil {
		step.End(ui.Failed, "")
		return fmt.Errorf("%s: %w", n.title, err)
	}
	step.End(ui.Done, detail)
	ws.got = append(ws.got, n.title)
	return nil
}
