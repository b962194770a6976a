package planner

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/packages"
)

// packageLookup resolves the Python packages of toolchains that the lock does not have, each once.
type packageLookup struct {
	network pipeline.Network
	environ []string
	found   map[string]dockerfiles.Packages // by request
}

// find returns the packages of a toolchain, and whether the lock has them. If beside is set, its torch is already
// installed.
func (l *packageLookup) find(
	ctx context.Context, tc compat.Toolchain, beside bool,
) (_ dockerfiles.Packages, locked bool, err error) {
	if have, locked := pipeline.LockedPackages(tc); locked {
		return have, true, nil
	}
	q := packages.QueryOf(tc, beside)
	key := fmt.Sprintf("%+v", q)
	if have, ok := l.found[key]; ok {
		return have, false, nil
	}
	tmp, err := scratch.New("")
	if err != nil {
		return dockerfiles.Packages{}, false, err
	}
	defer tmp.Close()
	files := &environment.Collector{
		Cache: filepath.Join(xdg.CacheHome, "dsbuild", "env"), Indexes: l.network.FileIndexes(),
		Torch: l.network.TorchIndex(), Client: l.network.IndexClient(),
	}
	resolver, err := packages.NewResolver(ctx, l.network, files, tmp.Path, l.environ)
	if err != nil {
		return dockerfiles.Packages{}, false, err
	}
	// The versions that the lock has for the torch most like this one are preferred, so that a plan changes only if its
	// requirements do.
	var near dockerfiles.Packages
	for _, torch := range compat.NearestVersions(tc.Torch, dockerfiles.LockedTorches(tc.Python)) {
		if found, ok := dockerfiles.LockedPackages(torch, tc.Python, string(tc.CUDASource), nil, nil); ok {
			near = found
			break
		}
	}
	got, err := packages.Resolve(ctx, resolver, q, near)
	if err != nil {
		err = fmt.Errorf("the Python packages of a toolchain with torch %s for Python %s, which is not in dsbuild's tables: %w",
			tc.Torch, tc.Python, err)
		return got, false, fault.WithHint(err,
			"check --index-url, or use a torch of dsbuild's tables: dsbuild toolchains")
	}
	l.found[key] = got
	return got, false, nil
}
