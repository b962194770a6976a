// Package packages resolves the Python packages of toolchains that are missing in the committed lock
// (dockerfiles/packages.lock, by ci/packagelock), each to one file with its sha256.
package packages

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Query describes the packages of a toolchain.
type Query struct {
	Machine string // that builds (default x86_64)
	Torch   string // X.Y.Z, with +cuNNN if it comes from torch's own index; empty if torch is already installed
	Python  string // X.Y
	Source  compat.CUDASource
	CUDA    []string // requirements for CUDA, from dockerfiles.CUDARequirements and the ops
	Ops     []string // NAME==VERSION that ops need, which are installed without their requirements
	Pins    []string // requirements that replace those of all packages
}

// QueryOf returns the query for a toolchain. If beside is set, its torch is already installed.
func QueryOf(tc compat.Toolchain, beside bool) Query {
	needs := tc.Needs()
	q := Query{
		Machine: tc.Environment.Machine, Torch: tc.Torch, Python: tc.Python, Source: tc.CUDASource, Pins: tc.Pins,
		CUDA: dockerfiles.CUDARequirements(string(tc.CUDASource), tc.Toolkit), Ops: slices.Concat(needs.Python, needs.Node),
	}
	if tc.CUDASource == compat.CUDA13 && len(needs.Toolkit) > 0 {
		q.CUDA = append(q.CUDA, fmt.Sprintf("cuda-toolkit[%s]==%s", strings.Join(needs.Toolkit, ","), tc.Toolkit))
	}
	switch {
	case beside:
		q.Torch = ""
	case tc.Index != "":
		q.Torch += "+" + tc.Index
	}
	return q
}

// platform is the oldest on which toolchains run: torch itself needs it since 2.7.
func (q Query) platform() environment.Platform {
	return environment.Platform{Machine: cmp.Or(q.Machine, wheel.X86), Glibc: compat.LinkGlibc}
}

// Resolve asks uv for the packages of a request. Versions in known are preferred.
func Resolve(
	ctx context.Context, r environment.Resolver, q Query, known dockerfiles.Packages,
) (dockerfiles.Packages, error) {
	runtime, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		return dockerfiles.Packages{}, err
	}
	tools, err := dockerfiles.BuildRequirements()
	if err != nil {
		return dockerfiles.Packages{}, err
	}
	all, err := q.resolve(ctx, r, slices.Concat(runtime, tools, q.CUDA), slices.Concat(known.Runtime, known.Build))
	if err != nil {
		return dockerfiles.Packages{}, err
	}
	// The same versions, without the packages that only a build needs.
	part, err := q.resolve(ctx, r, runtime, all)
	if err != nil {
		return dockerfiles.Packages{}, err
	}
	out := dockerfiles.Packages{Runtime: part}
	for _, p := range part {
		if !slices.Contains(all, p) {
			return out, fmt.Errorf("uv resolves %s for a node, but a different version for the build", p)
		}
	}
	for _, p := range all {
		if !slices.Contains(part, p) {
			out.Build = append(out.Build, p)
		}
	}
	for _, op := range slices.Compact(slices.Sorted(slices.Values(q.Ops))) {
		name, version, _ := strings.Cut(op, "==")
		f, err := r.Collect.Find(ctx, name, version, q.Python, q.platform(), nil)
		if err != nil {
			return out, err
		}
		out.Build = append(out.Build, dockerfiles.Package{Name: name, Version: version, SHA256: f.SHA256})
	}
	return out, nil
}

// resolve returns the packages for some requirements, sorted by name.
func (q Query) resolve(
	ctx context.Context, r environment.Resolver, requirements []string, known []dockerfiles.Package,
) ([]dockerfiles.Package, error) {
	spec := &environment.Spec{Name: "toolchain", Python: q.Python, Torch: q.Torch, Overrides: q.Pins}
	for _, text := range requirements {
		spec.Wanted = append(spec.Wanted, environment.Text{Text: text})
	}
	var preferred []environment.File
	for _, p := range known {
		preferred = append(preferred, environment.File{Name: p.Name, Version: p.Version})
	}
	files, err := r.Files(ctx, spec, q.platform(), nil, preferred)
	if err != nil {
		return nil, err
	}
	var out []dockerfiles.Package
	for _, f := range files {
		out = append(out, dockerfiles.Package{Name: f.Name, Version: f.Version, SHA256: f.SHA256})
	}
	return out, nil
}

// Installer returns the uv that dsbuild accepts, here and on nodes.
func Installer() environment.UV {
	return environment.UV{Version: dockerfiles.UVVersion(), Sums: dockerfiles.UVSums()}
}

// NewResolver returns a resolver that reaches the indexes of a site, and files by c. The program uv and certificates of
// the site go into tmp, a directory of this process alone. environ is the user's environment.
func NewResolver(
	ctx context.Context, network pipeline.Network, c *environment.Collector, tmp string, environ []string,
) (environment.Resolver, error) {
	uv, err := environment.FindUV(ctx, Installer(), tmp, c)
	if err != nil {
		return environment.Resolver{}, err
	}
	environ, err = network.Programs(environ, tmp)
	return environment.Resolver{
		UV: uv, Installer: Installer(), Environ: environ, TorchIndex: network.TorchIndex(), Collect: c,
	}, err
}
