package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/pipeline/packages"
	"github.com/dsbuild/dsbuild/wheel"
)

// inputsMark begins the comment with the digest of the requests that were resolved.
const inputsMark = "# inputs sha256:"

// lockKey identifies a list of packages in the lock.
type lockKey struct{ Kind, Torch, Python string }

// formatLock writes the lock of lists of packages. A package that several toolchains share is in
// one section for all of them. inputs identifies the requests that were resolved.
func formatLock(lists map[lockKey][]dockerfiles.Package, inputs string) string {
	users := map[string]map[string][]string{} // of kind and package: Pythons by torch
	for _, key := range slices.SortedFunc(maps.Keys(lists), func(a, b lockKey) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Torch, b.Torch), strings.Compare(a.Python, b.Python))
	}) {
		for _, p := range lists[key] {
			line := key.Kind + "\n" + p.String() + " " + p.SHA256
			if users[line] == nil {
				users[line] = map[string][]string{}
			}
			users[line][key.Torch] = append(users[line][key.Torch], key.Python)
		}
	}
	sections := map[string][]string{} // lines by header
	for line, pythons := range users {
		kind, line, _ := strings.Cut(line, "\n")
		torches := map[string][]string{} // by the Pythons that they share
		for _, torch := range slices.Sorted(maps.Keys(pythons)) {
			have := strings.Join(pythons[torch], ",")
			torches[have] = append(torches[have], torch)
		}
		for have, list := range torches {
			header := fmt.Sprintf("[%s torch=%s python=%s]", kind, strings.Join(list, ","), have)
			sections[header] = append(sections[header], line)
		}
	}
	var b strings.Builder
	b.WriteString("# Python packages of the toolchains, each with the sha256 of the one file that may be installed,\n# for Linux on x86_64, and in the sections aarch64 for that machine. Written by ci/packagelock: make packages-lock\n" + inputsMark + inputs + "\n")
	for _, header := range slices.Sorted(maps.Keys(sections)) {
		slices.Sort(sections[header])
		b.WriteString("\n" + header + "\n" + strings.Join(sections[header], "\n") + "\n")
	}
	return b.String()
}

// tableRequest returns the request for a row of the tables, with the needs of every op.
func tableRequest(t *compat.Tables, torch compat.Torch, python string) packages.Query {
	q := packages.Query{Torch: torch.Version, Python: python, Pins: torch.PinsFor(python), Source: compat.CUDA12}
	toolkit := torch.CUDA
	if torch.Toolkit != "" {
		q.Source, toolkit = compat.CUDA13, torch.Toolkit
	} else if !strings.HasPrefix(torch.CUDA, "12.") {
		q.Source = compat.Debian12
	}
	q.CUDA = dockerfiles.CUDARequirements(string(q.Source), toolkit)
	for _, op := range t.Ops {
		if len(op.Needs.CUDASources) > 0 && !slices.Contains(op.Needs.CUDASources, q.Source) {
			continue
		}
		q.Ops = append(q.Ops, slices.Concat(op.Needs.Python, op.Needs.Node)...)
		for _, part := range op.ToolkitParts() {
			if q.Source == compat.CUDA13 {
				q.CUDA = append(q.CUDA, fmt.Sprintf("cuda-toolkit[%s]==%s", part, toolkit))
			}
		}
	}
	return q
}

// armRequests returns the requests for the smoke tests of wheels for aarch64 that x86_64 builds: the newest torch, for the Python of
// each base with cross compilers.
func armRequests(t *compat.Tables) []packages.Query {
	var out []packages.Query
	for _, base := range t.Bases {
		if !base.Cross {
			continue
		}
		for _, python := range base.Pythons {
			torch := t.Torches[0] // the newest
			out = append(out, packages.Query{Machine: wheel.Arm, Torch: torch.Version, Python: python, Pins: torch.PinsFor(python)})
		}
	}
	return out
}

// inputsOf returns a digest of the lock's inputs: the requests of all table entries, and the pins of this
// program's own requirements.
func inputsOf(t *compat.Tables) (string, error) {
	runtime, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		return "", err
	}
	tools, err := dockerfiles.BuildRequirements()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %s\n", runtime, tools, environment.Platform{Machine: "x86_64", Glibc: compat.LinkGlibc})
	for _, torch := range t.Torches {
		for _, python := range torch.Pythons {
			fmt.Fprintf(h, "%+v\n", tableRequest(t, torch, python))
		}
	}
	for _, q := range armRequests(t) {
		fmt.Fprintf(h, "%+v\n", q)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
