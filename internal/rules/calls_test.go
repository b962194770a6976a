package rules

import (
	"fmt"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/callgraph"
)

// TestWays follows the calls of each command that reaches nodes, down to the first call into a connection. It lists the files of all
// functions on such ways, each with its depth: how many files a reader opens on the shortest way from the command's file to this
// one. A return to a file that the way has left counts again, so each call back up makes a way deeper.
//
// Apply leads through all steps of all actions, each in a file of its own: its number of files grows with the steps, its depth does not.
//
// Not counted, although ways lead through them: internal, which calls only what a caller gives it (fanout), and fleet/relay, which is
// to its caller the same as a direct upload.
func TestWays(t *testing.T) {
	p := load(t)
	for _, c := range []struct {
		name, command string
		without       []string // the command's other half, and what it does on this machine
		files, depth  int      // at most
	}{
		{"deploy: Survey", "runDeploy", []string{"(*fleet/deploy.Deploy).Apply"}, 8, 8},
		{"deploy: Apply", "runDeploy", []string{"(*fleet/deploy.Deploy).Survey"}, 23, 11},
		{"env deploy: Survey", "runEnvDeploy", []string{"(*fleet/envdeploy.Deploy).Apply"}, 10, 8},
		{"env deploy: Apply", "runEnvDeploy", []string{"(*fleet/envdeploy.Deploy).Survey"}, 23, 11},
		{"verify", "runVerify", nil, 8, 6},
		{"ship: Survey", "runShip", []string{"(*fleet/ship.Ship).Run", "pipeline.ReadEnvironment", "cmd/dsbuild.runShipEnv"}, 8, 8},
		{"ship: Run", "runShip", []string{"(*fleet/ship.Ship).Survey", "pipeline.ReadEnvironment", "cmd/dsbuild.runShipEnv"}, 26, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			depths := p.depths(p.callsFrom(t, "cmd/dsbuild."+c.command, c.without...))
			deepest, list := 0, ""
			for _, file := range slices.Sorted(maps.Keys(depths)) {
				deepest = max(deepest, depths[file])
				list += fmt.Sprintf("\n%4d %s", depths[file], file)
			}
			t.Logf("%d files, the deepest at %d:%s", len(depths), deepest, list)
			if len(depths) > c.files || deepest > c.depth {
				t.Errorf("more than %d files, or one deeper than %d", c.files, c.depth)
			}
		})
	}
}

// depths returns the files on the ways from command to a connection, with their depths.
func (p *program) depths(command *callgraph.Node) map[string]int {
	type place struct {
		at   *callgraph.Node
		file string // the one that was opened last
	}
	depths, seen := map[string]int{}, map[place]bool{}
	level := []place{{command, p.file(command.Func)}}
	for depth := 1; len(level) > 0; depth++ {
		var next []place
		for i := 0; i < len(level); i++ {
			here := level[i]
			if seen[here] || isConnection(here.at) || callgraph.PathSearch(here.at, isConnection) == nil {
				continue
			}
			seen[here] = true
			if depths[here.file] == 0 {
				depths[here.file] = depth
			}
			for _, e := range here.at.Out {
				switch file := p.file(e.Callee.Func); {
				case file == "", file == here.file, strings.HasPrefix(file, "internal/"), strings.HasPrefix(file, "fleet/relay/"):
					level = append(level, place{e.Callee, here.file})
				default:
					next = append(next, place{e.Callee, file})
				}
			}
		}
		level = next
	}
	return depths
}

// isConnection reports whether a function speaks with a node: it is a method of a remote.Dialer, Runner or Conn, or gives an order
// to an agent, which another goroutine sends.
func isConnection(n *callgraph.Node) bool {
	params := n.Func.Signature.Params()
	if n.Func.Signature.Recv() == nil || params.Len() < 2 {
		return false
	}
	switch n.Func.Name() + "(" + strings.TrimPrefix(types.TypeString(params.At(1).Type(), nil), Module+"/") {
	case "Dial(internal/remote.Target", "Run(internal/remote.Command", "Put(internal/remote.Upload", "Ask(fleet/node/agent.Order":
		return true
	}
	return false
}

// TestControlRunsDown: package change calls no function of the packages above it. They give it values; the functions that they
// give it are the steps of a node, which package fleet calls. Three functions take one more: PutStep and TidyStep call it again after
// a lost connection, or only where it is needed, and Print for the cells of a table.
func TestControlRunsDown(t *testing.T) {
	p := load(t)
	for f, n := range p.calls.Nodes {
		if f == nil || path.Dir(p.file(f)) != "fleet/change" || slices.Contains([]string{"PutStep", "TidyStep", "Print"}, outermost(f).Name()) {
			continue
		}
		for _, e := range n.Out {
			callee := e.Callee
			if callee.Func.Synthetic != "" && len(callee.Out) == 1 { // a method as a value
				callee = callee.Out[0].Callee
			}
			switch path.Dir(p.file(callee.Func)) {
			case "fleet/deploy", "fleet/envdeploy", "fleet/ship", "cmd/dsbuild":
				t.Errorf("%s calls %s", f, callee.Func)
			}
		}
	}
}
