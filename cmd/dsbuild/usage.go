package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/launch"
)

// wrongUsage words an error that cobra found before the command started, and suggests a
// correction.
func wrongUsage(cmd *cobra.Command, args []string, err error) error {
	wrong := &usageError{err: err}
	depth := len(strings.Fields(cmd.CommandPath())) - 1
	if cmd.HasSubCommands() && depth < len(args) && !strings.HasPrefix(args[depth], "-") {
		wrong.err = fmt.Errorf("unknown command %q for %q", args[depth], cmd.CommandPath())
		wrong.hint = meantCommand(cmd, args[depth])
		return wrong
	}
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var required *pflag.ValueRequiredError
	switch {
	case errors.As(err, &required):
		wrong.err = fmt.Errorf("missing value for --%s", required.GetFlag().Name)
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		wrong.hint = meantFlag(cmd, name, args)
	case errors.As(err, &invalid):
		return invalidValue(invalid)
	case cmd.Name() == "help":
		wrong.hint = meantCommand(cmd.Root(), strings.Join(cmd.Flags().Args(), " "))
	case cmd.ValidateArgs(cmd.Flags().Args()) != nil:
		return wrongArguments(cmd, cmd.Flags().Args())
	}
	return wrong
}

// meantCommand suggests a command for a word: one with a similar name, one of another group, or one that does what
// the word means in another tool (SuggestFor).
func meantCommand(group *cobra.Command, word string) string {
	names := lists.Map(group.Commands(), (*cobra.Command).Name)
	if meant := lineerr.Nearest(word, names); meant != "" {
		return "did you mean '" + group.CommandPath() + " " + meant + "'?"
	}
	switch word {
	case "logs", "log":
		return "see the log files in ~/.local/state/dsbuild/logs, or in the directory of --logs"
	case "plan", "preview":
		return "did you mean 'dsbuild ship --dry-run'?"
	}
	var meant []string
	for _, other := range allCommands(group.Root()) {
		path := "'" + other.CommandPath() + "'"
		if other != group && other.Name() == word {
			return "did you mean " + path + "?"
		}
		if slices.Contains(other.SuggestFor, word) {
			meant = append(meant, path)
		}
	}
	if len(meant) == 0 {
		return ""
	}
	return "did you mean " + lists.Or(meant) + "?"
}

// meantFlag suggests a flag for an unknown one. args is dsbuild's command line.
func meantFlag(cmd *cobra.Command, name string, args []string) string {
	program := slices.IndexFunc(args, func(word string) bool { return strings.HasSuffix(word, ".py") })
	if program >= 0 && strings.HasSuffix(cmd.Use, programUse) && !slices.Contains(args[:program], "--") {
		return "put -- before the program: -- " + strings.Join(args[program:], " ")
	}
	var names, same []string // same begin with the letter of an unknown short flag
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names = append(names, f.Name)
		if len(name) == 1 && strings.HasPrefix(f.Name, name) {
			same = append(same, "--"+f.Name)
		}
	})
	near := lineerr.Nearest(name, names)
	if key, ok := launch.KeyOfSbatch(name); ok && near == "" && slices.Contains(names, key.FlagName()) {
		near = key.FlagName()
	}
	switch {
	case cmd.HasSubCommands():
		return "flags follow a command: " + cmd.CommandPath() + " COMMAND"
	case (name == "i" || name == "inventory") && strings.Contains(cmd.Use, " INVENTORY"):
		return "pass the inventory without a flag: " + cmd.CommandPath() + " INVENTORY"
	case near != "":
		return "did you mean --" + near + "?"
	case len(same) > 0:
		return "did you mean " + lists.Or(same) + "?"
	case slices.Contains(names, "sbatch") && len(name) > 1:
		option := "--" + name
		at := slices.IndexFunc(args, func(word string) bool { return word == option || strings.HasPrefix(word, option+"=") })
		switch {
		case at >= 0 && args[at] != option:
			option = args[at]
		case at >= 0 && at+1 < len(args) && !strings.HasPrefix(args[at+1], "-"):
			option += "=" + args[at+1]
		}
		return "pass other sbatch options as --sbatch=" + remote.Quote(option)
	}
	return ""
}

// allCommands returns cmd's descendants, children first.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := slices.Clone(cmd.Commands())
	for _, sub := range cmd.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// invalidValue reports a value that a flag's type rejects.
func invalidValue(invalid *pflag.InvalidValueError) *usageError {
	why, hint := wantedValue(invalid.GetFlag(), invalid.Unwrap())
	return &usageError{
		err:  fmt.Errorf("invalid value %q for --%s: %s", invalid.GetValue(), invalid.GetFlag().Name, why),
		hint: hint,
	}
}

// wantedValue words the error of a flag's Set: what the flag requires, and the value that may be meant.
func wantedValue(f *pflag.Flag, err error) (why, hint string) {
	kinds := map[string]string{
		"int": "an integer", "bool": "true or false", "duration": "a duration such as 90s, 5m or 1h",
	}
	var number *strconv.NumError
	kind := kinds[f.Value.Type()]
	switch {
	case errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange):
		return "number too large", ""
	case kind != "" && !strings.HasPrefix(err.Error(), "want "):
		return "want " + kind, ""
	}
	return err.Error(), fault.Hint(err)
}

// wrongArguments reports a missing or an unexpected argument, by the command's Use line.
func wrongArguments(cmd *cobra.Command, args []string) *usageError {
	var names []string // of arguments; those in brackets are optional
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		names = append(names, strings.TrimSuffix(word, "..."))
	}
	wrong := &usageError{}
	if len(args) < len(names) && !strings.HasPrefix(names[len(args)], "[") {
		wrong.err = fmt.Errorf("missing argument %s; usage: %s", names[len(args)], cmd.UseLine())
		return wrong
	}
	wrong.err = fmt.Errorf("unexpected argument %q; usage: %s", args[min(len(names), len(args)-1)], cmd.UseLine())
	if len(names) == 0 && cmd.Flags().Lookup("gpu") != nil {
		wrong.hint = `quote a value with spaces, such as --gpu "RTX 4090"`
	}
	return wrong
}

// oneOf rejects a value that is not in a flag's list.
func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	err := fmt.Errorf("invalid value %q for --%s: want %s", value, flag, lists.Or(known))
	return &usageError{err: err, hint: lineerr.DidYouMean(value, known)}
}
