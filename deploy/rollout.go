package deploy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Serial holds the sizes of the groups in which nodes are changed. dsbuild finishes one group
// before it begins the next. The last size applies to all further groups. An empty Serial means
// one group of all nodes.
type Serial []GroupSize

// GroupSize is a number of nodes, or a percentage of the nodes to be changed.
type GroupSize struct {
	N       int
	Percent bool
}

// ParseSerial reads the value of --serial: 5, 10% or a list such as 1,10%,100%.
func ParseSerial(s string) (Serial, error) {
	var serial Serial
	for word := range strings.SplitSeq(s, ",") {
		digits, percent := strings.CutSuffix(word, "%")
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || percent && n > 100 || digits[0] == '+' {
			return nil, fmt.Errorf("%s: must be numbers of nodes or percentages such as 5, 10%% or 1,10%%,100%%", s)
		}
		serial = append(serial, GroupSize{n, percent})
	}
	return serial, nil
}

// of returns the size in nodes, at least one; total is the number of nodes to be changed.
func (s GroupSize) of(total int) int {
	if s.Percent {
		return max(1, total*s.N/100)
	}
	return s.N
}

// Rollout is the order in which nodes are changed: those that can be changed at once, then those
// that wait for running jobs, so that they delay no other node.
type Rollout struct {
	ready, waiting [][]int // the indexes of nodes; those of one list are in the same group
	sizes          Serial
	at             int // index of the next size
	total          int // number of nodes
}

// NewRollout makes the order for nodes, by their indexes. The nodes of one list are in the same
// group.
func NewRollout(ready, waiting [][]int, sizes Serial) *Rollout {
	r := &Rollout{ready: ready, waiting: waiting, sizes: sizes}
	for _, together := range slices.Concat(ready, waiting) {
		r.total += len(together)
	}
	return r
}

// newRollout makes the order for plans. It leaves out nodes that are not to be changed. Nodes that
// share an environment are in the same group, the leader first.
func newRollout(plans []NodePlan, sizes Serial) *Rollout {
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
	return NewRollout(ready, waiting, sizes)
}

// NextGroup takes the next group; it is empty when all groups have been taken.
func (r *Rollout) NextGroup() []int {
	from := &r.ready
	if len(*from) == 0 {
		from = &r.waiting
	}
	most := r.total
	if len(r.sizes) > 0 {
		most = r.sizes[min(r.at, len(r.sizes)-1)].of(r.total)
	}
	var group []int
	for len(*from) > 0 && (len(group) == 0 || len(group)+len((*from)[0]) <= most) {
		group, *from = append(group, (*from)[0]...), (*from)[1:]
	}
	return group
}

// UseNextSize moves on to the next size, because a node of the last group is ok.
func (r *Rollout) UseNextSize() { r.at++ }

// AssignGroups notes for each node the group of --serial that will change it, assuming that no group
// fails.
func (p Plan) AssignGroups(serial Serial) {
	if len(serial) == 0 {
		return
	}
	order := newRollout(p.Nodes, serial)
	for number := 1; ; number++ {
		group := order.NextGroup()
		if len(group) == 0 {
			return
		}
		for _, i := range group {
			p.Nodes[i].Serial = number
		}
		order.UseNextSize()
	}
}

// StopAfter returns the reason to start no further group after this one of so many nodes, nil if
// there is none. tooMany may be nil.
func (s Serial) StopAfter(number int, failed []string, nodes int, tooMany func(failed, of int) bool) error {
	if len(s) == 0 || len(failed) == 0 || tooMany != nil && !tooMany(len(failed), nodes) {
		return nil
	}
	return hint.With(fmt.Errorf("not started: in group %d of --serial, %d of %s failed (%s)", number, len(failed), ui.Count(nodes, "node"), ui.FoldShort(failed)),
		"correct the failures and run the command again: it skips finished nodes; --max-fail sets how many nodes may fail")
}

// stopAfter is StopAfter for a group of nodes.
func (d *Deployment) stopAfter(number int, group []*nodeRun) error {
	var failed []string
	for _, u := range group {
		if u.Failed() {
			failed = append(failed, u.Host.Name)
		}
	}
	return d.opt.Serial.StopAfter(number, failed, len(group), d.opt.TooMany)
}
