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

// Spec is the content of an environment.yaml.
type Spec struct {
	Name        string
	Python      string     // X.Y, of every node
	Interpreter string     // the program on nodes; "": pythonX.Y
	Archives    []Text     // of a relocatable Python that comes along, one for each machine; none: Interpreter
	Folder      string     // on nodes, absolute; "": the user's ~/.local/share
	Build       *Build     // the DeepSpeed to build; nil: its wheel is in Wheels, or there is none
	Torch       string     // the version, such as 2.15.0 or 2.15.0+cu132; "": none
	Wheels      []Text     // paths of local wheels: DeepSpeed's and the companions, of a package one for each kind of node
	Wanted      []Text     // requirements (PEP 508)
	Platforms   []Platform // kinds of nodes; none: the inventory's nodes tell

	Overrides []string // requirements that replace those of all packages; a file has none
}

// Program is the interpreter on nodes: the one in the file, or pythonX.Y. If dsbuild sends one, it uses any
// Python of the nodes until then.
func (s *Spec) Program() string {
	if len(s.Archives) > 0 {
		return "python3"
	}
	return cmp.Or(s.Interpreter, "python"+s.Python)
}

// Build says which DeepSpeed to build. Its fields are flags of dsbuild ship; an empty one was not
// given.
type Build struct {
	Version string // as --deepspeed takes it
	Ops     []string
	Archs   []string
	CPU     string
	At      Position
}

// Text is a value with its place in the file.
type Text struct {
	Text string
	At   Position
}

// Platform is a kind of node: one set of files serves all of them.
type Platform struct {
	Machine string `json:"machine"` // x86_64, aarch64
	Glibc   string `json:"glibc"`   // X.Y, the oldest of its nodes
}

func (p Platform) String() string { return p.Machine + " with glibc " + p.Glibc }

// serves reports whether a node is of the kind: its machine is the same and its glibc is not older.
func (p Platform) serves(f node.Facts) bool {
	return f.Platform == "linux_"+p.Machine && f.Glibc != "" && wheel.CompareVersions(f.Glibc, p.Glibc) >= 0
}

// PlatformsOf returns the fewest platforms that serve all nodes: for each machine the oldest glibc.
// Nodes that are no Linux with glibc are left out.
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
