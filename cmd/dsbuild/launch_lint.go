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
		Short: "Find mistakes in launch scripts that hang a job or lose nodes",
		Long: `Find mistakes in launch scripts (sbatch, srun, torchrun, accelerate, JAX: any
script for sh or bash) that hang a job, or let it succeed on only some of its
nodes. Nothing is run. FILE may be - for standard input.

--notes also shows common habits that rarely change a job. A comment silences a
rule in its file: # dsbuild: ignore RULE. --rules explains all rules.

Exit codes: 0 no errors or warnings, 1 errors or warnings, 2 a file is not
readable, or is not a script for sh or bash. Notes never change the exit code.`,
		Example: `  dsbuild launch lint train.sbatch
  dsbuild launch lint --rules`,
		Args: func(cmd *cobra.Command, args []string) error {
			if rules { // RunE refuses files
				return nil
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case rules && len(args) > 0:
				return usagef("--rules reads no file: leave out %q", args[0])
			case rules:
				return printRules(a, asJSON)
			}
			return runLint(cmd.Context(), a, args, notes, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.Flags().BoolVar(&notes, "notes", false, "also show notes")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules, and read no file")
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
		_, err = fmt.Fprintln(a.stdout, ui.Clean("no mistakes in "+strings.Join(files, ", ")))
	default:
		err = printFindings(a.stdout, all)
	}
	if len(idle) > 0 {
		a.reporter.Note("no launcher, srun, sbatch or python in %s: most rules are about those", strings.Join(idle, ", "))
	}
	failed = append(failed, err)
	if summary := lint.Summary(all); summary != "" {
		err = fmt.Errorf("found %s", summary)
		failed = append(failed, fault.WithHint(err, "the comment '# dsbuild: ignore RULE' silences a rule in its file"))
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
