package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// DiskRequirement is a place that a build writes to, and the space it needs there.
type DiskRequirement struct {
	What string // for people: "the engine's cache"
	Path string
	// Need is the least space with which the build can end.
	Need int64
	// Most is the space with nothing cached, if that is more.
	Most int64
	// Free returns the free space; nil reads it from the file system of Path.
	Free func() (int64, error)
}

// Space of a build, measured with DeepSpeed 0.19.8, rounded up.
const (
	mib = 1 << 20
	gib = 1 << 30

	// A toolchain whose image is there already: the compiled objects and the
	// environment of the smoke test.
	needStep = 1 * gib
	// A wheel of all ops with debug information has 0.2 GiB; it lies in the
	// temporary directory as strip and pack leave it, in -o and in the store.
	needWheel     = 200 * mib
	needTemporary = 3 * needWheel
	needOutput    = 50 * mib
)

// firstTime returns the space that the images of a toolchain take if none of their layers is
// there. torch with its CUDA libraries lies in a layer and in uv's cache, each some 5 GB. CUDA
// 13's compiler and headers add 3, nvcc 12.4 a little, and Debian's whole toolkit 5 with the
// packages it comes in.
func firstTime(source compat.CUDASource) int64 {
	switch source {
	case compat.CUDA13:
		return 16 * gib
	case compat.Debian12:
		return 18 * gib
	case compat.Nvcc12:
		return 14 * gib
	}
	return 12 * gib
}

// EngineDiskRequirement returns the space that a plan needs in an engine's cache at path.
func EngineDiskRequirement(p *Plan, path string) DiskRequirement {
	return DiskRequirement{What: "the engine's cache", Path: path, Need: needStep, Most: firstTime(p.Toolchain.CUDASource)}
}

// DiskRequirer is a Builder that knows how much space a plan needs on its disks.
type DiskRequirer interface {
	DiskRequirements(context.Context, *Plan) []DiskRequirement
}

// LocalDiskRequirements returns the space that a build needs on this machine, for any builder.
func LocalDiskRequirements(out, store string) []DiskRequirement {
	return []DiskRequirement{
		{What: "the temporary directory", Path: os.TempDir(), Need: needTemporary},
		{What: "the output directory", Path: out, Need: needOutput},
		{What: "the store", Path: store, Need: needOutput},
	}
}

// SpaceError reports disks with too little space for a build.
type SpaceError struct {
	Short []Shortage
}

// Shortage is one place that is too small.
type Shortage struct {
	DiskRequirement
	Free int64
}

func (e *SpaceError) Error() string {
	var lines []string
	for _, s := range e.Short {
		lines = append(lines, fmt.Sprintf("%s %s has %s free, a build needs %s", s.What, s.Path, ui.Size(s.Free), ui.Size(s.Need)))
	}
	return strings.Join(lines, "\n")
}

// Hint suggests how to free space.
func (e *SpaceError) Hint() string {
	var tips []string
	for _, s := range e.Short {
		switch s.What {
		case "the temporary directory":
			tips = append(tips, "TMPDIR names another temporary directory")
		case "the output directory":
			tips = append(tips, "-o another directory")
		default:
			tips = append(tips, "remove unneeded files in "+s.Path)
		}
	}
	return strings.Join(tips, "; ")
}

// CheckSpace refuses a build for which disks have too little space, and names all of them.
// It warns about disks with too little space for a build with nothing cached. Places on
// one file system share its free space.
func CheckSpace(rooms []DiskRequirement, rep ui.Reporter) error {
	var bad SpaceError
	taken := map[string]int64{} // by file system
	for _, r := range rooms {
		free, device, err := r.freeSpace()
		if err != nil {
			rep.Warn("dsbuild does not know the free space in %s %s: %v", r.What, r.Path, err)
			continue
		}
		left := free - taken[device]
		taken[device] += r.Need
		switch {
		case left < r.Need:
			bad.Short = append(bad.Short, Shortage{r, max(left, 0)})
		case left < r.Most:
			rep.Warn("%s %s has %s free: enough if the toolchain exists already, but a new toolchain takes up to %s",
				r.What, r.Path, ui.Size(left), ui.Size(r.Most))
		}
	}
	if len(bad.Short) > 0 {
		return &bad
	}
	return nil
}

// freeSpace returns the free space, and identifies its file system.
func (r DiskRequirement) freeSpace() (bytes int64, device string, err error) {
	if r.Free != nil {
		bytes, err = r.Free()
		return bytes, "", err
	}
	path, err := existingParent(r.Path)
	if err != nil {
		return 0, "", err
	}
	return freeAt(path)
}

// existingParent returns path, or the nearest directory above it that exists.
func existingParent(path string) (string, error) {
	path, err := filepath.Abs(path)
	for err == nil {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path, nil
		}
		path = filepath.Dir(path)
	}
	return "", err
}
