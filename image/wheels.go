package image

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/deploy/wheels"
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
		w, err := loadCompanion(ctx, p)
		if err != nil {
			return nil, err
		}
		others = append(others, w)
	}
	switch {
	case len(main) == 0:
		return nil, usagef("name it with another --wheel", "no wheel of DeepSpeed among %s", strings.Join(paths, ", "))
	case len(main) > 1:
		names := make([]string, len(main))
		for i, w := range main {
			names[i] = w.Manifest.Name
		}
		return nil, usagef("name one of them with --wheel", "%d wheels of DeepSpeed: %s", len(main), strings.Join(names, ", "))
	}
	return append(main, others...), nil
}

// loadCompanion verifies a wheel of another distribution.
func loadCompanion(ctx context.Context, p string) (wheels.Wheel, error) {
	v, err := wheel.Verify(ctx, p)
	if _, closed := err.(*fs.PathError); closed { //nolint:errorlint // a damaged wheel may wrap one
		return wheels.Wheel{}, usagef("", "no wheel: %w", err)
	}
	if err != nil {
		return wheels.Wheel{}, err
	}
	if err := v.Err(); err != nil {
		return wheels.Wheel{}, err
	}
	if wheel.FromTorch(v.Contents.Name) {
		return wheels.Wheel{}, usagef("an image keeps the torch of its base", "%s: %w", p, fmt.Errorf("it is a wheel of %s", v.Contents.Name))
	}
	m := v.Contents.Manifest()
	m.Name, m.SHA256, m.Size = filepath.Base(p), v.SHA256, v.Size
	return wheels.Wheel{Path: p, Manifest: m, Version: v.Contents.Version, Requires: v.Contents.Requires}, nil
}
