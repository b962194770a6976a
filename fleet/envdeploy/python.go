package envdeploy

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/private"
	"github.com/dsbuild/dsbuild/internal/remote"
)

var (
	//go:embed find.sh
	findShell string
	//go:embed unpack.sh
	unpackShell string
)

var unpackProgram = node.NewProgram("unpack_python")

// pythonRef names a lock's Python to the programs on nodes.
type pythonRef struct {
	SHA256  string `json:"sha256"` // of its archive
	Tree    string `json:"tree"`
	Program string `json:"program"` // its path below the folder of these Pythons
}

// refOf returns the reference to the interpreter of a set, or nil if the set has none.
func refOf(s *environment.Set) *pythonRef {
	if s == nil || s.Python == nil {
		return nil
	}
	return &pythonRef{s.Python.SHA256, s.Python.Tree, path.Join(s.Python.SHA256, "tree", s.Python.Program)}
}

// nodePython is the Python that runs dsbuild's programs on a node.
type nodePython struct {
	home     string   // the folder of all environments
	there    []string // programs of Pythons that were sent earlier (pythonRef.Program)
	use      string   // the program that runs, or ""
	writable bool
	free     int64
}

// place is the path of a lock's Python, or of a file in its folder.
func (p *nodePython) place(inner string) string {
	return path.Join(p.home, ".dsbuild", "pythons", inner)
}

// has reports whether the node has the Python already.
func (p *nodePython) has(ref *pythonRef) bool {
	return ref != nil && slices.Contains(p.there, ref.Program)
}

// looked is the state of a node on which no Python can look at the environments: a node without any
// Python has none of ours.
func (p *nodePython) looked(name string) *EnvironmentState {
	return &EnvironmentState{Free: p.free, Writable: p.writable, Place: path.Join(p.home, name)}
}

// makeShell makes the folders for a Python below the folder of environments, $1, and says whether another user
// could change them. $2 is the name of the last one.
const makeShell = `umask 022 && mkdir -p "$1/.dsbuild/pythons/$2" || exit
danger=$(unsafe "${1%/dsbuild/env}" dsbuild dsbuild/env dsbuild/env/.dsbuild dsbuild/env/.dsbuild/pythons \
	"dsbuild/env/.dsbuild/pythons/$2") || danger="cannot check who can change $1"
[ -z "$danger" ] || printf '\n` + sayMark + `unsafe %s\n' "$danger"`

const sayMark = "@@dsbuild-python "

// findPython looks for a Python on the node with nothing but a shell.
func (n *nodeState) findPython(ctx context.Context) (*nodePython, error) {
	argv := []string{"sh", "-c", private.Script() + findShell, "sh", n.run.opt.Lock.Folder}
	for i := range n.run.opt.Lock.Sets {
		if ref := refOf(&n.run.opt.Lock.Sets[i]); ref != nil {
			argv = append(argv, ref.Program)
		}
	}
	out, err := remote.RunForAnswer(ctx, n.Runner, remote.Command{Argv: argv})
	if err != nil {
		return nil, err
	}
	p := &nodePython{}
	for line := range strings.SplitSeq(out, "\n") {
		said, ok := strings.CutPrefix(line, sayMark)
		if !ok {
			continue
		}
		switch key, value, _ := strings.Cut(said, " "); key {
		case "home":
			p.home = value
		case "unsafe":
			return nil, n.refuseUnsafe(value)
		case "there":
			p.there = append(p.there, value)
		case "use":
			p.use = value
		case "writable":
			p.writable = true
		case "free":
			blocks, _ := strconv.ParseInt(value, 10, 64) // without df there seems to be no room
			p.free = blocks << 10
		}
	}
	if !path.IsAbs(p.home) {
		return nil, errors.New("no path of the environments from the node")
	}
	return p, nil
}

// interpreter is the Python that runs dsbuild's programs on the node: the environment's Python once it exists.
func (n *nodeState) interpreter() string {
	switch ref := refOf(n.plan.Set); {
	case n.brought == nil:
		return n.run.opt.Lock.Program()
	case n.brought.has(ref):
		return n.brought.place(ref.Program)
	}
	return n.brought.use
}

// bringPython sends the archive of the Python and unpacks it into a new folder, which appears atomically.
func (n *nodeState) bringPython(ctx context.Context, _ bool) error {
	ref := refOf(n.plan.Set)
	work := n.brought.place("run-" + n.run.Fleet.Run + "-" + change.FileLabel(n.Host.Name))
	said, err := remote.RunForAnswer(ctx, n.Runner, remote.Command{
		Argv: []string{"sh", "-c", private.Script() + makeShell, "sh", n.brought.home, path.Base(work)},
	})
	if err != nil {
		return fault.WithHint(err, "make %s writable for this user, or %s",
			node.QuotePath(path.Dir(work)), fault.SetFolder("another directory"))
	}
	if _, why, ok := strings.Cut(said, sayMark+"unsafe "); ok { // another user has made them first
		return n.refuseUnsafe(why)
	}
	if err := n.unpackPython(ctx, work, ref); err != nil {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), change.UndoLimit)
		defer cancel()
		n.Runner.Run(limited, remote.Command{Argv: []string{"rm", "-rf", work}}) //nolint:errcheck // the next run removes it
		return err
	}
	n.brought.there = append(n.brought.there, ref.Program)
	return nil
}

// unpackPython fills the folder work and renames it.
func (n *nodeState) unpackPython(ctx context.Context, work string, ref *pythonRef) error {
	python := n.plan.Set.Python
	archive := path.Join(work, "python.tar.gz")
	local := n.run.local(python.SHA256, python.Size)
	if err := n.run.Send(ctx, n.Node, local, n.interpreter(), archive); err != nil {
		return err
	}
	said := remote.NewAnswer(func() {}) // tar may have much to say of files that it unpacks
	err := n.Runner.Run(ctx, remote.Command{
		Argv:   []string{"sh", "-c", unpackShell, "sh", archive, path.Join(work, "tree")},
		Stderr: said,
	})
	if err != nil {
		err = fmt.Errorf("cannot unpack %s: %w (%w)", python.File, node.NewNodeError(said.String()), err)
		return fault.WithHint(err, "check for tar, gzip and free disk space on the node")
	}
	var got struct {
		Ready bool `json:"ready"`
	}
	script := node.Script{
		Python: path.Join(work, "tree", python.Program), Program: unpackProgram,
		Request: map[string]string{"work": work, "place": n.brought.place(ref.SHA256), "tree": ref.Tree},
	}
	runner := connect.WithEnv(n.Runner, map[string]string{"PYTHONDONTWRITEBYTECODE": "1"})
	err = script.Run(ctx, runner, func(m json.RawMessage) error { return node.Decode(m, &got) })
	switch {
	case err != nil:
		err = fmt.Errorf("cannot run the Python of %s: %w", python.File, err)
		return fault.WithHint(err, "use an archive for this node type, or %s", node.HintFor("noexec", "", node.Facts{}))
	case !got.Ready:
		return errors.New("unpacked files of " + python.File + " do not match the lockfile")
	}
	return nil
}
