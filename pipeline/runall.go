package pipeline

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Result is the outcome of a plan: a wheel or an error.
type Result struct {
	Plan     *Plan
	Artifact wheel.Artifact
	Err      error
}

// RunAll builds wheels sequentially and returns the results in the order of the plans, which have names. Equal plans
// are built once. A failed build does not stop the others; the end of ctx stops all. Each wheel's key is added to the
// store. If done is not nil, it is called with each result immediately.
func (r Runner) RunAll(ctx context.Context, plans []*Plan, done func(Result)) []Result {
	results := make([]Result, len(plans))
	first := map[string]*Result{} // by digest
	files := map[string]string{}  // the plans that own the file names in Dir
	for i, p := range plans {
		result := &results[i]
		result.Plan = p
		one := r
		if len(plans) > 1 {
			one.Report = ui.WithPrefix(r.Report, p.Name)
		}
		equal := first[p.Digest]
		switch {
		case equal != nil:
			result.Artifact, result.Err = equal.Artifact, equal.Err
			result.Artifact.Cached = result.Err == nil
		case ctx.Err() != nil:
			result.Err = context.Cause(ctx)
		default:
			first[p.Digest] = result
			one.claim = func(name string) error {
				if owner, taken := files[name]; taken {
					return SameNameError(name, owner)
				}
				files[name] = p.Name
				return nil
			}
			result.Artifact, result.Err = one.Run(ctx, p)
			if result.Err != nil && ctx.Err() == nil {
				r.Network.Reporter(one.Report).Warn("failed: %v", result.Err)
			}
		}
		if result.Err == nil && p.Key != "" {
			if err := r.Store.LinkKey(ctx, p.Key, p.Digest); err != nil {
				one.Report.Warn("cannot record the targets in the wheel cache: %v", err)
			}
		}
		if done != nil {
			done(*result)
		}
	}
	return results
}

// SameNameError reports a wheel with the same file name as another wheel of the run.
func SameNameError(name, owner string) error {
	return fault.WithHint(fmt.Errorf("wheel file name %s is already used by %s", name, owner),
		"build them in separate runs with different --output")
}
