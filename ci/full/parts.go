package main

import (
	"fmt"
	"slices"
	"strings"
)

// part is a group of long tests that runs by itself, within an hour.
type part struct {
	name  string
	about string
	tests string // the prefix of the names of its tests
	needs []need // got in this order
}

// allParts are all there are, in the order in which they run and are written down.
func allParts() []part { //nolint:revive // a table, however long
	return []part{{
		name:  "inside",
		about: "what is inside a wheel, against the tools of others",
		tests: "TestFullInside",
		needs: []need{
			{"tools: cuobjdump, auditwheel, twine", (*bench).installTools},
			{"wheels of the package index", (*bench).downloadWheels},
			{"a Dagger engine", (*bench).startEngine},
			{"a wheel of this checkout for A100", (*bench).buildWheel},
		},
	}, {
		name:  "toolchains",
		about: "any GPU, any toolchain: real builds on every road",
		tests: "TestFullToolchains",
		needs: []need{
			{"tools: cuobjdump", (*bench).installTools},
			{"a Dagger engine", (*bench).startEngine},
		},
	}, {
		name:  "pairs",
		about: "every common torch and Python: twelve wheels, no newer libraries than RHEL 8 has",
		tests: "TestFullPairs",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "ops",
		about: "every op that can be built, each with its own archs",
		tests: "TestFullOps",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "host",
		about: "the host builder, not root, against the Dagger builder",
		tests: "TestFullHost",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "farm",
		about: "many wheels at once, on one engine and on two",
		tests: "TestFullFarm",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "docker",
		about: "the engine in Docker and in podman: the same wheel, pulled images, what goes wrong",
		tests: "TestFullDocker",
		needs: []need{
			{"a Dagger engine", (*bench).startEngine},
			{"a wheel of this checkout for A100", (*bench).buildWheel},
		},
	}, {
		name:  "launch",
		about: "what launch renders, run on a local Slurm with real torch and JAX",
		tests: "TestFullLaunch",
	}, {
		name:  "fleet",
		about: "real nodes of several kinds: asked, served, compared",
		tests: "TestFullFleet",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "faults",
		about: "what goes wrong on the way to a node, at every moment",
		tests: "TestFullFaults",
	}, {
		name:  "slurm",
		about: "nodes reached by a real Slurm, without SSH",
		tests: "TestFullSlurm",
	}, {
		name:  "check",
		about: "a cluster with something wrong on it, by real SSH and a real Slurm",
		tests: "TestFullCheck",
	}, {
		name:  "job",
		about: "jobs started on real nodes by one command, and all that ends them",
		tests: "TestFullJob",
	}, {
		name:  "release",
		about: "what a release publishes, run where nothing is installed",
		tests: "TestFullRelease",
		needs: []need{{"a Dagger engine", (*bench).startEngine}}, // for its bare Debian
	}, {
		name:  "nightly",
		about: "nights in a row on real builds: skipped, changed, killed and gone on with",
		tests: "TestFullNight",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}, {
		name:  "lint",
		about: "the sources, by golangci-lint with all its rules",
		tests: "TestFullLint",
	}, {
		name:  "speed",
		about: "what is compiled the fast way, beside the slow one: symbols, numbers, bytes",
		tests: "TestFullSpeed",
		needs: []need{{"a Dagger engine", (*bench).startEngine}},
	}}
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
