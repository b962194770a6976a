package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

func newVerifyWheelCommand(a *app) *cobra.Command {
	var asJSON bool
	var policy string
	cmd := &cobra.Command{
		Use:   "verify-wheel FILE.whl",
		Short: "Check a wheel against its own metadata",
		Long: `verify-wheel opens a wheel and checks it against its own metadata: the hashes in
its RECORD, its tags against the glibc its extensions need, the torch it
requires, and, for a wheel that dsbuild built, the manifest and the SBOM inside
it against its code: ops, GPU architectures, CPU level. It also compares the
files beside the wheel: SHA256SUMS, the manifest, the provenance statement.

With --policy it also judges the wheel as deploy does: who signed its statement,
and what the statement says.

It names every difference, and then exits with 4.` + whichCheck,
		Example: `  dsbuild verify-wheel dist/deepspeed-*.whl
  dsbuild verify-wheel --policy policy.yaml dist/deepspeed-*.whl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := args[0]
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				return usagef("%s is a folder: give a .whl file", file)
			}
			rules, err := a.readPolicy(policy)
			if err != nil {
				return err
			}
			v, err := wheel.Verify(cmd.Context(), file)
			if err != nil {
				return noWheel(err)
			}
			outcome := v.Err()
			if rules != nil {
				check := wheel.Check{Name: policyCheck, Against: policy, Damage: []string{}}
				if _, refused := rules.Accept(file, v.SHA256, time.Now()); refused != nil {
					check.Damage, outcome = []string{refused.Error()}, errors.Join(outcome, refused)
				}
				v.Checks = append(v.Checks, check)
			}
			if asJSON {
				return errors.Join(ui.JSON(a.stdout, v), outcome)
			}
			rows := make([][]string, 0, len(v.Checks))
			for _, c := range v.Checks {
				result := "ok"
				switch {
				case c.Skipped:
					result = "skipped"
				case len(c.Damage) > 0 && c.Name == policyCheck:
					result = "REFUSED"
				case len(c.Damage) > 0:
					result = "DAMAGED"
				}
				rows = append(rows, []string{c.Name, result, c.Against})
			}
			if err := ui.Table(a.stdout, []string{"CHECK", "RESULT", "AGAINST"}, rows); err != nil {
				return err
			}
			if outcome != nil {
				return outcome
			}
			_, err = fmt.Fprintf(a.stdout, "%s matches its metadata: %s, sha256 %s\n", ui.Clean(relativePath(file)), ui.Size(v.Size), v.SHA256)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.Flags().StringVar(&policy, "policy", "", "also judge the wheel by the policy in `FILE` (docs/signing.md)")
	return cmd
}

// noWheel makes a wheel that is missing or must not be read wrong usage of a
// command: it says nothing of the wheel.
func noWheel(err error) error {
	if _, closed := err.(*fs.PathError); closed { //nolint:errorlint // a damaged wheel may wrap one
		return usagef("no wheel: %w", err)
	}
	return err
}
