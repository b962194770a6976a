package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/node"
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
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		wrong.hint = meantFlag(cmd, name, args)
	case errors.As(err, &invalid):
		wrong.err = invalidValue(invalid)
	case cmd.Name() == "help":
		wrong.hint = meantCommand(cmd.Root(), strings.Join(cmd.Flags().Args(), " "))
	case cmd.ValidateArgs(cmd.Flags().Args()) != nil:
		wrong.err = wrongArguments(cmd, cmd.Flags().Args())
	}
	return wrong
}

// nameInventory puts the name of the inventory into a hint of a package that does not know it.
func (f nodeFlags) nameInventory(hint string) string {
	return strings.ReplaceAll(hint, "INVENTORY", node.PlainPath(f.inventory, remote.Quote(f.inventory)))
}

// meantCommand names the command that a word may stand for: a slip of the keyboard, or a command of another group.
func meantCommand(group *cobra.Command, word string) string {
	names := lists.Map(group.Commands(), (*cobra.Command).Name)
	if meant := lineerr.Nearest(word, names); meant != "" {
		return "did you mean '" + group.CommandPath() + " " + meant + "'?"
	}
	for _, other := range allCommands(group.Root()) {
		if other != group && other.Name() == word {
			return "did you mean '" + other.CommandPath() + "'?"
		}
	}
	return ""
}

// meantFlag names the flag that an unknown one may stand for. args are those of dsbuild.
func meantFlag(cmd *cobra.Command, name string, args []string) string {
	program := slices.IndexFunc(args, func(word string) bool { return strings.HasSuffix(word, ".py") })
	if program >= 0 && strings.HasSuffix(cmd.Use, programUse) && !slices.Contains(args[:program], "--") {
		return "put -- before the program: -- " + strings.Join(args[program:], " ")
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	near := lineerr.Nearest(name, names)
	if key, ok := launch.KeyOfSbatch(name); ok && near == "" && slices.Contains(names, key.FlagName()) {
		near = key.FlagName()
	}
	switch {
	case near != "":
		return "did you mean --" + near + "?"
	case slices.Contains(names, "sbatch") && len(name) > 1:
		option := "--" + name
		at := slices.IndexFunc(args, func(word string) bool { return word == option || strings.HasPrefix(word, option+"=") })
		switch {
		case at >= 0 && args[at] != option:
			option = args[at]
		case at >= 0 && at+1 < len(args) && !strings.HasPrefix(args[at+1], "-"):
			option += "=" + args[at+1]
		}
		return "--sbatch=" + remote.Quote(option) + " passes an option of sbatch on"
	}
	return ""
}

// allCommands are all commands below one, those of its own first.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := slices.Clone(cmd.Commands())
	for _, sub := range cmd.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// invalidValue describes the values that a flag takes.
func invalidValue(invalid *pflag.InvalidValueError) error {
	f, why := invalid.GetFlag(), invalid.Unwrap()
	var number *strconv.NumError
	kinds := map[string]string{
		"int": "a whole number", "bool": "true or false", "duration": "a duration such as 90s, 5m or 1h",
	}
	if errors.As(invalid, &number) && errors.Is(number.Err, strconv.ErrRange) {
		why = errors.New("the number is too large")
	} else if kind := kinds[f.Value.Type()]; kind != "" {
		why = errors.New("must be " + kind)
	}
	return fmt.Errorf("--%s %q: %w", f.Name, invalid.GetValue(), why)
}

// wrongArguments says which argument is missing, or too many, by the line of a command's use.
func wrongArguments(cmd *cobra.Command, args []string) error {
	var names []string // of arguments; those in brackets are optional
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		names = append(names, strings.TrimSuffix(word, "..."))
	}
	switch {
	case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
		return fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine())
	case len(names) == 0:
		quotes := ""
		if cmd.Flags().Lookup("gpu") != nil {
			quotes = "; a value with spaces needs quotes, such as --gpu \"RTX 4090\""
		}
		return fmt.Errorf("%q: %s takes no arguments%s", args[0], cmd.CommandPath(), quotes)
	}
	return fmt.Errorf("%q: one argument too many: %s", args[min(len(names), len(args)-1)], cmd.UseLine())
}

// oneOf refuses a value that a flag does not have.
func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	err := fmt.Errorf("--%s %q: must be one of %s", flag, value, strings.Join(known, ", "))
	return &usageError{err: err, hint: lineerr.DidYouMean(value, known)}
}
