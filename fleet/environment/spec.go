package environment

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/wheel"
)

// Position is a place in environment.yaml.
type Position = diagnostic.Position

// Spec is the content of an environment.yaml.
type Spec struct {
	Name        string
	Python      string // X.Y, of every node
	Interpreter string // the program on nodes; "": pythonX.Y
	Archives    []Text // of a relocatable Python that comes along, one for each machine; none: Interpreter
	Folder      string // on nodes, absolute; "": the user's ~/.local/share
	Build       *Build // the DeepSpeed to build; nil: its wheel is in Wheels, or there is none
	Torch       string // the version, such as 2.15.0 or 2.15.0+cu132; "": none
	Wheels      []Text // paths of local wheels: DeepSpeed's and the companions, of a package one for each kind of node
	Wanted      []Text // requirements (PEP 508)
	Kinds       []Kind // kinds of nodes; none: the inventory's nodes tell

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

// Kind is a kind of node. One set of files serves all nodes of a kind.
type Kind struct {
	Machine string `json:"machine"` // x86_64, aarch64
	Glibc   string `json:"glibc"`   // X.Y, the oldest of its nodes
}

func (k Kind) String() string { return k.Machine + " with glibc " + k.Glibc }

// serves reports whether a node is of the kind: its machine is the same and its glibc is not older.
func (k Kind) serves(f node.Facts) bool {
	return f.Platform == "linux_"+k.Machine && f.Glibc != "" && wheel.CompareVersions(f.Glibc, k.Glibc) >= 0
}

// KindsOf returns the fewest kinds that serve all nodes: for each machine the oldest glibc.
// Nodes that are no Linux with glibc are left out.
func KindsOf(nodes []node.Facts) []Kind {
	var kinds []Kind
	for _, f := range nodes {
		machine, linux := strings.CutPrefix(f.Platform, "linux_")
		if !linux || f.Glibc == "" {
			continue
		}
		at := slices.IndexFunc(kinds, func(k Kind) bool { return k.Machine == machine })
		k := Kind{machine, f.Glibc}
		switch {
		case at < 0:
			kinds = append(kinds, k)
		case !kinds[at].serves(f):
			kinds[at] = k
		}
	}
	sortKinds(kinds)
	return kinds
}

func sortKinds(kinds []Kind) {
	slices.SortFunc(kinds, func(a, b Kind) int {
		return cmp.Or(strings.Compare(a.Machine, b.Machine), wheel.CompareVersions(a.Glibc, b.Glibc))
	})
}
