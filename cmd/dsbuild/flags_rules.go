package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The rules of flags are annotations of a flag, so that the rules of all commands are checked in one
// place and reported in the same words.
const (
	needsRule    = "dsbuild_needs"    // the flag without which it has no effect
	excludesRule = "dsbuild_excludes" // a flag that it cannot be used with, and why
)

// flagsNeed declares flags that have no effect without the flag needed.
func flagsNeed(cmd *cobra.Command, needed string, names ...string) {
	for _, name := range names {
		annotate(cmd, name, needsRule, needed)
	}
}

// flagsExclude declares two flags that cannot be used together.
func flagsExclude(cmd *cobra.Command, first, second, why string) {
	annotate(cmd, first, excludesRule, second, why)
}

func annotate(cmd *cobra.Command, name, rule string, values ...string) {
	f := cmd.Flag(name) // a nil flag is a bug in the command
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[rule] = values
}

// checkFlagRules rejects flags that have no effect, or that contradict each other.
func checkFlagRules(cmd *cobra.Command) error {
	var wrong []string
	given := func(name string) bool {
		f := cmd.Flags().Lookup(name)
		return f != nil && f.Changed && f.Value.String() != "false"
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if rule := f.Annotations[needsRule]; len(rule) == 1 && given(f.Name) && !given(rule[0]) {
			needed := "--" + rule[0]
			if short := cmd.Flags().Lookup(rule[0]).Shorthand; short != "" {
				needed = "-" + short // as users mostly write it
			}
			wrong = append(wrong, "--"+f.Name+" requires "+needed)
		}
		if rule := f.Annotations[excludesRule]; len(rule) == 2 && given(f.Name) && given(rule[0]) {
			wrong = append(wrong, "--"+f.Name+" cannot be used with --"+rule[0]+": "+rule[1])
		}
	})
	if len(wrong) == 0 {
		return nil
	}
	return usagef("%s", strings.Join(slices.Compact(wrong), "\n"))
}

// rejectEmptyFlags rejects flags with an empty value: in --limit "$NODES", an
// unset variable would select every node.
func rejectEmptyFlags(cmd *cobra.Command) error {
	var empty []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		blank := func(value string) bool { return strings.TrimSpace(value) == "" }
		if len(values) == 0 || slices.ContainsFunc(values, blank) {
			empty = append(empty, "--"+f.Name)
		}
	})
	if len(empty) == 0 {
		return nil
	}
	return &usageError{
		err:  fmt.Errorf("%s: empty value", strings.Join(empty, ", ")),
		hint: "set the shell variable, or omit " + strings.Join(empty, " and "),
	}
}
