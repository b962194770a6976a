package pipeline

import (
	"context"
	"encoding/json"
	"io"
	"maps"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// shared is a builder on a yard where images that several plans need are made
// once: the first to come makes them, the others wait and find them cached.
type shared struct {
	Builder
	yard *yard
}

// Open makes the images, or waits for whoever is making them.
func (s *shared) Open(ctx context.Context, p *Plan, log io.Writer, rep ui.Reporter) (Workspace, error) {
	leave, err := s.yard.enter(ctx, imagesKey(p), rep)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.Builder.Open(ctx, p, log, rep)
}

// enter waits until nobody makes the images of this key.
func (y *yard) enter(ctx context.Context, key string, rep ui.Reporter) (leave func(), err error) {
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
			waiting = rep.Step("toolchain: wait for another that makes the same")
		}
		select {
		case <-made:
		case <-ctx.Done():
			waiting.End(ui.Failed, "interrupted")
			return nil, context.Cause(ctx)
		}
	}
}

// imagesKey is the same for plans that share what is large in their images:
// the system, torch, the toolkit. What single ops ask for comes after that.
func imagesKey(p *Plan) string {
	args := maps.Clone(p.Args)
	for _, late := range []string{"SYSTEM", "COMPONENTS", "PACKAGES"} {
		delete(args, late)
	}
	// Strings and maps of strings: this cannot fail.
	key, _ := json.Marshal([]any{p.Base, p.Base.File, p.Dockerfile, p.Context, args})
	return string(key)
}

// Rooms is what the builder says.
func (s *shared) Rooms(ctx context.Context, p *Plan) []Room {
	if b, ok := s.Builder.(Roomer); ok {
		return b.Rooms(ctx, p)
	}
	return nil
}
