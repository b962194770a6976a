package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/compat"
)

// choiceForm is the placeholder of a flag in the help that lists its values: `load|files`.
var choiceForm = regexp.MustCompile(`^[a-z]+(\|[a-z]+)+$`)

// completeValues makes the completion of shells offer the values of flags: those that the help lists,
// GPUs and operators.
func completeValues(root *cobra.Command) {
	for _, cmd := range allCommands(root) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			var values func() []string
			placeholder, _ := pflag.UnquoteUsage(f)
			switch {
			case choiceForm.MatchString(placeholder):
				values = func() []string { return strings.Split(placeholder, "|") }
			case f.Name == "gpu":
				values = knownGPUs
			case f.Name == "ops":
				values = knownOps
			default:
				return
			}
			complete := func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				var fit []string
				for _, value := range values() {
					if strings.HasPrefix(strings.ToLower(value), strings.ToLower(begun)) {
						fit = append(fit, value)
					}
				}
				return fit, cobra.ShellCompDirectiveNoFileComp
			}
			if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
				panic(err) // it has one already
			}
		})
	}
}

func knownGPUs() []string {
	tables, err := compat.NewTables()
	if err != nil {
		return nil
	}
	var names []string
	for _, g := range tables.GPUs {
		names = append(names, g.Name)
	}
	return names
}

func knownOps() []string {
	tables, err := compat.NewTables()
	if err != nil {
		return nil
	}
	var names []string
	for _, op := range tables.Ops {
		names = append(names, op.Name)
	}
	return names
}
