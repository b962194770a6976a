package main

import (
	"context"

	"github.com/dsbuild/dsbuild/ci/parts"
)

// allParts returns all parts, in the order in which they run and are written. Each runs the
// tests with its prefix.
func (b *bench) allParts() []parts.Part {
	var (
		tools  = parts.Need{Title: "tools: cuobjdump, auditwheel, twine, torch-abi-audit", Get: b.installTools}
		wheels = parts.Need{Title: "wheels of the package index", Get: b.downloadWheels}
		engine = parts.Need{Title: "a Dagger engine", Get: b.startEngine}
		wheel  = parts.Need{Title: "a wheel of this checkout for A100", Get: b.buildWheel}
	)
	part := func(name, prefix, about string, needs ...parts.Need) parts.Part {
		return parts.Part{Name: name, About: about, Needs: needs, Do: func(ctx context.Context) (string, error) { return b.runTests(ctx, prefix) }}
	}
	return []parts.Part{
		part("inside", "TestFullInside", "the contents of wheels, compared with other tools", tools, wheels, engine, wheel),
		part("toolchains", "TestFullToolchains", "any GPU, any toolchain: real builds with each", tools, engine),
		part("pairs", "TestFullPairs", "every common torch and Python: twelve wheels, no newer libraries than RHEL 8 has, one run under glibc 2.27", engine),
		part("ops", "TestFullOps", "every op that can be built, each with its own archs", engine),
		part("host", "TestFullHost", "the host builder without root, compared with the Dagger builder", engine),
		part("stable", "TestFullStable", "one wheel for several torches and Pythons, compared with one for a single torch", tools),
		part("abi", "TestFullABI", "every op that has the stable ABI, compared with its build for one torch, and loaded with others", tools),
		part("farm", "TestFullFarm", "many wheels at once, on one engine and on two", engine),
		part("docker", "TestFullDocker", "the engine in Docker and in podman: the same wheel, pulled images, failures", engine, wheel),
		part("launch", "TestFullLaunch", "the output of launch, run on a local Slurm with real torch and JAX"),
		part("fleet", "TestFullFleet", "real nodes of several kinds: probe, ship, compare", engine),
		part("env", "TestFullEnv", "whole environments: four bare nodes, real packages of the index, and dsbuild killed at thirty moments", engine, wheel),
		part("relay", "TestFullRelay", "nodes pass a file on, and everything that goes wrong on its way"),
		part("faults", "TestFullFaults", "failures on the way to a node, at every moment"),
		part("slurm", "TestFullSlurm", "nodes reached by a real Slurm, without SSH"),
		part("check", "TestFullCheck", "clusters with faults, by real SSH and a real Slurm"),
		part("job", "TestFullJob", "jobs started on real nodes by one command, and everything that ends them"),
		part("release", "TestFullRelease", "the files of a release, run in a system where nothing is installed", engine), // it needs the bare Debian of the engine
		part("nightly", "TestFullNight", "several nights with real builds: skipped, changed, killed and resumed", engine),
		part("publish", "TestFullPublish", "stock pip, uv and twine with what was published, and stock uv with variants"),
		part("lint", "TestFullLint", "the sources, by golangci-lint with all its rules"),
		part("fuzz", "TestFullFuzz", "every function that reads foreign input, fuzzed for a minute"),
		part("speed", "TestFullSpeed", "dsbuild's builds, compared with the stock recipe's: symbols, numbers, bytes; what a change compiles again", engine),
		part("image", "TestFullImage", "a wheel on an image of 1 GB in a registry, as a squashfs, and run by Docker", engine, wheel),
	}
}
