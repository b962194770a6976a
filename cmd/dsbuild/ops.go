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
		Short: "List DeepSpeed's operators and their requirements",
		Long: `List the operators of DeepSpeed that --ops takes: whether they have device code
(--arch matters only for these), the archs they can be compiled for, the
releases of DeepSpeed that have them, the packages they need, and how far they
are proven with torch's stable ABI (--abi):

  ran       it computed the same as the operator of torch's C++ interface
  launched  it has the same device code as that one and launches it in the same
            way, recorded by a library in place of CUDA; that either computes
            the right thing, only a GPU can show
  loaded    it was loaded, and its functions check their arguments
  none      dsbuild does not build it so

dsbuild compiles those with a * when --ops is not given.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runOps(a, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
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
		needs := slices.Concat(op.Needs.Debian, op.Needs.Python, op.Needs.Toolkit)
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
		return "from " + from
	case from == "":
		return upTo + to
	}
	return "from " + from + ", " + upTo + to
}
