package pipeline

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Job is one of several wheels to build: a plan, and its name in messages.
type Job struct {
	Name string
	Plan *Plan
}

// Result is the outcome of a job: a wheel or an error.
type Result struct {
	Job
	Artifact wheel.Artifact
	Err      error
}

// RunAll builds wheels one after another and returns the results in the order of the jobs. Equal plans are
// built once. A failed job does not stop the others; the end of ctx stops all. If done is not nil, it is
// called with each result as soon as it exists.
func (r Runner) RunAll(ctx context.Context, jobs []Job, done func(Result)) []Result {
	results := make([]Result, len(jobs))
	first := map[string]*Result{} // by plan
	files := map[string]string{}  // the jobs that own the file names in Dir
	for i, j := range jobs {
		result := &results[i]
		result.Job = j
		equal := first[j.Plan.Digest]
		switch {
		case equal != nil:
			result.Artifact, result.Err = equal.Artifact, equal.Err
			result.Artifact.Cached = result.Err == nil
		case ctx.Err() != nil:
			result.Err = context.Cause(ctx)
		default:
			first[j.Plan.Digest] = result
			one := r
			if len(jobs) > 1 {
				one.Report = ui.Prefixed(r.Report, j.Name)
			}
			one.claim = func(name string) error {
				if owner, taken := files[name]; taken {
					return SameNameError(name, owner)
				}
				files[name] = j.Name
				return nil
			}
			result.Artifact, result.Err = one.Run(ctx, j.Plan)
			if result.Err != nil && ctx.Err() == nil {
				r.Site.Reporter(one.Report).Warn("failed: %v", result.Err)
			}
		}
		if done != nil {
			done(*result)
		}
	}
	return results
}

// SameNameError is the error of a wheel whose file name another wheel of the run has.
func SameNameError(name, owner string) error {
	return fault.WithHint(fmt.Errorf("wheel file name %s is already used by %s", name, owner),
		"build them in separate runs with different --output")
}
