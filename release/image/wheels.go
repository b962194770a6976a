package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/wheel"
)

// LoadWheels verifies wheels, files or folders: one of DeepSpeed, which comes first in the
// result, and any companions.
func LoadWheels(ctx context.Context, paths []string, cache wheels.Cache) ([]wheels.Wheel, error) {
	var main, others []wheels.Wheel
	for _, p := range paths {
		name, err := wheel.ParseFileName(filepath.Base(p))
		if info, statErr := os.Stat(p); err != nil || statErr != nil || info.IsDir() || pypi.CanonPackageName(name.Name) == "deepspeed" {
			found, err := wheels.Load(ctx, p, cache)
			if err != nil {
				return nil, err
			}
			main = append(main, found...)
			continue
		}
		w, contents, err := wheels.Read(ctx, p)
		if err != nil {
			return nil, err
		}
		if wheel.FromTorch(contents.Name) {
			return nil, usagef("an image keeps the torch of its base", "%s: it is a wheel of %s", p, contents.Name)
		}
		others = append(others, w)
	}
	switch {
	case len(main) == 0:
		return nil, usagef("name it with another --wheel", "no wheel of DeepSpeed among %s", strings.Join(paths, ", "))
	case len(main) > 1:
		names := each.Map(main, func(w wheels.Wheel) string { return w.Manifest.Name })
		return nil, usagef("name one of them with --wheel", "%d wheels of DeepSpeed: %s", len(main), strings.Join(names, ", "))
	}
	return append(main, others...), nil
}
