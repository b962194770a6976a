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

// Room is a place that a build writes to, and how much.
type Room struct {
	What string // for people: "the engine's cache"
	Path string
	// Need is without what the build cannot end.
	Need int64
	// Most is what it takes where nothing is cached, if that is more.
	Most int64
	// Free asks how much is free; nil asks the file system of Path.
	Free func() (int64, error)
}

// What a build takes, measured with DeepSpeed 0.19.8, rounded up.
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

// firstTime is what the images of a toolchain take where nothing of them is
// there: torch with its CUDA libraries lies in a layer and in uv's cache, each
// some 5 GB, CUDA 13's compiler and headers add 3, nvcc 12.4 a little, Debian's whole
// toolkit 5 with the packages it comes in.
func firstTime(road compat.Road) int64 {
	switch road {
	case compat.CUDA13:
		return 16 * gib
	case compat.Debian12:
		return 18 * gib
	case compat.Nvcc12:
		return 14 * gib
	}
	return 12 * gib
}

// EngineRoom is what a plan takes of an engine's cache that lies at path.
func EngineRoom(p *Plan, path string) Room {
	return Room{What: "the engine's cache", Path: path, Need: needStep, Most: firstTime(p.Toolchain.Road)}
}

// Roomer is a Builder that says what a plan takes where it builds.
type Roomer interface {
	Rooms(context.Context, *Plan) []Room
}

// OwnRooms are what a build takes of this machine, whatever the builder.
func OwnRooms(out, store string) []Room {
	return []Room{
		{What: "the temporary directory", Path: os.TempDir(), Need: needTemporary},
		{What: "the output directory", Path: out, Need: needOutput},
		{What: "the store", Path: store, Need: needOutput},
	}
}

// SpaceError is a disk with too little room for a build.
type SpaceError struct {
	Short []Shortage
}

// Shortage is one place that is too small.
type Shortage struct {
	Room
	Free int64
}

func (e *SpaceError) Error() string {
	var lines []string
	for _, s := range e.Short {
		lines = append(lines, fmt.Sprintf("%s %s has %s free, a build needs %s", s.What, s.Path, ui.Size(s.Free), ui.Size(s.Need)))
	}
	return strings.Join(lines, "\n")
}

// Hint says what makes room.
func (e *SpaceError) Hint() string {
	var tips []string
	for _, s := range e.Short {
		switch s.What {
		case "the temporary directory":
			tips = append(tips, "TMPDIR names another temporary directory")
		case "the output directory":
			tips = append(tips, "-o another directory")
		default:
			tips = append(tips, "remove what is not needed in "+s.Path)
		}
	}
	return strings.Join(tips, "; ")
}

// CheckSpace refuses a build that cannot end for want of room, naming every such
// place, and warns where there is too little for one with nothing cached. Places
// on one file system share what is free there.
func CheckSpace(rooms []Room, rep ui.Reporter) error {
	var bad SpaceError
	taken := map[string]int64{} // by file system
	for _, r := range rooms {
		free, device, err := r.free()
		if err != nil {
			rep.Warn("how much is free in %s %s is not known: %v", r.What, r.Path, err)
			continue
		}
		left := free - taken[device]
		taken[device] += r.Need
		switch {
		case left < r.Need:
			bad.Short = append(bad.Short, Shortage{r, max(left, 0)})
		case left < r.Most:
			rep.Warn("%s %s has %s free: enough where the toolchain is there already, but made for the first time it takes up to %s",
				r.What, r.Path, ui.Size(left), ui.Size(r.Most))
		}
	}
	if len(bad.Short) > 0 {
		return &bad
	}
	return nil
}

// free is how much there is, and on which file system.
func (r Room) free() (bytes int64, device string, err error) {
	if r.Free != nil {
		bytes, err = r.Free()
		return bytes, "", err
	}
	path, err := existing(r.Path)
	if err != nil {
		return 0, "", err
	}
	return freeAt(path)
}

// existing is path, or the nearest directory above it that is there already.
func existing(path string) (string, error) {
	path, err := filepath.Abs(path)
	for err == nil {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path, nil
		}
		path = filepath.Dir(path)
	}
	return "", err
}
