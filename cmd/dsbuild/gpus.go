package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

func newGPUsCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gpus [NAME...]",
		Short: "List GPUs and their compute capability",
		Long: `List known GPUs and their compute capability.

The table also shows the CUDA versions that compile for a GPU and the newest
torch that runs on it. NAME is a GPU's common name, or its name in nvidia-smi.
It may include a suffix such as Ti, SUPER or Laptop, a memory size or a form
factor: these variants have the same compute capability and are not listed.`,
		Example: `  # All GPUs, or some by name
  $ dsbuild gpus
  $ dsbuild gpus V100 "NVIDIA A100-SXM4-80GB" "RTX 4070 Ti SUPER"`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error { return runGPUs(a, args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	return cmd
}

func runGPUs(a *app, args []string, asJSON bool) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	names := compat.SplitNames(args)
	gpus, err := chosenGPUs(tables, names)
	if err != nil {
		return err
	}
	if asJSON {
		return ui.JSON(a.stdout, newGPUList(tables, gpus))
	}
	const name = 5 // the column
	var rows [][]string
	for _, g := range gpus {
		cuda := "-"
		if with := compat.Compilers(tables.CUDAs, g.Arch); len(with) > 0 {
			cuda = with[len(with)-1] + " to " + with[0]
		}
		row := []string{g.Arch, g.Class, cpuOf(g), cuda, cmp.Or(newestTorch(tables, g), "-"), g.Name}
		if last := len(rows) - 1; len(names) == 0 && last >= 0 && slices.Equal(rows[last][:name], row[:name]) {
			rows[last][name] += ", " + g.Name // in the list of all, GPUs that differ only by name share a row
			continue
		}
		rows = append(rows, row)
	}
	return ui.Table(a.stdout, []string{"ARCH", "CLASS", "CPU", "CUDA", "TORCH UP TO", "GPU"}, rows)
}

// chosenGPUs returns the GPUs that match the names, or all GPUs without a name.
func chosenGPUs(tables *compat.Tables, names []string) ([]compat.GPU, error) {
	if len(names) == 0 {
		return tables.GPUs, nil
	}
	var gpus []compat.GPU
	var unknown []string
	for _, name := range names {
		found := tables.GPUsNamed(name)
		var why *compat.ConflictError
		if len(found) == 0 && errors.As(tables.CheckGPU(name), &why) {
			unknown = append(unknown, why.Conflicts[0].What)
		}
		gpus = append(gpus, found...)
	}
	if len(unknown) > 0 {
		return nil, &usageError{err: errors.New(strings.Join(unknown, "; ")), hint: "list all GPUs: dsbuild gpus"}
	}
	return gpus, nil
}

// cpuOf is the machine that a GPU is in.
func cpuOf(g compat.GPU) string { return cmp.Or(g.Machine, wheel.X86) }

// newestTorch is the newest for the machine of a GPU that itself runs on the GPU.
func newestTorch(tables *compat.Tables, g compat.GPU) string {
	return tables.NewestTorch(g.Arch, cpuOf(g))
}
