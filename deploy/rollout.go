package deploy

import "github.com/dsbuild/dsbuild/fleet"

// newRollout makes the order for plans. It leaves out nodes that are not to be changed. Nodes that
// share an environment are in the same group, the leader first.
func newRollout(plans []NodePlan, sizes fleet.Serial) *fleet.Rollout {
	members := map[int][]int{}
	for i, p := range plans {
		if p.Action == Shared {
			members[p.Leader] = append(members[p.Leader], i)
		}
	}
	var ready, waiting [][]int
	for i, p := range plans {
		if p.Action != Install && p.Action != Rollback {
			continue
		}
		all := append([]int{i}, members[i]...)
		if p.waits {
			waiting = append(waiting, all)
		} else {
			ready = append(ready, all)
		}
	}
	return fleet.NewRollout(ready, waiting, sizes)
}

// AssignGroups notes for each node the group of --serial that will change it, assuming that no group
// fails.
func (p Plan) AssignGroups(serial fleet.Serial) {
	newRollout(p.Nodes, serial).AssignGroups(func(node, group int) { p.Nodes[node].Serial = group })
}
