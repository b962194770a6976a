package main

import (
	"context"

	"github.com/dsbuild/dsbuild/ci/parts"
)

// allParts are all there are, in the order in which they run and are written down. Each runs the
// tests whose names begin as it says.
func (b *bench) allParts() []parts.Part {
	var (
		tools  = parts.Need{Title: "tools: cuobjdump, auditwheel, twine", Get: b.installTools}
		wheels = parts.Need{Title: "wheels of the package index", Get: b.downloadWheels}
		engine = parts.Need{Title: "a Dagger engine", Get: b.startEngine}
		wheel  = parts.Need{Title: "a wheel of this checkout for A100", Get: b.buildWheel}
	)
	part := func(name, prefix, about string, needs ...parts.Need) parts.Part {
		return parts.Part{Name: name, About: about, Needs: needs, Do: func(ctx context.Context) (string, error) { return b.runTests(ctx, prefix) }}
	}
	return []parts.Part{
		part("inside", "TestFullInside", "what is inside a wheel, against the tools of others", tools, wheels, engine, wheel),
		part("toolchains", "TestFullToolchains", "any GPU, any toolchain: real builds on every road", tools, engine),
		part("pairs", "TestFullPairs", "every common torch and Python: twelve wheels, no newer libraries than RHEL 8 has, one run under glibc 2.27", engine),
		part("ops", "TestFullOps", "every op that can be built, each with its own archs", engine),
		part("host", "TestFullHost", "the host builder, not root, against the Dagger builder", engine),
		part("stable", "TestFullStable", "one wheel for several torches and Pythons, against one for a single torch"),
		part("farm", "TestFullFarm", "many wheels at once, on one engine and on two", engine),
		part("docker", "TestFullDocker", "the engine in Docker and in podman: the same wheel, pulled images, what goes wrong", engine, wheel),
		part("launch", "TestFullLaunch", "what launch renders, run on a local Slurm with real torch and JAX"),
		part("fleet", "TestFullFleet", "real nodes of several kinds: asked, served, compared", engine),
		part("faults", "TestFullFaults", "what goes wrong on the way to a node, at every moment"),
		part("slurm", "TestFullSlurm", "nodes reached by a real Slurm, without SSH"),
		part("check", "TestFullCheck", "a cluster with something wrong on it, by real SSH and a real Slurm"),
		part("job", "TestFullJob", "jobs started on real nodes by one command, and all that ends them"),
		part("release", "TestFullRelease", "what a release publishes, run where nothing is installed", engine), // for its bare Debian
		part("nightly", "TestFullNight", "nights in a row on real builds: skipped, changed, killed and gone on with", engine),
		part("lint", "TestFullLint", "the sources, by golangci-lint with all its rules"),
		part("speed", "TestFullSpeed", "what is compiled the fast way, beside the slow one: symbols, numbers, bytes", engine),
	}
}
