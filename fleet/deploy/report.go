package deploy

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Print writes the plan of a deploy, equal nodes in one row.
func (p Plan) Print(w io.Writer) error {
	err := p.Decisions.Print(w, []string{"WHEEL"}, func(i int) (cells, why []string) {
		n, wheel := p.Nodes[i], "-"
		if n.Action != change.Refuse {
			wheel = cmp.Or(n.WheelName, "-")
		}
		switch n.Action {
		case change.Install:
			if len(n.Extra) > 0 {
				why = []string{"with " + strings.Join(extraWheelNames(n.Extra), ", ")}
			}
		case change.Shared:
			why = []string{"shares its environment with " + p.Nodes[n.Leader].Name}
		case change.Rollback:
			why = []string{"back to " + n.Back}
		case change.UpToDate:
			why = []string{"runs this wheel already"}
		}
		return []string{wheel}, why
	})
	var bytes int64
	var fullest NodePlan // of the nodes that get files
	nodes := 0
	for _, n := range p.Nodes {
		if n.Action != change.Install || n.need == 0 {
			continue
		}
		bytes, nodes = bytes+n.Wheel.Manifest.Size+extraSize(n.Extra), nodes+1
		if nodes == 1 || n.free-n.need < fullest.free-fullest.need {
			fullest = n
		}
	}
	if err == nil && nodes > 0 {
		_, err = fmt.Fprintf(w, "sends %s to %s; %s has the least room: %s free, %s needed\n",
			ui.Size(bytes), ui.Count(nodes, "node"), fullest.Name, ui.Size(fullest.free), ui.Size(fullest.need))
	}
	return err
}
