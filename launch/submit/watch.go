package submit

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// slurmTimeout limits how long Slurm may fail to answer.
const slurmTimeout = 5 * time.Minute

// Result is the end of a job.
type Result struct {
	State
	Blame Blame // empty if no message names a node
	Wall  time.Duration
	// Hint is advice for the first known cause in the output, if any.
	Hint string
}

// String summarizes the job: state, nodes, reason and exit code.
func (e Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s %s after %s", e.ID, e.Name, ui.Duration(e.Wall))
	switch where := cmp.Or(e.Blame.Nodes, e.Nodes); {
	case where == "":
	case e.Blame.Why != "":
		fmt.Fprintf(&b, " on %s (%s)", where, e.Blame.Why)
	default:
		fmt.Fprintf(&b, " on %s", where)
	}
	fmt.Fprintf(&b, ": exit code %d", e.Code)
	if e.Signal != 0 {
		fmt.Fprintf(&b, ", signal %d", e.Signal)
	}
	return b.String()
}

// Passed reports whether the job completed.
func (e Result) Passed() bool { return e.Name == "COMPLETED" }

// Watch waits for the end of a job and copies its output. If ctx ends first, the job
// continues.
func (s Slurm) Watch(ctx context.Context, id string) (Result, error) {
	w := watch{Slurm: s, id: id, begin: time.Now(), heard: time.Now(), out: output{to: s.Log}}
	w.Poll = cmp.Or(s.Poll, 2*time.Second)
	defer func() { _ = w.out.close() }()
	for {
		ended, err := w.checkOnce(ctx)
		if err != nil {
			return Result{}, err
		}
		if ended {
			// Read the rest of the output, which may come late on a shared folder.
			for range 3 {
				if err := w.out.copyNew(); err != nil {
					return Result{}, err
				}
				if err := sleepFor(ctx, w.Poll/4); err != nil {
					return Result{}, w.left(err)
				}
			}
			if err := w.out.close(); err != nil {
				return Result{}, err
			}
			if w.out.file == nil && w.last.Output != "" && w.last.Code+w.last.Signal != 0 {
				w.Report.Warn("job %s: output file %s is not visible on this machine", w.id, w.last.Output)
			}
			e := Result{State: w.last, Wall: time.Since(w.begin)}
			if !e.Passed() {
				e.Hint = w.out.signs.Sign().Advice()
			}
			if w.out.blame != nil && !e.Passed() {
				e.Blame = *w.out.blame
			}
			return e, nil
		}
		if err := sleepFor(ctx, w.Poll); err != nil {
			return Result{}, w.left(err)
		}
	}
}

// watch is the state of a watched job.
type watch struct {
	Slurm
	id    string
	begin time.Time
	heard time.Time // when Slurm last answered
	last  State
	out   output
}

// checkOnce asks Slurm once and reports changes.
func (w *watch) checkOnce(ctx context.Context) (ended bool, err error) {
	st, err := w.State(ctx, w.id)
	switch {
	case ctx.Err() != nil:
		return false, w.left(context.Cause(ctx))
	case err != nil && strings.Contains(err.Error(), "Invalid job id"):
		err = fmt.Errorf("job %s not found: Slurm removes finished jobs after MinJobAge", w.id)
		return false, fault.WithHint(err,
			"if the cluster has accounting, see its result with: sacct -j %s%s", w.id, w.outputHint())
	case err != nil && time.Since(w.heard) > slurmTimeout:
		err = fmt.Errorf("no answer from Slurm for %s: %w", ui.Duration(slurmTimeout), err)
		return false, w.left(err)
	case err != nil:
		w.Report.Warn("job %s: no answer from Slurm, retrying: %v", w.id, err)
		return false, nil
	}
	w.heard, w.out.name = time.Now(), st.Output
	// Report a change of the state.
	before := w.last
	if st.Restarts > before.Restarts {
		w.out.blame, w.out.signs = nil, nil // from the run before the requeue
		w.Report.Warn("job %s was requeued and restarts", w.id)
	}
	switch {
	case st.Name == before.Name && st.Reason == before.Reason && st.Nodes == before.Nodes:
	case !st.Started() && st.Reason != "":
		w.Report.Note("job %s is pending: %s", w.id, st.Reason)
	case !st.Started():
		w.Report.Note("job %s is pending", w.id)
	case !before.Started() || before.Name == "":
		w.Report.Note("job %s is running on %s; output: %s", w.id, st.Nodes, st.Output)
	}
	w.last = st
	if !st.Started() {
		return false, nil
	}
	return st.Ended(), w.out.copyNew()
}

// left adds a hint that the job continues without dsbuild.
func (w *watch) left(err error) error {
	return fault.WithHint(err, "job %s continues; follow it with 'squeue -j %s', or cancel it with 'scancel %s'%s",
		w.id, w.id, w.id, w.outputHint())
}

// outputHint returns the end of a hint with the job's output file, or "" while the file is unknown.
func (w *watch) outputHint() string {
	if w.last.Output == "" {
		return ""
	}
	return "; output: " + w.last.Output
}

// sleepFor waits for d. It returns the cause if ctx ends first.
func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
