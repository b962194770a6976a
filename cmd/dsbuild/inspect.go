package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

func newInspectCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE.whl|DIR",
		Short: "Show a wheel's ops, GPU architectures, CPU level and glibc",
		Long: `Show what a wheel, or every wheel in DIR, contains and requires.

For each compiled extension, inspect lists the GPU architectures of its device
code (SASS and PTX), the CPU level of its instructions, the glibc and libstdc++
symbol versions it requires, and the libraries it loads. CPU is the level that
the CPU must have; "up to" is the highest level in an extension that selects
code for the CPU at run time. Several builds of one op are variants: cu12 and
cu13 for the CUDA of torch, v2 to v4 for CPU levels.

Any wheel works, not only DeepSpeed. Nothing is run, unpacked to disk or sent.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild verify-wheel" checks a wheel against its own metadata.`,
		},
		Example: `  # All wheels in dist/, or any single wheel
  $ dsbuild inspect dist
  $ dsbuild inspect flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runInspect(cmd.Context(), a, args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"Print one JSON document: an object, or an array for a directory of wheels")
	return cmd
}

func runInspect(ctx context.Context, a *app, path string, asJSON bool) error {
	files, folder, err := wheelsAt(path)
	if err != nil {
		return err
	}
	all := []wheel.Contents{}
	var damaged []error // of a directory's wheels; the others are shown
	for _, file := range files {
		c, err := wheel.Inspect(ctx, file)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			damaged = append(damaged, noWheel(err))
			continue
		}
		if !asJSON && len(all) > 0 {
			fmt.Fprintln(a.stdout)
		}
		if !asJSON {
			err = printContents(a.stdout, c)
		}
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	switch {
	case asJSON && folder:
		err = ui.JSON(a.stdout, all)
	case asJSON && len(all) == 1:
		err = ui.JSON(a.stdout, all[0])
	}
	return errors.Join(append(damaged, err)...)
}

// wheelsOf returns the wheels at several paths.
func wheelsOf(paths []string) ([]string, error) {
	var all []string
	for _, path := range paths {
		files, _, err := wheelsAt(path)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// wheelNotFound is the error of a command on wheel files.
func wheelNotFound(path string) error {
	return fault.WithHint(usagef("wheel not found: %s", path), "build a wheel with 'dsbuild wheel', or pass the path of one")
}

// wheelsAt returns the wheels at path: path itself, or the wheels in it if it is a directory.
func wheelsAt(path string) (files []string, folder bool, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, false, wheelNotFound(path)
	case err != nil:
		return nil, false, usagef("cannot read wheel: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, false, usagef("cannot read wheels: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".whl") && !e.IsDir() {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		hint := ""
		if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".dist-info") }) {
			hint = "for an unpacked wheel, specify its .whl file instead"
		}
		return nil, false, &usageError{err: fmt.Errorf("no .whl files in %s", path), hint: hint}
	}
	return files, true, nil
}

// printContents prints the human-readable form of inspect.
func printContents(w io.Writer, c wheel.Contents) error {
	f := c.Floors()
	if _, err := fmt.Fprintln(w, ui.Clean(c.Name+" "+c.Version)); err != nil {
		return err
	}
	var facts [][]string
	for _, fact := range [][]string{
		{"  build", c.Build},
		{"  tags", strings.Join(c.Tags, ", ")},
		{"  built for", builtFor(c)},
		{"  ops", strings.Join(c.Ops, ", ")},
		{"  variants", variantsOf(c)},
		{"  machine", machineNeeds(c, f)},
		{"  libraries", strings.Join(systemLibraries(c), ", ")},
		{"  requires", strings.Join(slices.DeleteFunc(slices.Clone(c.Requires), wheel.OnlyWithExtra), ", ")},
	} {
		if fact[1] != "" {
			facts = append(facts, fact)
		}
	}
	if err := ui.Table(w, nil, facts); err != nil {
		return err
	}
	if len(c.Extensions) == 0 {
		text := "  no compiled extensions for Linux"
		if len(c.Ops) > 0 {
			text += "; Windows binaries are not analyzed"
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	fmt.Fprintln(w)
	if err := ui.Table(w, []string{"EXTENSION", "SIZE", "CPU", "DEVICE CODE", "USES"}, extensionRows(c)); err != nil {
		return err
	}
	unread := map[string][]string{} // paths by the reason: a wheel may have thousands of cubins
	for _, e := range c.Extensions {
		if e.Unread != "" {
			unread[e.Unread] = append(unread[e.Unread], e.Path)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(unread)) {
		text := "not read in " + unread[why][0]
		if more := len(unread[why]) - 1; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		if _, err := fmt.Fprintln(w, ui.Clean(text+": "+why)); err != nil {
			return err
		}
	}
	return nil
}

func builtFor(c wheel.Contents) string {
	torch := c.Torch
	if c.TorchABI.IsStable() {
		torch = cmp.Or(torch, c.TorchABI.Min) + " or newer (stable ABI)"
	}
	cuda := lists.And(c.Manifest().CUDAs())
	return strings.Join(knownFacts([][2]string{{"torch ", torch}, {"CUDA ", cuda}, {"Python ", c.Python}}), ", ")
}

// variantsOf lists the variants with their ops, if the wheel has several for CUDA or for the CPU.
func variantsOf(c wheel.Contents) string {
	m, several := c.Manifest(), []string{}
	for _, v := range m.Variants {
		if v.CUDA != "" && len(m.CUDAs()) > 1 || v.CPU != "" {
			several = append(several, v.Name+" ("+strings.Join(v.Ops, ", ")+")")
		}
	}
	return strings.Join(several, ", ")
}

// knownFacts joins each title with its value. It skips empty values.
func knownFacts(all [][2]string) []string {
	var parts []string
	for _, p := range all {
		if p[1] != "" {
			parts = append(parts, p[0]+p[1])
		}
	}
	return parts
}

func machineNeeds(c wheel.Contents, f wheel.Floors) string {
	var parts []string
	for _, e := range c.Extensions {
		machine := e.Machine
		if cpu := c.CPU(); cpu != "" {
			machine = "CPU " + string(cpu)
		}
		if all := c.Manifest().CPUs(); len(all) > 1 {
			machine += " (code up to " + all[len(all)-1].Short() + ")"
		}
		if !slices.Contains(parts, machine) {
			parts = append(parts, machine)
		}
	}
	sass, ptx := c.Archs()
	newer := "newer GPUs with PTX "
	if len(sass) == 0 {
		newer = "GPU with PTX "
	}
	parts = append(parts, knownFacts([][2]string{
		{"glibc ", f.Glibc},
		{"GLIBCXX ", f.GLIBCXX},
		{"CXXABI ", f.CXXABI},
		{"GPU ", strings.Join(sass, " ")},
		{newer, strings.Join(ptx, " ")},
	})...)
	return strings.Join(parts, ", ")
}

// systemLibraries returns the libraries that the wheel needs but does not contain.
func systemLibraries(c wheel.Contents) []string {
	inside := map[string]bool{}
	for _, e := range c.Extensions {
		inside[filepath.Base(e.Path)] = true
	}
	var libs []string
	for _, e := range c.Extensions {
		for _, lib := range e.Needs {
			if !inside[lib] {
				libs = append(libs, lib)
			}
		}
	}
	slices.Sort(libs)
	return slices.Compact(libs)
}

func extensionRows(c wheel.Contents) [][]string {
	rows := make([][]string, 0, len(c.Extensions))
	for _, e := range c.Extensions {
		if e.Unread != "" {
			continue // no column is known
		}
		cpu := string(e.CPU.Requires)
		if e.CPU.Dispatch && e.CPU.Max != e.CPU.Requires {
			cpu += ", up to " + strings.TrimPrefix(string(e.CPU.Max), "x86-64-")
		}
		uses := knownFacts([][2]string{
			{"glibc ", e.Glibc}, {"GLIBCXX ", e.GLIBCXX}, {"CXXABI ", e.CXXABI}, {"RPATH ", strings.Join(e.RPath, ":")},
		})
		if e.CXX11ABI != nil && *e.CXX11ABI {
			uses = append(uses, "cxx11 strings")
		} else if e.CXX11ABI != nil {
			uses = append(uses, "old strings")
		}
		if !e.Stripped {
			uses = append(uses, "not stripped")
		}
		code := knownFacts([][2]string{{"SASS ", strings.Join(e.SASS, " ")}, {"PTX ", strings.Join(e.PTX, " ")}})
		rows = append(rows, []string{
			e.Path, ui.Size(e.Size), cmp.Or(cpu, "-"), cmp.Or(strings.Join(code, ", "), "-"), cmp.Or(strings.Join(uses, ", "), "-"),
		})
	}
	return rows
}
