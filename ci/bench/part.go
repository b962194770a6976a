//go:build linux

package main

import (
	"fmt"

	"github.com/dsbuild/dsbuild/ci/parts"
)

// newProgram describes the command: the comparisons, in the order of the runs and of the
// results.
func (ws *workspace) newProgram() parts.Program {
	builds, races := wheelBuilds{ws}, fleetRaces{ws}
	var (
		checkout  = parts.Need{Title: "dsbuild of this checkout", Get: ws.findProgram}
		peers     = parts.Need{Title: "the other tools", Get: ws.installTools}
		fleet     = parts.Need{Title: fmt.Sprintf("%d nodes", fleetSize), Get: ws.startNodes}
		wheels    = parts.Need{Title: "two wheels of DeepSpeed", Get: ws.buildWheels}
		toolchain = parts.Need{Title: "a toolchain", Get: builds.makeToolchain}
		packages  = parts.Need{Title: "the packages that ops need on this system", Get: builds.installOpPackages}
	)
	return parts.Program{
		Name: "bench", Dir: ws.dir, Begin: ws.begin,
		Document: parts.Document{
			File:  "docs/benchmarks.md",
			Begin: "<!-- results of make bench: written by ci/bench -->\n",
			End:   "<!-- end -->\n",
		},
		Parts: []parts.Part{
			{Name: "build", About: "a wheel, by the recipe of DeepSpeed's guides and by dsbuild", Needs: []parts.Need{checkout, toolchain}, Do: builds.compareBuilds},
			{Name: "ops", About: "a wheel of all ops", Needs: []parts.Need{checkout, toolchain, packages}, Do: builds.buildAllOps},
			{Name: "deploy", About: "a wheel to many nodes", Needs: []parts.Need{checkout, peers, fleet, wheels}, Do: races.compareDeploys},
			{Name: "load", About: "a wheel to nodes that load its ops", Needs: []parts.Need{checkout, peers, fleet, wheels}, Do: races.compareLoads},
			{Name: "copy", About: "a large file to nodes", Needs: []parts.Need{checkout, peers, fleet}, Do: races.compareCopies},
			{Name: "verify", About: "the DeepSpeed version of many nodes", Needs: []parts.Need{checkout, peers, fleet, wheels}, Do: races.compareVerifications},
			{Name: "growth", About: "the driver's cost for 1 to 1,000 nodes", Needs: []parts.Need{checkout, wheels}, Do: ws.measureGrowth},
			{Name: "relay", About: "a large file to 1 to 64 nodes with slow links, which pass it on", Needs: []parts.Need{checkout, peers}, Do: ws.measureRelay},
		},
	}
}
