package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func newToolchainsCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "toolchains",
		Short: "List supported torch, CUDA, Python and compiler versions",
		Long: `List supported torch, CUDA, Python and compiler versions.

The tables are the toolchains (where nvcc and the CUDA headers come from), the
base images with their glibc, Python and gcc versions, the GPU architectures of
each CUDA version, and the CUDA and Python versions of each torch version.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild wheel --dry-run" shows the combination chosen for a wheel, or why none is compatible.`,
		},
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runToolchains(a, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	return cmd
}

func runToolchains(a *app, asJSON bool) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	if asJSON {
		return ui.JSON(a.stdout, newToolchainList(tables))
	}
	var bases, cudas, torches [][]string
	for _, b := range tables.Bases {
		if !b.NamedOnly {
			bases = append(bases, []string{b.Name, b.Ref, b.Glibc, strings.Join(b.Pythons, ", "), strings.Join(b.GCCs, ", ")})
		}
	}
	for _, c := range tables.CUDAs {
		cudas = append(cudas, []string{c.Version, strings.Join(c.Archs, " "), c.NewestGCC, c.Driver})
	}
	for _, t := range tables.Torches {
		pythons := t.Pythons[0] + " to " + t.Pythons[len(t.Pythons)-1]
		torches = append(torches, []string{t.Version, t.CUDA, pythons, strings.Join(t.Archs, " ")})
	}
	for i, section := range []struct {
		header []string
		rows   [][]string
	}{
		{[]string{"TOOLCHAIN", "CUDA", "DEVICE CODE", "TORCH FOR CUDA", "CUDA SOURCE"}, cudaSourceRows(tables)},
		{[]string{"BASE", "IMAGE", "GLIBC", "PYTHON", "GCC"}, bases},
		{[]string{"CUDA", "ARCHS", "NEWEST GCC", "OLDEST DRIVER"}, foldVersions(cudas)},
		{[]string{"TORCH", "CUDA", "PYTHON", "TORCH'S ARCHS"}, foldVersions(torches)},
	} {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := ui.Table(a.stdout, section.header, section.rows); err != nil {
			return err
		}
	}
	return nil
}

func cudaSourceRows(tables *compat.Tables) [][]string {
	var rows [][]string
	for _, r := range tables.CUDASources {
		device := "no"
		if r.Nvcc {
			device = "yes"
		}
		cuda, torch := r.CUDA, r.TorchCUDA+".x"
		cuda = cmp.Or(cuda, "torch's")
		if r.TorchCUDA == "" {
			cuda, torch = "any", "same major version"
		}
		rows = append(rows, []string{string(r.Source), cuda, device, torch, r.Title})
	}
	return rows
}

// foldVersions merges adjacent rows, newest first, that differ only in their version.
func foldVersions(rows [][]string) [][]string {
	var out [][]string
	newest := ""
	for _, row := range rows {
		last := len(out) - 1
		if last >= 0 && slices.Equal(out[last][1:], row[1:]) {
			out[last][0] = row[0] + " to " + newest
			continue
		}
		newest = row[0]
		out = append(out, slices.Clone(row))
	}
	return out
}
