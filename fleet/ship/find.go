package ship

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/pipeline"
)

// find plans each wheel as far as that works without an engine, and looks for a finished one.
// If planning fails, only this wheel fails.
func (s *Ship) find(ctx context.Context) error {
	for _, w := range s.selection.Wheels {
		p, err := s.opt.Plans.Sketch(ctx, w.Request)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			w.markFailed(err)
			continue
		}
		w.Plan = p
		if s.opt.Fresh {
			continue
		}
		led, err := s.opt.Store.PlanOf(ctx, p.Key)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if err := s.findFinished(ctx, w, p, p.Digest, led); err != nil {
			return err
		}
	}
	// Only then is an engine searched for: without one, wheels of this machine are the finished ones.
	for _, w := range s.selection.Wheels {
		if w.State != ToBuild || s.opt.Fresh {
			continue
		}
		if p := s.opt.SketchHere(ctx, w.Request); p != nil {
			if err := s.findFinished(ctx, w, p, p.Digest); err != nil {
				return err
			}
		}
	}
	return nil
}

// findFinished looks for a finished wheel of a plan in the store, and in Options.Dir.
func (s *Ship) findFinished(ctx context.Context, w *Delivery, p *pipeline.Plan, digests ...string) error {
	for _, digest := range digests {
		kept, ok, err := s.opt.Store.Find(ctx, p, digest)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if ok && w.useFinished(kept, Stored) {
			return nil
		}
	}
	kept, ok, err := pipeline.FindExported(s.opt.Dir, p.Digest)
	if ok {
		w.useFinished(kept, Exported)
	}
	return err
}
