package jobrunner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// The final states of a job.
const (
	Passed      = "passed"
	Failed      = "failed"
	NotStarted  = "not started"
	Interrupted = "interrupted"
)

// Report describes the end of a job.
type Report struct {
	Job     string  `json:"job"`
	State   string  `json:"state"`
	Code    int     `json:"exit_code"` // of the first failure; 128 and more for a signal
	Seconds float64 `json:"seconds"`
	Logs    string  `json:"logs"` // folder
	// First is the first failure; Followed are its consequences.
	First    *Failure  `json:"first,omitempty"`
	Followed []Failure `json:"followed,omitempty"`
	Nodes    []Node    `json:"nodes"`
	Ranks    []Rank    `json:"ranks"`
}

// Failure is a rank, or a node, that failed.
type Failure struct {
	Node string `json:"node"`
	Rank *int   `json:"rank,omitempty"` // none if the node itself failed
	Why  string `json:"why"`
	Hint string `json:"hint,omitempty"`
	Log  string `json:"log,omitempty"`
	// Last are the last lines of its output.
	Last []string `json:"last,omitempty"`

	code int
}

// Node is the result of a node.
type Node struct {
	Name  string `json:"name"`
	State string `json:"state"` // passed, failed, stopped, refused, unreachable
	Why   string `json:"why,omitempty"`
	// Left are processes that survived SIGKILL.
	Left []int `json:"left,omitempty"`
}

// Rank is one process of the job.
type Rank struct {
	Rank   int    `json:"rank"`
	Node   string `json:"node"`
	Code   *int   `json:"exit_code,omitempty"` // if known
	Signal string `json:"signal,omitempty"`
	Log    string `json:"log,omitempty"`
}

// buildReport makes the report at the end of a run.
func (c *jobRun) buildReport(ctx context.Context) *Report {
	// Write the unfinished lines to the logs.
	for _, m := range c.members {
		for _, line := range m.launcher.endLines() {
			c.book.appendLine(launcherFile(m), line+"\n")
		}
	}
	for _, r := range c.ranks {
		for _, line := range r.tail.endLines() {
			c.book.appendLine(c.book.rankFile(r.number), line+"\n")
		}
	}
	r := &Report{
		Job: c.opt.Job.Name, State: Passed, Seconds: time.Since(c.begin).Seconds(), Logs: c.opt.Logs,
		Nodes: []Node{}, Ranks: []Rank{},
	}
	for _, m := range c.members {
		n := Node{Name: m.name(), Left: m.end.Left}
		switch {
		case m.state == refused:
			n.State, n.Why = "refused", m.err.Error()
		case m.state == lost:
			n.State, n.Why = "unreachable", m.err.Error()
		case m.state == over && m.end.hasPassed():
			n.State = "passed"
		case m.state == over && !c.wasStopped(m):
			n.State, n.Why = "failed", cmp.Or(m.reasonText(), "launcher failed")
		default:
			n.State = "stopped"
		}
		r.Nodes = append(r.Nodes, n)
	}
	for _, n := range slices.Sorted(maps.Keys(c.ranks)) {
		r.Ranks = append(r.Ranks, c.rankResult(c.ranks[n]))
	}
	c.judgeOutcome(ctx, r)
	return r
}

// judgeOutcome decides how the job ended, and finds the first failure.
func (c *jobRun) judgeOutcome(ctx context.Context, r *Report) {
	well := 0
	for _, m := range c.members {
		if m.state == over && m.end.hasPassed() {
			well++
		}
	}
	switch {
	case ctx.Err() != nil:
		r.State, r.Code = Interrupted, 130
		return
	case well >= c.opt.Job.Nodes.Min && well > 0 && (c.phase == running || c.phase == settling):
		return
	}
	all := c.findSuspects()
	r.State, r.Code = Failed, 1
	if !c.wasRunning() {
		r.State = NotStarted
	}
	if len(all) == 0 {
		return
	}
	r.First = &all[0].Failure
	r.Code = cmp.Or(all[0].code, 1)
	for _, s := range all[1:] {
		r.Followed = append(r.Followed, s.Failure)
	}
}

func (c *jobRun) wasRunning() bool {
	return slices.ContainsFunc(c.members, func(m *member) bool {
		return m.state == atWork || m.state == over || m.ended && m.state != refused && m.state != ready
	})
}

func (c *jobRun) rankResult(r *rank) Rank {
	out := Rank{Rank: r.number, Node: r.member.name()}
	if _, there := c.book.sizes[c.book.rankFile(r.number)]; there {
		out.Log = c.logPath(c.book.rankFile(r.number))
	}
	switch {
	case r.signal != 0:
		out.Signal = cmp.Or(signals[r.signal], strconv.Itoa(r.signal))
	case !r.failed.IsZero():
		out.Code = &r.code
	case r.member.state == over && r.member.end.hasPassed():
		out.Code = new(int)
	}
	return out
}

func (c *jobRun) logPath(name string) string { return filepath.Join(c.opt.Logs, name) }

func (r *Report) took() string { return ui.Duration(time.Duration(r.Seconds * float64(time.Second))) }

// Err returns nil if the job passed.
func (r *Report) Err() error {
	if r.State == Passed {
		return nil
	}
	if r.State == NotStarted && r.First != nil {
		return fault.AddHint(fmt.Errorf("job %s did not start: %s: %s", r.Job, r.First.Node, r.First.Why), r.First.Hint)
	}
	text := fmt.Sprintf("job %s %s after %s", r.Job, r.State, r.took())
	if r.First == nil {
		return fmt.Errorf("%s; logs: %s", text, r.Logs)
	}
	why := r.First.Why
	if r.First.Rank != nil {
		why = fmt.Sprintf("rank %d, %s", *r.First.Rank, why)
	}
	err := fmt.Errorf("%s on %s (%s); exit code %d; logs: %s", text, r.First.Node, why, r.Code, r.Logs)
	return fault.AddHint(err, r.First.Hint)
}

// Tell prints the first failure with its last lines, and the failures that followed. If the
// job passed, it prints one line.
func (r *Report) Tell(to ui.Reporter) {
	if r.State == Passed {
		to.Note("job %s passed after %s: %d ranks on %s; logs: %s",
			r.Job, r.took(), len(r.Ranks), ui.Count(len(r.Nodes), "node"), r.Logs)
	}
	if r.State == NotStarted {
		if len(r.Followed) > 0 { // the error reports a single failure
			tell(to, "", append([]Failure{*r.First}, r.Followed...))
		}
		return
	}
	if f := r.First; f != nil {
		what := f.Node
		if f.Rank != nil {
			what = fmt.Sprintf("rank %d on %s", *f.Rank, f.Node)
		}
		text := fmt.Sprintf("%s failed first: %s", what, f.Why)
		if len(f.Last) > 0 {
			text += fmt.Sprintf("\n  last lines of %s:\n    %s", f.Log, strings.Join(f.Last, "\n    "))
		}
		to.Note("%s", text)
	}
	tell(to, "then: ", r.Followed)
	for _, n := range r.Nodes {
		if len(n.Left) > 0 {
			to.Warn("%s: processes still running: %v", n.Name, n.Left)
		}
		if n.State == "unreachable" {
			to.Warn("lost connection to %s: its processes stop within a minute plus --grace", n.Name)
		}
	}
}

// tell prints the failed nodes or ranks by reason, each line prefixed with before.
func tell(to ui.Reporter, before string, failures []Failure) {
	var all []ui.Named
	for _, f := range failures {
		what := f.Node
		if f.Rank != nil {
			what = fmt.Sprintf("rank %d", *f.Rank)
		}
		all = append(all, ui.Named{Name: what, Text: f.Why})
	}
	for _, f := range ui.Fold(all) {
		to.Note("%s%s: %s", before, f.Names, f.Text)
	}
}
