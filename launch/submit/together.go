package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Group is a training in several one-node jobs: a master, and workers that get the
// master's address.
type Group struct {
	Master, Worker []byte // the scripts
	Workers        int
	// Tell returns the workers' variables, as NAME=value, for a master with this
	// id on this node.
	Tell func(id, host string) ([]string, error)
	// Elastic: the training goes on without a failed worker.
	Elastic bool
}

// SubmitGroup submits the master, waits until it runs, submits the workers and watches
// all of them. The master's output goes to the log. The first failure cancels the other
// jobs, unless the group is elastic. The master is the first result.
func (s Slurm) SubmitGroup(ctx context.Context, g Group) ([]Ended, error) {
	master, err := s.Submit(ctx, g.Master)
	if err != nil {
		return nil, err
	}
	s.Report.Note("master: job %s", master)
	jobs := []string{master}
	host, err := s.waitStart(ctx, master)
	var tell []string
	if err == nil {
		tell, err = g.Tell(master, host)
	}
	s.More = append(slices.Clone(s.More), tell...)
	for i := 0; err == nil && i < g.Workers; i++ {
		var id string
		if id, err = s.Submit(ctx, g.Worker); err == nil {
			jobs = append(jobs, id)
		}
	}
	if err != nil { // an incomplete group is useless
		return nil, errors.Join(err, s.Cancel(context.WithoutCancel(ctx), jobs...))
	}
	s.Report.Note("workers: jobs %s", strings.Join(jobs[1:], ", "))
	return s.watchAll(ctx, jobs, g.Elastic)
}

// waitStart waits until a job runs, and returns the node of its batch script.
func (s Slurm) waitStart(ctx context.Context, id string) (string, error) {
	heard := time.Now()
	for said := ""; ; {
		st, err := s.State(ctx, id)
		switch {
		case err != nil && (ctx.Err() != nil || strings.Contains(err.Error(), "Invalid job id") || time.Since(heard) > Patience):
			return "", err
		case err != nil: // the controller may be busy
			s.Report.Warn("job %s: Slurm does not answer, asking again: %v", id, err)
			if err := sleepFor(ctx, s.pollInterval()); err != nil {
				return "", err
			}
			continue
		case st.Ended():
			return "", fault.WithHint(fmt.Errorf("the master, job %s, ended before its workers started: %s", id, st.Name), "its output is %s", st.Output)
		case st.Started():
			return st.BatchHost, nil
		case st.Reason != said:
			said = st.Reason
			s.Report.Note("job %s waits: %s", id, said)
		}
		heard = time.Now()
		if err := sleepFor(ctx, s.pollInterval()); err != nil {
			return "", err
		}
	}
}

// watchAll watches the jobs of a group.
func (s Slurm) watchAll(ctx context.Context, jobs []string, elastic bool) ([]Ended, error) {
	ended, errs := make([]Ended, len(jobs)), make([]error, len(jobs))
	var all sync.WaitGroup
	var once sync.Once
	for i, id := range jobs {
		one := s
		if i > 0 {
			one.Log, one.Report = io.Discard, ui.Prefixed(s.Report, "worker")
		}
		all.Go(func() {
			ended[i], errs[i] = one.Watch(ctx, id)
			if errs[i] != nil || ended[i].Passed() || (elastic && i > 0) {
				return
			}
			once.Do(func() {
				s.Report.Warn("%s; dsbuild cancels the others", ended[i])
				errs[i] = s.Cancel(ctx, slices.Delete(slices.Clone(jobs), i, i+1)...)
			})
		})
	}
	all.Wait()
	return ended, errors.Join(errs...)
}
