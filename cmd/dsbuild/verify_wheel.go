package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

func newVerifyWheelCommand(a *app) *cobra.Command {
	var asJSON bool
	var policy string
	cmd := &cobra.Command{
		Use:   "verify-wheel FILE.whl|DIR...",
		Short: "Check wheels against their own metadata",
		Long: `Check wheels, or every wheel in DIR, against their own metadata.

The hashes in RECORD, the glibc of the platform tags and the required torch are
checked. For wheels built by dsbuild, the embedded manifest and SBOM must match
the code (ops, GPU architectures, CPU level), and the sidecar files (SHA256SUMS,
manifest, provenance attestation) must match the wheel.

With --policy, each wheel must also satisfy the signing policy, as in a deploy.
If anything does not match, all differences are listed and the exit code is 4.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild inspect" shows the contents of any wheel; "dsbuild verify" checks what the nodes run.`,
		},
		Example: `  # Check all wheels in dist/, and their signatures
  $ dsbuild verify-wheel dist
  $ dsbuild verify-wheel --policy policy.yaml dist/deepspeed-*.whl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVerifyWheel(cmd.Context(), a, args, policy, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document: an array of wheels")
	cmd.Flags().StringVar(&policy, "policy", "", "`FILE` Signing policy that each wheel must satisfy")
	return cmd
}

func runVerifyWheel(ctx context.Context, a *app, paths []string, policy string, asJSON bool) error {
	rules, err := a.readPolicy(policy)
	if err != nil {
		return err
	}
	files, err := wheelsOf(paths)
	if err != nil {
		return err
	}
	all := []wheel.Verification{}
	var failed []error // of some wheels; the others are checked
	for _, file := range files {
		v, err := verifyWheel(ctx, file, policy, rules)
		failed = append(failed, err)
		switch {
		case ctx.Err() != nil:
			return err
		case v.Checks == nil:
			continue
		case !asJSON && len(all) > 0:
			fmt.Fprintln(a.stdout)
		}
		all = append(all, v)
		if !asJSON {
			failed = append(failed, printVerification(a.stdout, v, err == nil))
		}
	}
	if asJSON {
		failed = append(failed, ui.JSON(a.stdout, all))
	}
	return errors.Join(failed...)
}

// verifyWheel compares a wheel with its metadata and the policy, if there is one. Without checks, the file cannot be
// read as a wheel.
func verifyWheel(ctx context.Context, file, policy string, rules *signing.Policy) (wheel.Verification, error) {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return wheel.Verification{}, noWheel(err)
	}
	err = v.Err()
	if rules != nil {
		check := wheel.Check{Name: policyCheck, Against: policy, Damage: []string{}}
		if _, refused := rules.Accept(file, v.SHA256, time.Now()); refused != nil {
			check.Damage, err = []string{refused.Error()}, errors.Join(err, refused)
		}
		v.Checks = append(v.Checks, check)
	}
	return v, err
}

// printVerification prints the checks of a wheel, and the verdict.
func printVerification(w io.Writer, v wheel.Verification, accepted bool) error {
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
	verdict := "matches its metadata"
	if !accepted {
		verdict = "is rejected"
	}
	err := ui.Table(w, []string{"CHECK", "RESULT", "AGAINST"}, rows)
	_, last := fmt.Fprintf(w, "%s %s: %s, sha256 %s\n", ui.Clean(relativePath(v.Path)), verdict, ui.Size(v.Size), v.SHA256)
	return errors.Join(err, last)
}

// noWheel turns an error about a missing or unreadable file into a usage error, because it is not about the wheel.
func noWheel(err error) error {
	if e, closed := err.(*fs.PathError); closed { //nolint:errorlint // a damaged wheel may wrap one
		if errors.Is(err, fs.ErrNotExist) {
			return wheelNotFound(e.Path)
		}
		return usagef("cannot read wheel: %w", err)
	}
	return err
}
