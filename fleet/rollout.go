package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Serial holds the sizes of the groups in which nodes are changed. A group begins after the previous one has finished.
// The last size applies to all further groups. An empty Serial means one group of all nodes.
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
			return nil, errors.New("want numbers of nodes or percentages such as 5, 10% or 1,10%,100%")
		}
		serial = append(serial, GroupSize{n, percent})
	}
	return serial, nil
}

// Rollout is the order in which nodes are changed: those that can be changed at once, then those
// that wait for running jobs, so that they delay no other node.
type Rollout struct {
	ready, waiting [][]int // the indexes of nodes; those of one list are in the same group
	sizes          Serial
	at             int // index of the next size
	total          int // number of nodes
	number         int // of the group that was taken last, from 1
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

// Left returns the number of nodes in the groups that are still to come.
func (r *Rollout) Left() int { return len(slices.Concat(slices.Concat(r.ready, r.waiting)...)) }

// nextGroup removes the next group and returns it. It is empty when all groups have been taken.
func (r *Rollout) nextGroup() []int {
	from := &r.ready
	if len(*from) == 0 {
		from = &r.waiting
	}
	most := r.total
	if len(r.sizes) > 0 {
		size := r.sizes[min(r.at, len(r.sizes)-1)]
		most = size.N
		if size.Percent {
			most = max(1, r.total*size.N/100)
		}
	}
	var group []int
	for len(*from) > 0 && (len(group) == 0 || len(group)+len((*from)[0]) <= most) {
		group, *from = append(group, (*from)[0]...), (*from)[1:]
	}
	return group
}

// AssignGroups takes all groups and calls assign with the group of --serial of each node, from 1,
// assuming that no group fails. Without --serial there are no groups to assign.
func (r *Rollout) AssignGroups(assign func(node, group int)) {
	if len(r.sizes) == 0 {
		return
	}
	for number := 1; ; number++ {
		group := r.nextGroup()
		if len(group) == 0 {
			return
		}
		for _, i := range group {
			assign(i, number)
		}
		r.at++
	}
}

// NextGroup takes the next group of a rollout, by the indexes of its nodes; it is empty when all groups have been
// taken. FinishGroup comes before the next call.
func (f *Fleet) NextGroup(r *Rollout) []int {
	group := r.nextGroup()
	r.number++
	if len(r.sizes) > 0 && (len(group) > 0 || r.number == 1) {
		f.progress.setGroup(r.number)
	}
	return group
}

// FinishGroup reports whether the next group may begin. If too many nodes of this one failed, it sets the error of the
// nodes of all further groups to the reason why they are not started.
func (f *Fleet) FinishGroup(ctx context.Context, r *Rollout, group []int) bool {
	var failed []string
	ok := false
	for _, i := range group {
		n := f.Nodes[i]
		if len(r.sizes) > 0 && n.Status != report.Skipped {
			n.serial = r.number
		}
		if n.Failed() {
			failed = append(failed, n.Host.Name)
		}
		ok = ok || n.Status == report.OK
	}
	if len(r.sizes) > 0 && len(failed) > 0 && ctx.Err() == nil &&
		(f.opt.MaxFailures == nil || f.opt.MaxFailures(len(failed), len(group))) {
		why := fmt.Errorf("skipped: %d of %s failed in batch %d (%s)",
			len(failed), ui.Count(len(group), "node"), r.number, ui.FoldShort(failed))
		why = fault.WithHint(why, "fix the failures and rerun, or raise --max-fail; "+
			"a rerun skips finished nodes")
		f.SkipRest(r, why)
		return false
	}
	if ok {
		r.at++ // to the next size
	}
	return true
}

// SkipRest skips the nodes of all further groups, with the reason.
func (f *Fleet) SkipRest(r *Rollout, why error) {
	for _, i := range slices.Concat(slices.Concat(r.ready, r.waiting)...) {
		f.Nodes[i].Err = why
	}
}
