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

// systemPath is where the images look for programs: what a base adds to its PATH
// is not used by a build, and must not be found.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Look tells what a base holds, by running a script in it that changes nothing.
// One that lacks what a build needs, and has no way to install it, is refused.
func (b *Builder) Look(ctx context.Context, base pipeline.Base) (compat.Ground, error) {
	script, err := pipeline.LookText()
	if err != nil {
		return compat.Ground{}, err
	}
	text, err := b.root(base).WithEnvVariable("PATH", systemPath).
		WithNewFile("/dsbuild/"+pipeline.LookScript, script).
		WithExec([]string{"sh", "/dsbuild/" + pipeline.LookScript}).Stdout(ctx)
	if ctx.Err() != nil {
		return compat.Ground{}, context.Cause(ctx)
	}
	if err != nil {
		return compat.Ground{}, b.unfetched(base, err)
	}
	ground, err := pipeline.ParseGround(text)
	if err == nil && !slices.Contains(ground.Tools, "apt-get") {
		err = &pipeline.BaseError{Arg: base.Ref, Err: errors.New("it has no apt-get, with which dsbuild installs compilers")}
	}
	return ground.Ground, err
}

// root is a container that holds a base and nothing else.
func (b *Builder) root(base pipeline.Base) *dagger.Container {
	if base.File == "" {
		return b.client.Container().From(base.Ref)
	}
	return b.client.Directory().WithNewFile("Dockerfile", dockerfiles.FromRootfs()).
		WithFile(dockerfiles.RootfsName, b.rootfs(base)).DockerBuild()
}
