package daggerbuilder

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/pipeline"
)

// Rooms is what a plan takes of the engine's disk. That of an engine of
// dsbuild's own kind is looked at here; any other is asked, from a container.
func (b *Builder) Rooms(ctx context.Context, p *pipeline.Plan) []pipeline.Room {
	if socket, local := strings.CutPrefix(b.engine.Address, "unix://"); local {
		state := filepath.Join(filepath.Dir(filepath.Dir(socket)), "state")
		if _, err := os.Stat(state); err == nil && filepath.Base(socket) == "engine.sock" {
			return []pipeline.Room{pipeline.EngineRoom(p, state)}
		}
	}
	room := pipeline.EngineRoom(p, "/")
	room.What = "the disk of the engine (" + b.engine.How + ")"
	room.Free = func() (int64, error) { return b.free(ctx, p) }
	return []pipeline.Room{room}
}

// free is what df says in a container of the plan's base.
func (b *Builder) free(ctx context.Context, p *pipeline.Plan) (int64, error) {
	base := b.client.Container().From(p.Base.Ref)
	if p.Base.File != "" {
		base = b.client.Directory().WithNewFile("Dockerfile", dockerfiles.FromRootfs()).
			WithFile(dockerfiles.RootfsName, b.rootfs(p.Base)).DockerBuild()
	}
	now := base.WithEnvVariable("NOW", rand.Text()) // what is cached was true once
	out, err := now.WithExec([]string{"df", "-Pk", "/"}).Stdout(ctx)
	if err != nil {
		return 0, err
	}
	return freeOf(out)
}

// freeOf reads what df -Pk says.
func freeOf(df string) (int64, error) {
	lines := strings.Split(strings.TrimSpace(df), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(lines) < 2 || len(fields) < 4 {
		return 0, fmt.Errorf("df said %q", df)
	}
	kib, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("df said %q", df)
	}
	return kib << 10, nil
}
