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
		if err := s.findFinished(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// findFinished looks for a finished wheel in the store, and in Options.Dir.
func (s *Ship) findFinished(ctx context.Context, w *Delivery) error {
	led, err := s.opt.Store.PlanOf(ctx, w.Plan.Key)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	for _, digest := range []string{w.Plan.Digest, led} {
		kept, ok, err := s.opt.Store.Find(ctx, w.Plan, digest)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if ok && w.useFinished(kept, Stored) {
			return nil
		}
	}
	kept, ok, err := pipeline.FindExported(s.opt.Dir, w.Plan.Digest)
	if ok {
		w.useFinished(kept, Exported)
	}
	return err
}
