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
	tests string // what the names of its tests begin with
	needs []need // got in this order
}

// parts are all there are, in the order in which they run and are written down.
func parts() []part {
	return []part{{
		name:  "inside",
		about: "what is inside a wheel, against the tools of others",
		tests: "TestFullInside",
		needs: []need{
			{"tools: cuobjdump, auditwheel, twine", (*bench).tools},
			{"wheels of the package index", (*bench).wheels},
			{"a Dagger engine", (*bench).engine},
			{"a wheel of this checkout for A100", (*bench).wheel},
		},
	}, {
		name:  "toolchains",
		about: "any GPU, any toolchain: real builds on every road",
		tests: "TestFullToolchains",
		needs: []need{
			{"tools: cuobjdump", (*bench).tools},
			{"a Dagger engine", (*bench).engine},
		},
	}, {
		name:  "pairs",
		about: "every common torch and Python: twelve wheels, no newer libraries than RHEL 8 has",
		tests: "TestFullPairs",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}, {
		name:  "ops",
		about: "every op that can be built, each with its own archs",
		tests: "TestFullOps",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}, {
		name:  "host",
		about: "the host builder, not root, against the Dagger builder",
		tests: "TestFullHost",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}, {
		name:  "farm",
		about: "many wheels at once, on one engine and on two",
		tests: "TestFullFarm",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}, {
		name:  "docker",
		about: "the engine in Docker and in podman: the same wheel, pulled images, what goes wrong",
		tests: "TestFullDocker",
		needs: []need{
			{"a Dagger engine", (*bench).engine},
			{"a wheel of this checkout for A100", (*bench).wheel},
		},
	}, {
		name:  "launch",
		about: "what launch renders, run on a local Slurm with real torch and JAX",
		tests: "TestFullLaunch",
	}, {
		name:  "fleet",
		about: "real nodes of several kinds: asked, served, compared",
		tests: "TestFullFleet",
		needs: []need{{"a Dagger engine", (*bench).engine}},
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
		needs: []need{{"a Dagger engine", (*bench).engine}}, // for its bare Debian
	}, {
		name:  "nightly",
		about: "nights in a row on real builds: skipped, changed, killed and gone on with",
		tests: "TestFullNight",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}, {
		name:  "speed",
		about: "what is compiled the fast way, beside the slow one: symbols, numbers, bytes",
		tests: "TestFullSpeed",
		needs: []need{{"a Dagger engine", (*bench).engine}},
	}}
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
