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

The names are the values of --ops; ops marked * are built by default. CODE is
"device" for ops with GPU code, to which --arch applies. The table also shows
the GPU architectures and DeepSpeed versions that support an op, and the
packages that it needs to compile.

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
		name, code := op.Name, "C++"
		if slices.Contains(wheel.DefaultOps(), op.Name) {
			name += " *"
		}
		if op.DeviceCode {
			code = "device"
		}
		needs := slices.Concat(op.Needs.Python, op.Needs.Toolkit)
		rows = append(rows, []string{
			name, code, versionRange(op.MinArch, op.MaxArch, "up to "), versionRange(op.Since, op.Until, "before "),
			string(op.StableState()), cmp.Or(strings.Join(needs, ", "), "-"), cmp.Or(op.Kind, "-"),
		})
	}
	return ui.Table(a.stdout, []string{"OP", "CODE", "ARCHS", "DEEPSPEED", "STABLE", "NEEDS", "DESCRIPTION"}, rows)
}

// versionRange words a range of which either end can be open.
func versionRange(from, to, upTo string) string {
	switch {
	case from == "" && to == "":
		return "all"
	case to == "":
		return from + " or newer"
	case from == "":
		return upTo + to
	}
	return "from " + from + ", " + upTo + to
}
