package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/launch/lint"
)

func newLintCommand(a *app) *cobra.Command {
	var asJSON, rules, notes bool
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find problems in launch scripts that hang a job or lose nodes",
		Long: `Find problems in launch scripts that hang a job or lose nodes.

FILE is any sh or bash script (sbatch, srun, torchrun, accelerate, JAX, ...), or
- for standard input; scripts are not run. --notes also reports habits that
rarely affect a job. A comment in a file silences a rule there:
# dsbuild: ignore RULE

Exit codes: 0 if there are no errors or warnings; 1 if there are; 2 if a file
cannot be read or is not an sh or bash script. Notes do not affect the exit
code.`,
		Example: `  # Check a script
  $ dsbuild launch lint train.sbatch

  # Explain all rules
  $ dsbuild launch lint --rules`,
		Args: func(cmd *cobra.Command, args []string) error {
			if rules { // RunE rejects files
				return nil
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case rules && len(args) > 0:
				return usagef("unexpected argument %q: --rules does not read files", args[0])
			case rules:
				return printRules(a, asJSON)
			}
			return runLint(cmd.Context(), a, args, notes, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	cmd.Flags().BoolVar(&notes, "notes", false, "Also report notes")
	cmd.Flags().BoolVar(&rules, "rules", false, "Explain all rules instead of reading files")
	return cmd
}

// runLint checks the files and prints what it finds.
func runLint(ctx context.Context, a *app, files []string, notes, asJSON bool) error {
	var all []lint.Finding
	var failed []error
	var idle []string
	for _, file := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		found, launches, err := a.lintFile(file)
		if !notes {
			found = slices.DeleteFunc(found, func(f lint.Finding) bool { return f.Severity == lint.Note })
		}
		all = append(all, found...)
		if err == nil && !launches {
			idle = append(idle, file)
		}
		failed = append(failed, err)
	}
	var err error
	switch {
	case asJSON:
		err = ui.JSON(a.stdout, lintFindings{files, append([]lint.Finding{}, all...)})
	case len(all) == 0 && errors.Join(failed...) == nil:
		_, err = fmt.Fprintln(a.stdout, ui.Clean("no findings in "+strings.Join(files, ", ")))
	default:
		err = printFindings(a.stdout, all)
	}
	if len(idle) > 0 {
		a.reporter.Note("%s: no launcher, srun, sbatch or python found; most rules do not apply", strings.Join(idle, ", "))
	}
	failed = append(failed, err)
	if summary := lint.Summary(all); summary != "" {
		err = fmt.Errorf("found %s", summary)
		failed = append(failed, fault.WithHint(err, "to silence a rule in a file, add the comment: # dsbuild: ignore RULE"))
	}
	return errors.Join(failed...)
}

// lintFile checks one file; "-" is standard input.
func (a *app) lintFile(file string) (found []lint.Finding, launches bool, err error) {
	if file == "-" {
		return lint.Check("stdin", a.stdin)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, false, lint.Unreadable(file, err)
	}
	defer f.Close()
	return lint.Check(file, f)
}

// printFindings prints the findings. Several findings with the same message are explained once.
func printFindings(w io.Writer, all []lint.Finding) error {
	type text struct{ rule, message string }
	places := map[text][]lint.Finding{}
	var order []text
	for _, f := range all {
		t := text{f.Rule, f.Message}
		if places[t] == nil {
			order = append(order, t)
		}
		places[t] = append(places[t], f)
	}
	var out strings.Builder
	for i, t := range order {
		if i > 0 {
			out.WriteString("\n")
		}
		first := places[t][0]
		fmt.Fprintf(&out, "%s: %s: %s [%s]\n", first.Position, first.Severity, first.Message, first.Rule)
		if first.Excerpt != "" {
			out.WriteString(first.Excerpt + "\n")
		}
		for _, again := range places[t][1:] {
			fmt.Fprintf(&out, "  also: %s\n", again.Position)
		}
		fmt.Fprintf(&out, "  fix: %s\n", first.Fix)
	}
	_, err := io.WriteString(w, ui.Clean(out.String()))
	return err
}

// printRules lists the rules.
func printRules(a *app, asJSON bool) error {
	if asJSON {
		return ui.JSON(a.stdout, lint.Rules())
	}
	for i, r := range lint.Rules() {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		_, err := fmt.Fprintf(a.stdout, "%s (%s)\n  %s:\n  %s.\n  fix: %s\n", r.ID, r.Severity, r.Title, r.Why, r.Fix)
		if err != nil {
			return err
		}
	}
	return nil
}
