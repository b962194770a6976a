package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

func newOpsCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ops",
		Short: "List DeepSpeed ops and their requirements",
		Long: `List DeepSpeed ops and their requirements.

The names are the values of --ops; ops marked * are built by default. ARCHS are
the GPU architectures that support an op, or "-" for an op without GPU code, to
which --arch does not apply. The table also shows the DeepSpeed versions that
have an op, and what it needs to compile (--json has the versions).

STABLE is how far an op has been tested with torch's stable ABI (--abi):
  ran       computes the same results as the op built for torch's C++ ABI
  launched  launches the same device code in the same way, as recorded by a mock
            CUDA library; only a run on a GPU can verify its results
  loaded    loads, and its functions check their arguments
  none      not built for the stable ABI`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runOps(a, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	return cmd
}

func runOps(a *app, asJSON bool) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	if asJSON {
		return ui.JSON(a.stdout, newOpList(tables))
	}
	var rows [][]string
	for _, op := range tables.Ops {
		name, archs := op.Name, "-"
		if slices.Contains(wheel.DefaultOps(), op.Name) {
			name += " *"
		}
		if op.DeviceCode {
			archs = versionRange(op.MinArch, op.MaxArch, "to")
		}
		about := cmp.Or(op.Kind, "-")
		for _, need := range slices.Concat(op.Needs.Python, op.Needs.Toolkit) {
			need, _, _ = strings.Cut(need, "==")
			about += ", with " + need
		}
		rows = append(rows, []string{name, archs, versionRange(op.Since, op.Until, "to before"), string(op.StableState()), about})
	}
	return ui.Table(a.stdout, []string{"OP", "ARCHS", "DEEPSPEED", "STABLE", "DESCRIPTION"}, rows)
}

func versionRange(from, to, until string) string {
	switch {
	case from == "" && to == "":
		return "all"
	case to == "":
		return from + "+"
	}
	return strings.TrimSpace(from + " " + until + " " + to)
}
