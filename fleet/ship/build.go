package ship

import (
	"context"
	"slices"

	"github.com/dsbuild/dsbuild/pipeline"
)

// buildMissing plans and builds the wheels that were not found.
func (s *Ship) buildMissing(ctx context.Context) {
	var jobs []pipeline.Job
	for _, w := range s.selection.Wheels {
		if w.State == ToBuild && ctx.Err() != nil {
			w.markFailed(context.Cause(ctx))
		}
		if w.State != ToBuild {
			continue
		}
		p, err := s.opt.Plans.Plan(ctx, w.Name, w.Spec)
		if err != nil {
			w.markFailed(err)
			continue
		}
		p.Key = w.Plan.Key
		w.Plan = p
		jobs = append(jobs, pipeline.Job{Name: w.Name, Plan: p})
	}
	if len(jobs) == 0 {
		return
	}
	s.built = true
	for i, r := range s.opt.Build(ctx, jobs) {
		at := slices.IndexFunc(s.selection.Wheels, func(w *Delivery) bool { return w.Name == jobs[i].Name })
		s.recordBuild(ctx, r, s.selection.Wheels[at])
	}
}

// recordBuild records the result of a build.
func (s *Ship) recordBuild(ctx context.Context, r pipeline.Result, w *Delivery) {
	if r.Err != nil {
		w.markFailed(r.Err)
		return
	}
	w.State, w.Artifact = Built, r.Artifact
	if r.Artifact.Cached {
		w.State = Stored
	}
	if err := s.opt.Store.LinkRequest(ctx, w.Plan.Key, w.Plan.Digest); err != nil {
		s.opt.Report.Warn("%s: the store could not record its targets: %v", w.Name, err)
	}
}

// place copies the wheels that the store had to Options.Dir, and signs those that no build signed.
func (s *Ship) place(ctx context.Context) {
	for _, w := range s.selection.Wheels {
		found := w.State == Placed
		// A wheel that has a path was put there, and signed, by its build.
		if (w.State == Stored || w.State == Running && s.opt.BuildOnly) && w.Artifact.Path == "" {
			found = true
			s.placeStored(ctx, w)
		}
		if found && w.Err == nil && s.opt.Sign != nil {
			if err := pipeline.SignPlaced(ctx, w.filePath(), s.opt.Sign); err != nil {
				w.markFailed(err)
			}
		}
	}
}

// placeStored copies a wheel from the store to Options.Dir.
func (s *Ship) placeStored(ctx context.Context, w *Delivery) {
	name, sum := w.Artifact.Manifest.Name, w.Artifact.SHA256
	for _, other := range s.selection.Wheels {
		if m := other.Artifact.Manifest; other.Artifact.Path != "" && m.Name == name && m.SHA256 != sum {
			w.markFailed(pipeline.SameNameError(m.Name, other.Name))
			return
		}
	}
	a, err := pipeline.Place(ctx, w.product, s.opt.Dir)
	if err != nil {
		w.markFailed(err)
		return
	}
	a.Cached = true
	w.Artifact = a
}

// accept lets the policy judge the wheels before one is sent.
func (s *Ship) accept() {
	for _, w := range s.selection.Wheels {
		if w.Err != nil || w.Artifact.Path == "" {
			continue
		}
		if err := s.deploy.Accept(w.Artifact.Path, w.Artifact.SHA256); err != nil {
			w.markFailed(err)
		}
	}
}
