package envdeploy

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

var usersProgram = node.NewProgram("find_environments")

// askUsers is the program that finds the processes which use the environments on a node.
func (d *Deploy) askUsers() node.Script {
	script := node.Script{Python: d.opt.Lock.Program(), Program: usersProgram, Request: d.where()}
	if d.opt.Lock.BundlesPython() {
		script.Python = "python3" // its own would have to be looked for
	}
	return script
}

// findSharing finds out which nodes share the folder of the environments.
func (d *Deploy) findSharing(ctx context.Context, plan change.Decisions, known []ProbeResult) *change.Sharing {
	folders := make([]change.Folder, len(known))
	for i, n := range known {
		folders[i].Node = d.nodes[i].Node
		if n.Err == nil && n.State != nil && !n.Facts.Elsewhere {
			folders[i].Path, folders[i].Type = n.State.Place, n.State.FileSystem
			if n.State.Current != nil {
				folders[i].Sees = n.State.Current.Name
			}
		}
	}
	return d.FindSharing(ctx, plan, folders, d.askUsers())
}

// removeAskLimit is how long dsbuild tries to reach all nodes that share the folder before it removes old environments.
const removeAskLimit = 15 * time.Second

// usedElsewhere returns the names of those old environments that the switch must not remove: another node that shares
// the folder uses them, or cannot be asked. It warns of them.
func (n *nodeState) usedElsewhere(ctx context.Context) []string {
	old := slices.Clone(n.begun.Old)
	switch before, current := n.begun.Before, n.begun.Current; {
	case current != nil && current.Digest == n.plan.Set.Digest: // it is rebuilt
		old = append(old, current.Name)
	case before != nil:
		old = append(old, before.Name)
	}
	old = slices.DeleteFunc(old, func(name string) bool { return name == n.files.Name })
	hosts := n.run.sharing.Others(n.index)
	if len(old) == 0 || len(hosts) == 0 {
		return []string{}
	}
	visitors := lists.Map(hosts, n.run.Fleet.Visitor)
	users := make([]change.FolderUsers, len(visitors))
	errs := n.run.Fleet.Ask(ctx, visitors, removeAskLimit, func(ctx context.Context, i int) (err error) {
		users[i], err = change.AskUsers(ctx, visitors[i], n.run.askUsers())
		return err
	})
	keep, silent := map[string]bool{}, []string{}
	for i, on := range visitors {
		on.Disconnect()
		if errs[i] != nil {
			silent = append(silent, on.Host.Name)
			continue
		}
		for _, name := range old {
			if what := change.DescribeProcesses(users[i].Users[name]); what.Text != "" && !keep[name] {
				keep[name] = true
				n.Warn("keeps old environment %s: on %s, %s", node.PlainVersion(name), nodeerr.Own(on.Host.Name), what)
			}
		}
	}
	if len(silent) > 0 {
		n.Warn("keeps old environments: cannot ask %s, which may use them", ui.FoldShort(silent))
		return old
	}
	return append([]string{}, slices.Sorted(maps.Keys(keep))...) // not null
}
