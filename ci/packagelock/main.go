// Command packagelock resolves the Python packages of every toolchain in the tables and writes
// dockerfiles/packages.lock. It needs PyPI, and is run by make packages-lock. Locked packages keep their versions
// if the requirements allow it; -upgrade selects the newest releases.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/packages"
)

// atOnce is the number of toolchains that are resolved in parallel.
const atOnce = 4

func main() {
	upgrade := flag.Bool("upgrade", false, "use the newest releases, regardless of the lock")
	out := flag.String("o", filepath.Join("dockerfiles", dockerfiles.LockName), "the `FILE` to write")
	flag.Parse()
	if err := run(context.Background(), *upgrade, *out); err != nil {
		fmt.Fprintln(os.Stderr, "packagelock:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, upgrade bool, out string) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "packagelock-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{}, os.Getenv)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "dsbuild", "env")
	files := &environment.Collector{Cache: cache, Indexes: network.FileIndexes(), Torch: network.TorchIndex(), Client: network.IndexClient()}
	resolver, err := packages.NewResolver(ctx, network, files, tmp, os.Environ())
	if err != nil {
		return err
	}
	if resolver.Environ, err = withCache(resolver.Environ, tmp); err != nil {
		return err
	}
	lists, err := resolveAll(ctx, resolver, tables, upgrade)
	if err != nil {
		return err
	}
	inputs, err := inputsOf(tables)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(formatLock(lists, inputs)), 0o644)
}

// withCache makes uv cache PyPI's pages for an hour, because every toolchain needs the same pages.
func withCache(environ []string, dir string) ([]string, error) {
	const config = "[[index]]\nurl = \"https://pypi.org/simple\"\ndefault = true\n" +
		"cache-control = { api = \"max-age=3600\", files = \"max-age=3600\" }\n"
	file := filepath.Join(dir, "uv.toml")
	environ = slices.DeleteFunc(environ, func(v string) bool { return strings.HasPrefix(v, "UV_") })
	return append(environ, "UV_PYTHON_DOWNLOADS=never", "UV_CONFIG_FILE="+file), os.WriteFile(file, []byte(config), 0o600)
}

// resolveAll resolves every torch version in the tables with each of its Python versions.
func resolveAll(ctx context.Context, r environment.Resolver, tables *compat.Tables, upgrade bool) (map[lockKey][]dockerfiles.Package, error) {
	tools, err := dockerfiles.BuildRequirements()
	if err != nil {
		return nil, err
	}
	lists := map[lockKey][]dockerfiles.Package{}
	var mutex sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, torch := range tables.Torches {
		for _, python := range torch.Pythons {
			group.Go(func() error {
				q := tableRequest(tables, torch, python)
				var known dockerfiles.Packages
				if !upgrade {
					known, _ = dockerfiles.LockedPackages(torch.Version, python, string(q.Source), nil, nil)
				}
				got, err := packages.Resolve(ctx, r, q, known)
				if err != nil {
					return fmt.Errorf("torch %s, Python %s: %w", torch.Version, python, err)
				}
				mutex.Lock()
				defer mutex.Unlock()
				fmt.Fprintf(os.Stderr, "torch %s, Python %s: %d packages\n", torch.Version, python, len(got.Runtime)+len(got.Build))
				addSections(lists, q, got, tools)
				return nil
			})
		}
	}
	for _, q := range armRequests(tables) {
		group.Go(func() error {
			known := dockerfiles.Packages{Runtime: dockerfiles.LockedForArm(q.Python)}
			if upgrade {
				known = dockerfiles.Packages{}
			}
			got, err := packages.Resolve(ctx, r, q, known)
			if err != nil {
				return fmt.Errorf("%s, torch %s, Python %s: %w", q.Machine, q.Torch, q.Python, err)
			}
			mutex.Lock()
			defer mutex.Unlock()
			lists[lockKey{Kind: dockerfiles.ArmSection, Torch: q.Torch, Python: q.Python}] = slices.DeleteFunc(got.Runtime, dockerfiles.Package.HasStandIn)
			return nil
		})
	}
	return lists, group.Wait()
}

// addSections adds the packages of a request to the sections of the lock.
func addSections(lists map[lockKey][]dockerfiles.Package, q packages.Query, got dockerfiles.Packages, tools []string) {
	key := lockKey{Kind: dockerfiles.RuntimeSection, Torch: q.Torch, Python: q.Python}
	lists[key] = got.Runtime
	for _, p := range got.Build {
		named := func(requirement string) bool { return dockerfiles.RequirementName(requirement) == p.Name }
		switch {
		case slices.ContainsFunc(tools, named):
			key.Kind = dockerfiles.ToolsSection
		case slices.ContainsFunc(q.Ops, named):
			key.Kind = dockerfiles.OpsSection
		default:
			key.Kind = string(q.Source)
		}
		lists[key] = append(lists[key], p)
	}
}
