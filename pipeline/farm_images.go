package pipeline

import (
	"context"
	"encoding/json"
	"io"
	"maps"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// shared is a builder on a worker that makes images for several plans once: the first plan makes
// them, the others wait and find them cached.
type shared struct {
	Builder
	worker *buildWorker
}

// Open makes the images, or waits for another plan that makes them.
func (s *shared) Open(ctx context.Context, p *Plan, log io.Writer, rep ui.Reporter) (Workspace, error) {
	leave, err := s.worker.waitForImages(ctx, imagesKey(p), rep)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.Builder.Open(ctx, p, log, rep)
}

// waitForImages waits until no other plan makes the images of this key.
func (y *buildWorker) waitForImages(ctx context.Context, key string, rep ui.Reporter) (leave func(), err error) {
	var waiting ui.Step
	for {
		y.mu.Lock()
		made, busy := y.making[key]
		if !busy {
			ready := make(chan struct{})
			y.making[key] = ready
			y.mu.Unlock()
			if waiting != nil {
				waiting.End(ui.Done, "")
			}
			return func() {
				y.mu.Lock()
				defer y.mu.Unlock()
				delete(y.making, key)
				close(ready)
			}, nil
		}
		y.mu.Unlock()
		if waiting == nil {
			waiting = rep.Step("toolchain: wait for another build that makes the same one")
		}
		select {
		case <-made:
		case <-ctx.Done():
			waiting.End(ui.Failed, "interrupted")
			return nil, context.Cause(ctx)
		}
	}
}

// imagesKey is the same for plans that share the large parts of their images: the system,
// torch, the toolkit. The needs of single ops come after these.
func imagesKey(p *Plan) string {
	args := maps.Clone(p.Args)
	for _, late := range []string{"SYSTEM", "COMPONENTS", "PACKAGES"} {
		delete(args, late)
	}
	// Strings and maps of strings: this cannot fail.
	key, _ := json.Marshal([]any{p.Base, p.Base.File, p.Dockerfile, p.Context, args})
	return string(key)
}

// DiskRequirements returns those of the builder.
func (s *shared) DiskRequirements(ctx context.Context, p *Plan) []DiskRequirement {
	if b, ok := s.Builder.(DiskRequirer); ok {
		return b.DiskRequirements(ctx, p)
	}
	return nil
}
