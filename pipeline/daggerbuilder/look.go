package daggerbuilder

import (
	"context"
	"errors"
	"slices"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/pipeline"
)

// systemPath is the program search path of the images. A build does not use the directories that
// a base adds to its PATH, so dsbuild must not find programs there.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Inspect describes the content of a base, by running a script in it that changes nothing. It
// rejects a base that lacks a requirement of the build and cannot install it.
func (b *Builder) Inspect(ctx context.Context, base pipeline.Base) (compat.BuildHost, error) {
	script, err := pipeline.InspectText()
	if err != nil {
		return compat.BuildHost{}, err
	}
	text, err := b.root(base).WithEnvVariable("PATH", systemPath).
		WithNewFile("/dsbuild/"+pipeline.InspectScript, script).
		WithExec([]string{"sh", "/dsbuild/" + pipeline.InspectScript}).Stdout(ctx)
	if ctx.Err() != nil {
		return compat.BuildHost{}, context.Cause(ctx)
	}
	if err != nil {
		return compat.BuildHost{}, b.fetchError(base, err)
	}
	host, err := pipeline.ParseBuildHost(text)
	if err == nil && !slices.Contains(host.Tools, "apt-get") {
		err = pipeline.BaseError(base.Ref, errors.New("no apt-get, which dsbuild needs to install compilers"))
	}
	return host.BuildHost, err
}

// root returns a container that holds a base and nothing else.
func (b *Builder) root(base pipeline.Base) *dagger.Container {
	if base.File == "" {
		return b.client.Container().From(base.Ref)
	}
	return b.client.Directory().WithNewFile("Dockerfile", dockerfiles.FromRootfs()).
		WithFile(dockerfiles.RootfsName, b.rootDirectory(base)).DockerBuild()
}
