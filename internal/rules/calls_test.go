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
	"golang.org/x/tools/go/ssa"
)

// TestWays follows the calls of each command that reaches nodes, down to the first call into a connection. It prints the way to the
// function that starts a program on a node: the one on which a reader opens the fewest files. A return to a file that the way has
// left counts again, so each call back up makes a way longer. It also lists the files of all functions on all ways to a connection,
// each with its depth: the number of files on the shortest way to it.
//
// Apply leads through all steps of all actions, each in a file of its own: its number of files grows with the steps, its ways do not.
//
// Not counted, although ways lead through them: internal, which calls only what a caller gives it (fanout), and fleet/relay, which is
// to its caller the same as a direct upload.
func TestWays(t *testing.T) {
	p := load(t)
	const gate = "(cmd/dsbuild.gate).pass" // a check of its own, after the first batch
	for _, c := range []struct {
		name, command     string
		without           []string // the command's other half, and what it does on this machine
		program           string   // what starts the node's program
		way, files, depth int      // at most
	}{
		{"deploy: Survey", "runDeploy", []string{"(*fleet/deploy.Deploy).Apply", gate}, "fleet/node.Probe", 8, 9, 7},
		{"deploy: Apply", "runDeploy", []string{"(*fleet/deploy.Deploy).Survey", gate}, "fleet/node/agent.Start", 8, 22, 8},
		{"env deploy: Survey", "runEnvDeploy", []string{"(*fleet/envdeploy.Deploy).Apply", gate}, "(fleet/node.Script).Run", 10, 12, 7},
		{"env deploy: Apply", "runEnvDeploy", []string{"(*fleet/envdeploy.Deploy).Survey", gate}, "fleet/node/agent.Start", 10, 23, 9},
		{"verify", "runVerify", nil, "(fleet/node.Script).Run", 8, 7, 5},
		{"ship: Survey", "runShip", []string{"(*fleet/ship.Ship).Run", "pipeline.ReadGivenPython", "cmd/dsbuild.runShipEnv", gate}, "fleet/node.Probe", 14, 8, 8},
		{"ship: Run", "runShip", []string{"(*fleet/ship.Ship).Survey", "pipeline.ReadGivenPython", "cmd/dsbuild.runShipEnv", gate}, "fleet/node/agent.Start", 14, 24, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p.functions[c.program] == nil {
				t.Fatalf("no function is called %s", c.program)
			}
			depths, way := p.depths(p.callsFrom(t, "cmd/dsbuild."+c.command, c.without...), p.functions[c.program])
			deepest, list := 0, ""
			for _, file := range slices.Sorted(maps.Keys(depths)) {
				deepest = max(deepest, depths[file])
				list += fmt.Sprintf("\n%4d %s", depths[file], file)
			}
			t.Logf("%d files to %s: %s\n%d files on all ways, the deepest at %d:%s",
				len(way), c.program, strings.Join(way, ", "), len(depths), deepest, list)
			if len(way) == 0 || len(way) > c.way || len(depths) > c.files || deepest > c.depth {
				t.Errorf("want at most %d files on the way to the program, %d on all ways, none deeper than %d", c.way, c.files, c.depth)
			}
		})
	}
}

// depths returns the files on the ways from command to a connection, with their depths, and those on the shortest way to a function.
func (p *program) depths(command *callgraph.Node, function *ssa.Function) (depths map[string]int, way []string) {
	type place struct {
		at   *callgraph.Node
		file string // the one that was opened last
	}
	depths = map[string]int{}
	seen, from := map[place]bool{}, map[place]place{}
	level := []place{{command, p.file(command.Func)}}
	for depth := 1; len(level) > 0; depth++ {
		var next []place
		for i := 0; i < len(level); i++ {
			here := level[i]
			if here.at.Func == function && way == nil {
				for at := here; at.at != nil; at = from[at] {
					way = append(way, at.file)
				}
				slices.Reverse(way)
				way = slices.Compact(way)
			}
			if seen[here] || isConnection(here.at) || callgraph.PathSearch(here.at, isConnection) == nil {
				continue
			}
			seen[here] = true
			if depths[here.file] == 0 {
				depths[here.file] = depth
			}
			for _, e := range here.at.Out {
				there := place{e.Callee, p.file(e.Callee.Func)}
				hidden := there.file == "" || strings.HasPrefix(there.file, "internal/") || strings.HasPrefix(there.file, "fleet/relay/")
				if hidden {
					there.file = here.file
				}
				if _, known := from[there]; !known && there.at != command {
					from[there] = here
				}
				if there.file == here.file {
					level = append(level, there)
				} else {
					next = append(next, there)
				}
			}
		}
		level = next
	}
	return depths, way
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
// give it are the steps of a node, which package fleet calls. Three functions take one more: PutStep and CleanupStep call it again after
// a lost connection, or only where it is needed, and Print for the cells of a table.
func TestControlRunsDown(t *testing.T) {
	p := load(t)
	for f, n := range p.calls.Nodes {
		if f == nil || path.Dir(p.file(f)) != "fleet/change" || slices.Contains([]string{"PutStep", "CleanupStep", "Print"}, outermost(f).Name()) {
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
