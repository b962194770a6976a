package check

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Skew is a node's clock minus this machine's, with an error bound.
type Skew struct {
	Seconds float64 `json:"seconds"`
	Bound   float64 `json:"bound"` // half of the time of an answer
}

const (
	clockTries = 5
	// maxSkew is the largest harmless difference: logs can still be compared, and
	// file servers, tokens and make accept it.
	maxSkew = 2.0
)

// lastSecond is the end of the year 9999, in Unix time. A node's clock counts as no later, and as no
// earlier than the same time before 1970: the report shows each digit.
const lastSecond = 253402300799.0

// newSkew compares a node's time with this machine's.
func newSkew(theirs, bound, ours float64) *Skew {
	return &Skew{max(-lastSecond, min(theirs, lastSecond)) - ours, bound}
}

// checkClocks compares the nodes' clocks with this machine's.
func (r *run) checkClocks(ctx context.Context) {
	live := r.liveMembers()
	r.askAll(ctx, Clock, live, askLimit, func(ctx context.Context, m *member) error {
		for range clockTries {
			var got struct {
				Time float64 `json:"time"`
			}
			sent, came, err := m.agent.AskTimed(ctx, agent.Order{"do": "clock"}, &got)
			if err != nil {
				return err
			}
			half := came.Sub(sent) / 2
			ours := float64(sent.Add(half).UnixNano()) / 1e9
			if s := newSkew(got.Time, half.Seconds(), ours); m.skew == nil || s.Bound < m.skew.Bound {
				m.skew = s
			}
		}
		return nil
	})
	r.judgeClocks()
}

// judgeClocks finds wrong clocks: compared with this machine's or, where most nodes
// agree with each other and not with this machine, with those.
func (r *run) judgeClocks() {
	known := slices.DeleteFunc(r.liveMembers(), func(m *member) bool { return m.skew == nil })
	if len(known) == 0 {
		return
	}
	middle, whose := 0.0, "this machine's"
	all := make([]float64, len(known))
	for i, m := range known {
		all[i] = m.skew.Seconds
	}
	slices.Sort(all)
	if median := all[len(all)/2]; len(all) > 2 && (median > maxSkew || median < -maxSkew) {
		near := 0
		for _, s := range all {
			if s-median < maxSkew && median-s < maxSkew {
				near++
			}
		}
		if 2*near > len(all) {
			middle, whose = median, "most nodes'"
			r.opt.Reporter.Warn("the nodes' clocks are %s this machine's clock, which is wrong", describeSkew(median))
		}
	}
	for _, m := range known {
		off := m.skew.Seconds - middle
		if off > maxSkew+m.skew.Bound || off < -maxSkew-m.skew.Bound {
			m.addFinding(Clock, Error, "run chronyc tracking or timedatectl there: is NTP active?", "its clock is %s %s clock (± %s)", cause.Own(describeSkew(off)), whose, cause.Own(ui.Duration(time.Duration(m.skew.Bound*float64(time.Second)))))
		}
	}
}

// describeSkew puts a difference of clocks into words.
func describeSkew(seconds float64) string {
	word := "ahead of"
	if seconds < 0 {
		seconds, word = -seconds, "behind"
	}
	if seconds > 48*3600 {
		return strconv.Itoa(int(seconds/86400)) + " days " + word
	}
	return ui.Duration(time.Duration(seconds*float64(time.Second))) + " " + word
}
