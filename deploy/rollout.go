package deploy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
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

// rollout is the order in which nodes are changed. Nodes that share an environment are in the
// same group. Nodes that wait for running jobs are in the last groups, so that they delay no
// other node.
type rollout struct {
	ready, waiting [][]int // the indexes of the nodes of each environment, its leader first
	sizes          Serial
	at             int // index of the next size
	total          int // number of nodes
}

// newRollout makes the order for plans. It leaves out nodes that are not to be changed.
func newRollout(plans []NodePlan, sizes Serial) *rollout {
	r := &rollout{sizes: sizes}
	members := map[int][]int{}
	for i, p := range plans {
		if p.Action == Shared {
			members[p.Leader] = append(members[p.Leader], i)
		}
	}
	for i, p := range plans {
		if p.Action != Install && p.Action != Rollback {
			continue
		}
		all := append([]int{i}, members[i]...)
		r.total += len(all)
		if p.waits {
			r.waiting = append(r.waiting, all)
		} else {
			r.ready = append(r.ready, all)
		}
	}
	return r
}

// nextGroup takes the next group; it is empty when all groups have been taken.
func (r *rollout) nextGroup() []int {
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

// useNextSize moves on to the next size, because a node of the last group is ok.
func (r *rollout) useNextSize() { r.at++ }

// AssignGroups notes for each node the group of --serial that will change it, assuming that no group
// fails.
func (p Plan) AssignGroups(serial Serial) {
	if len(serial) == 0 {
		return
	}
	order := newRollout(p.Nodes, serial)
	for number := 1; ; number++ {
		group := order.nextGroup()
		if len(group) == 0 {
			return
		}
		for _, i := range group {
			p.Nodes[i].Serial = number
		}
		order.useNextSize()
	}
}

// stopAfter returns the reason to start no further group after this one, nil if there is none.
func (d *Deployment) stopAfter(number int, group []*nodeRun) error {
	if len(d.opt.Serial) == 0 {
		return nil
	}
	var failed []string
	for _, u := range group {
		if u.Status == report.Failed || u.Status == report.Unreachable {
			failed = append(failed, u.Host.Name)
		}
	}
	tooMany := len(failed) > 0
	if d.opt.TooMany != nil {
		tooMany = tooMany && d.opt.TooMany(len(failed), len(group))
	}
	if !tooMany {
		return nil
	}
	return hint.With(fmt.Errorf("not started: in group %d of --serial, %d of %s failed (%s)", number, len(failed), ui.Count(len(group), "node"), ui.FoldShort(failed)),
		"correct the failures and run the command again: it skips finished nodes; --max-fail sets how many nodes may fail")
}
