package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/why"
)

func newWhyCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "why [LOG...]",
		SuggestFor: []string{"explain", "diagnose"},
		Short:      "Find the first cause in a failed job's logs",
		Long: `Find the first cause in a failed job's logs.

LOG is a file, a directory with the logs of the ranks (torchrun --log-dir,
slurm-%j_%t.out, kubectl logs, dsbuild launch --logs), or - for standard input,
the default. The cause is printed with its rank, line and time, why it happens,
what to do, and the dsbuild command that prevents it. Errors that only report
the end of another rank, of a child process or of the launcher are listed below
it. Logs are read once, with little memory.

Exit codes: 0 if the logs were read, also without a known sign of a failure; 2
if a log cannot be read.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild check" finds most of these causes before a job; "dsbuild launch lint" checks launch scripts.`,
		},
		Example: `  # The logs of all ranks of a job
  $ dsbuild why logs/

  # The output of a Slurm job, and of a pod
  $ dsbuild why slurm-4711.out
  $ kubectl logs train-worker-0 | dsbuild why`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runWhy(cmd.Context(), a, args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	return cmd
}

func runWhy(ctx context.Context, a *app, logs []string, asJSON bool) error {
	if len(logs) == 0 {
		logs = []string{"-"}
	}
	report, err := why.Read(ctx, logs, a.stdin)
	if err != nil {
		return err
	}
	if asJSON {
		return ui.JSON(a.stdout, report)
	}
	_, err = io.WriteString(a.stdout, ui.Clean(whyText(report)))
	return err
}

// whyText describes the report of why for people.
func whyText(r *why.Report) string {
	var out strings.Builder
	if c := r.Cause; c != nil {
		fmt.Fprintf(&out, "%s [%s]\n  %s\n  %s\n", c.Title, c.Sign, c.Place, c.Text)
		if c.Code != "" {
			fmt.Fprintf(&out, "  in %s\n", c.Code)
		}
		fmt.Fprintf(&out, "why: %s\n", c.Why)
		if c.Detail != "" {
			fmt.Fprintf(&out, "  %s\n", c.Detail)
		}
		fmt.Fprintf(&out, "do: %s\n", c.Hint)
		if c.Prevent != "" {
			fmt.Fprintf(&out, "prevent: %s\n", c.Prevent)
		}
	} else {
		fmt.Fprintf(&out, "no known sign of a failure in %s\n", ui.Count(r.Logs, "log"))
	}
	for i, p := range r.Also {
		if i == 3 {
			fmt.Fprintf(&out, "also: in %d more places\n", len(r.Also)-i)
			break
		}
		fmt.Fprintf(&out, "also: %s\n", p)
	}
	for _, f := range r.Followed {
		label := "then"
		if f.Warning {
			label = "warning"
		}
		fmt.Fprintf(&out, "%s: %s [%s]: %s, first %s\n", label, f.Title, f.Sign, ui.Count(f.Count, "line"), f.Place)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&out, "note: %s\n", note)
	}
	return out.String()
}
