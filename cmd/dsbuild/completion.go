package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/compat"
)

// completeWithoutPackage makes cobra's script for bash work on machines without the package bash-completion.
func completeWithoutPackage(root *cobra.Command, stdout io.Writer) {
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil {
		return
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := io.WriteString(stdout, splitLine); err != nil {
			return err
		}
		return script(cmd, args)
	}
}

// splitLine defines the function that cobra's script takes from the package bash-completion.
const splitLine = `if ! declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref() {
        words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
        cur=${words[cword]} prev=${words[cword-1]}
    }
fi
`

// completeValues makes the completion of shells offer the values of flags: those that the help lists,
// GPUs and operators.
func completeValues(cmd *cobra.Command) {
	complete := func(f *pflag.Flag) {
		placeholder, _ := pflag.UnquoteUsage(f)
		listed := strings.Contains(placeholder, "|") && placeholder == strings.ToLower(placeholder)
		if f.Name != "gpu" && f.Name != "ops" && !listed {
			return
		}
		values := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var values []string
			tables, err := compat.NewTables()
			switch {
			case strings.Contains(placeholder, "|"):
				values = strings.Split(placeholder, "|")
			case err == nil && f.Name == "gpu":
				for _, g := range tables.GPUs {
					values = append(values, g.Name)
				}
			case err == nil:
				for _, op := range tables.Ops {
					values = append(values, op.Name)
				}
			}
			return values, cobra.ShellCompDirectiveNoFileComp
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, values); err != nil {
			panic(err) // it has one already
		}
	}
	cmd.LocalFlags().VisitAll(complete)
}
