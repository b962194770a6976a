package ship

import (
	"context"
	"slices"

	"github.com/dsbuild/dsbuild/pipeline"
)

// buildMissing plans and builds the wheels that were not found.
func (s *Ship) buildMissing(ctx context.Context) {
	var plans []*pipeline.Plan
	for _, w := range s.selection.Wheels {
		if w.State == ToBuild && ctx.Err() != nil {
			w.markFailed(context.Cause(ctx))
		}
		if w.State != ToBuild {
			continue
		}
		p, err := s.opt.Plans.Plan(ctx, w.Name, w.Request)
		if err != nil {
			w.markFailed(err)
			continue
		}
		p.Key = w.Plan.Key
		w.Plan = p
		plans = append(plans, p)
	}
	if len(plans) == 0 {
		return
	}
	s.built = true
	for _, r := range s.opt.Build(ctx, plans) {
		at := slices.IndexFunc(s.selection.Wheels, func(w *Delivery) bool { return w.Plan == r.Plan })
		s.selection.Wheels[at].recordBuild(r)
	}
}

// recordBuild records the result of a build.
func (d *Delivery) recordBuild(r pipeline.Result) {
	if r.Err != nil {
		d.markFailed(r.Err)
		return
	}
	d.State, d.Artifact = Built, r.Artifact
	if r.Artifact.Cached {
		d.State = Stored
	}
}

// place copies the wheels that the store had to Options.Dir, and signs those that no build signed.
func (s *Ship) place(ctx context.Context) {
	for _, w := range s.selection.Wheels {
		found := w.State == Exported
		// A wheel that has a path was put there, and signed, by its build.
		if (w.State == Stored || w.State == Running && s.opt.BuildOnly) && w.Artifact.Path == "" {
			found = true
			s.placeStored(ctx, w)
		}
		if found && w.Err == nil && s.opt.Sign != nil {
			if err := pipeline.SignExported(ctx, w.filePath(), s.opt.Sign); err != nil {
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
	a, err := pipeline.Export(ctx, w.stored, s.opt.Dir)
	if err != nil {
		w.markFailed(err)
		return
	}
	a.Cached = true
	w.Artifact = a
}

// accept checks the wheels against the policy before one is sent.
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
