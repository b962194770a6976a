package daggerbuilder

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/pipeline"
)

// DiskRequirements returns the disk space that a plan needs in the engine. If the engine is
// dsbuild's own, it reads the free space from this machine's file system; otherwise it asks the
// engine, in a container.
func (b *Builder) DiskRequirements(ctx context.Context, p *pipeline.Plan) []pipeline.DiskRequirement {
	if socket, local := strings.CutPrefix(b.engine.Address, "unix://"); local {
		state := filepath.Join(filepath.Dir(filepath.Dir(socket)), "state")
		if _, err := os.Stat(state); err == nil && filepath.Base(socket) == "engine.sock" {
			return []pipeline.DiskRequirement{pipeline.EngineDiskRequirement(p, state)}
		}
	}
	room := pipeline.EngineDiskRequirement(p, "/")
	room.What = "the disk of the engine (" + b.engine.How + ")"
	room.Free = func() (int64, error) { return b.freeSpace(ctx, p) }
	return []pipeline.DiskRequirement{room}
}

// freeSpace returns the free space that df reports in a container of the plan's base.
func (b *Builder) freeSpace(ctx context.Context, p *pipeline.Plan) (int64, error) {
	now := b.root(p.Base).WithEnvVariable("NOW", rand.Text()) // a cached result would be out of date
	out, err := now.WithExec([]string{"df", "-Pk", "/"}).Stdout(ctx)
	if err != nil {
		return 0, err
	}
	return freeOf(out)
}

// freeOf reads the output of df -Pk.
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
