package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func newGPUsCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gpus [NAME...]",
		Short: "List GPUs with their compute capability",
		Long: `List the GPUs that dsbuild knows with their compute capability, the CUDA releases
that compile for it, and the newest torch that runs on them. NAME is a GPU's usual
name, or its name in nvidia-smi.

Ti, SUPER and Laptop variants, memory sizes and form factors are not listed. NAME
may have them: their compute capability is that of the plain name.`,
		Example: `  dsbuild gpus
  dsbuild gpus V100 "NVIDIA A100-SXM4-80GB" "RTX 4070 Ti SUPER"`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runGPUs(a, args, asJSON, cmd.CommandPath())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

func runGPUs(a *app, names []string, asJSON bool, command string) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	names = compat.SplitNames(names)
	gpus, err := chosenGPUs(tables, names, command)
	if err != nil {
		return err
	}
	if asJSON {
		return ui.JSON(a.stdout, newGPUsDocument(tables, gpus))
	}
	rows := gpuRows(gpus, len(names) == 0)
	for i, row := range rows {
		arch, class, cpu, names := row[0], row[1], row[2], row[3]
		rows[i] = []string{arch, class, cpu, cudaRange(tables, arch), orDash(newestTorch(tables, arch, cpu)), names}
	}
	return ui.Table(a.stdout, []string{"ARCH", "CLASS", "CPU", "CUDA", "TORCH UP TO", "GPU"}, rows)
}

// chosenGPUs are those that the names can mean; all without a name.
func chosenGPUs(tables *compat.Tables, names []string, command string) ([]compat.GPU, error) {
	if len(names) == 0 {
		return tables.GPUs, nil
	}
	var gpus []compat.GPU
	var unknown []string
	for _, name := range names {
		found := tables.GPUsNamed(name)
		if len(found) == 0 {
			unknown = append(unknown, `"`+name+`"`+suggestGPUs(tables.NearestGPUs(name)))
		}
		gpus = append(gpus, found...)
	}
	if len(unknown) > 0 {
		return nil, usageErrorf(command, "the tables have no GPU %s; 'dsbuild gpus' lists all", strings.Join(unknown, ", "))
	}
	return gpus, nil
}

// suggestGPUs names the GPUs that may be meant; few words resemble a GPU.
func suggestGPUs(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (do you mean " + strings.Join(names, ", ") + "?)"
}

// gpuRows are arch, class, CPU and name of each; folded, those that differ by
// name alone share a row.
func gpuRows(gpus []compat.GPU, fold bool) [][]string {
	var rows [][]string
	for _, g := range gpus {
		cpu := cpuOf(g)
		last := len(rows) - 1
		if fold && last >= 0 && rows[last][0] == g.Arch && rows[last][1] == g.Class && rows[last][2] == cpu {
			rows[last][3] += ", " + g.Name
			continue
		}
		rows = append(rows, []string{g.Arch, g.Class, cpu, g.Name})
	}
	return rows
}

const x86 = "x86_64"

// cpuOf is the machine that a GPU is in.
func cpuOf(g compat.GPU) string {
	if g.Machine == "" {
		return x86
	}
	return g.Machine
}

// newestTorch is the newest that itself runs on an arch; the tables know the
// x86_64 wheels alone.
func newestTorch(tables *compat.Tables, arch, cpu string) string {
	if cpu != x86 {
		return ""
	}
	return tables.NewestTorch(arch)
}

// cudaRange says from which to which CUDA an arch is compiled for.
func cudaRange(tables *compat.Tables, arch string) string {
	with := compat.Compilers(tables.CUDAs, arch)
	if len(with) == 0 {
		return "-"
	}
	return with[len(with)-1] + " to " + with[0]
}

// gpusDocument is the JSON document of dsbuild gpus --json.
type gpusDocument struct {
	compat.Origin
	GPUs []gpuEntry `json:"gpus"`
}

type gpuEntry struct {
	compat.GPU
	CUDA  []string `json:"cuda"`            // that compile for it, newest first
	Torch string   `json:"torch,omitempty"` // the newest that itself runs on it
}

func newGPUsDocument(tables *compat.Tables, gpus []compat.GPU) gpusDocument {
	doc := gpusDocument{Origin: tables.Origins["gpus"], GPUs: []gpuEntry{}}
	for _, g := range gpus {
		g.Machine = cpuOf(g)
		doc.GPUs = append(doc.GPUs, gpuEntry{g, compat.Compilers(tables.CUDAs, g.Arch), newestTorch(tables, g.Arch, g.Machine)})
	}
	return doc
}
