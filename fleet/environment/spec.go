package environment

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/wheel"
)

// Position is a place in environment.yaml.
type Position = lineerr.Position

// Spec is the content of an environment file.
type Spec struct {
	Name        string
	Python      string     // X.Y
	Interpreter string     // Python on nodes; defaults to pythonX.Y
	Archives    []Text     // relocatable Pythons to send, one per CPU architecture; replace Interpreter
	Folder      string     // absolute directory on nodes; defaults to the user's ~/.local/share
	Build       *Build     // DeepSpeed to build, if it is not in Wheels
	Torch       string     // version such as 2.15.0 or 2.15.0+cu132; optional
	Wheels      []Text     // paths of local wheels: DeepSpeed and companions, one per package and node type
	Wanted      []Text     // requirements (PEP 508)
	Platforms   []Platform // node types; defaults to the inventory's

	Overrides []string // requirements that override all packages' requirements; not in files
}

// Program returns the interpreter on nodes: the one in the file, or pythonX.Y. With Archives, any
// Python on a node is used until the archive is unpacked.
func (s *Spec) Program() string {
	if len(s.Archives) > 0 {
		return "python3"
	}
	return cmp.Or(s.Interpreter, "python"+s.Python)
}

// Build describes the DeepSpeed to build, with optional flags of dsbuild ship.
type Build struct {
	Version string // a value of --deepspeed
	Ops     []string
	Archs   []string
	CPU     string
	At      Position
}

// Text is a value with its position in the file.
type Text struct {
	Text string
	At   Position
}

// Platform is a node type: one set of files is installed on all its nodes.
type Platform struct {
	Machine string `json:"machine"` // x86_64, aarch64
	Glibc   string `json:"glibc"`   // X.Y, the oldest of its nodes
}

func (p Platform) String() string { return p.Machine + " with glibc " + p.Glibc }

// serves reports whether a node is of type p: it has the same machine, and its glibc is not older.
func (p Platform) serves(f node.Facts) bool {
	return f.Platform == "linux_"+p.Machine && f.Glibc != "" && wheel.CompareVersions(f.Glibc, p.Glibc) >= 0
}

// PlatformsOf returns the smallest set of platforms that covers all nodes: per CPU architecture, the oldest
// glibc. Nodes without glibc are ignored.
func PlatformsOf(nodes []node.Facts) []Platform {
	var platforms []Platform
	for _, f := range nodes {
		machine, linux := strings.CutPrefix(f.Platform, "linux_")
		if !linux || f.Glibc == "" {
			continue
		}
		at := slices.IndexFunc(platforms, func(p Platform) bool { return p.Machine == machine })
		p := Platform{machine, f.Glibc}
		switch {
		case at < 0:
			platforms = append(platforms, p)
		case !platforms[at].serves(f):
			platforms[at] = p
		}
	}
	sortPlatforms(platforms)
	return platforms
}

func sortPlatforms(platforms []Platform) {
	slices.SortFunc(platforms, func(a, b Platform) int {
		return cmp.Or(strings.Compare(a.Machine, b.Machine), wheel.CompareVersions(a.Glibc, b.Glibc))
	})
}
