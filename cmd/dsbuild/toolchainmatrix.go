package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// pairsDocument is the JSON document of dsbuild toolchains --matrix --json.
type pairsDocument struct {
	GPUs  []string      `json:"gpus"`
	Pairs []compat.Pair `json:"pairs"`
}

// runToolchainMatrix prints which toolchain serves each torch and Python for
// some GPUs, and below the table why others have none.
func runToolchainMatrix(a *app, gpus []string, asJSON bool) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	gpus = compat.SplitNames(gpus)
	for _, name := range gpus {
		if err := tables.CheckGPU(name); err != nil {
			return err
		}
	}
	pairs := tables.Matrix(wheel.Spec{GPUs: gpus})
	if asJSON {
		return ui.JSON(a.stdout, pairsDocument{gpus, pairs})
	}
	var pythons []string
	for _, p := range pairs {
		if !slices.Contains(pythons, p.Python) {
			pythons = append(pythons, p.Python)
		}
	}
	slices.SortFunc(pythons, wheel.CompareVersions)
	rows, reasons := matrixRows(pairs, pythons)
	if err := ui.Table(a.stdout, append([]string{"TORCH", "CUDA"}, pythons...), rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nThe toolchain for %s, by torch and Python. -: torch has no wheel for that Python.\n", strings.Join(gpus, ", "))
	for i, r := range reasons {
		fmt.Fprintf(a.stdout, "no %d: %s\n", i+1, r)
	}
	return nil
}

// matrixRows makes a row of each torch. A pair without a toolchain has the number
// of its reason.
func matrixRows(pairs []compat.Pair, pythons []string) (rows [][]string, reasons []string) {
	for _, p := range pairs {
		if len(rows) == 0 || rows[len(rows)-1][0] != p.Torch {
			row := []string{p.Torch, p.CUDA}
			for range pythons {
				row = append(row, "-")
			}
			rows = append(rows, row)
		}
		cell := string(p.CUDASource)
		if cell == "" {
			why := strings.Join(p.Why, "; ")
			at := slices.Index(reasons, why)
			if at < 0 {
				at, reasons = len(reasons), append(reasons, why)
			}
			cell = fmt.Sprintf("no %d", at+1)
		}
		rows[len(rows)-1][2+slices.Index(pythons, p.Python)] = cell
	}
	return rows, reasons
}
