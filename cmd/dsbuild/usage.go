package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// wrongUsage words an error that cobra found before the command started, and suggests a
// correction.
func wrongUsage(cmd *cobra.Command, args []string, err error) error {
	wrong := &usageError{err: err, command: cmd.CommandPath()}
	depth := len(strings.Fields(cmd.CommandPath())) - 1
	if cmd.HasSubCommands() && depth < len(args) && !strings.HasPrefix(args[depth], "-") {
		wrong.err = fmt.Errorf("unknown command %q for %q", args[depth], cmd.CommandPath())
		wrong.hint = meantCommand(cmd, args[depth])
		return wrong
	}
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && goneFlags()[unknown.GetSpecifiedName()] != "":
		wrong.err = fmt.Errorf("%w: %s", err, goneFlags()[unknown.GetSpecifiedName()])
	case errors.As(err, &unknown):
		wrong.hint = meantFlag(cmd, unknown, args)
	case errors.As(err, &invalid):
		wrong.err = invalidValue(invalid)
	case cmd.Name() == "help":
		wrong.hint = meantCommand(cmd.Root(), strings.Join(cmd.Flags().Args(), " "))
	case cmd.ValidateArgs(cmd.Flags().Args()) != nil:
		wrong.err, wrong.hint = wrongArguments(cmd, cmd.Flags().Args())
	}
	return wrong
}

// nameInventory puts the name of the inventory into a hint of a package that does not know it.
func (o fleetFlags) nameInventory(hint string) string {
	return strings.ReplaceAll(hint, "INVENTORY", node.PlainPath(o.inventory, remote.Quote(o.inventory)))
}

// namedInventory is nameInventory for the hint of an error of a command on an inventory.
func namedInventory(cmd *cobra.Command, err error) error {
	text, args := fault.Hint(err), cmd.Flags().Args()
	if strings.Contains(text, "INVENTORY") && len(args) == 1 && strings.HasSuffix(cmd.Use, " INVENTORY") {
		return fault.WithHint(err, "%s", fleetFlags{inventory: args[0]}.nameInventory(text))
	}
	return err
}

// meantCommand names the command that a word may stand for: a slip of the keyboard, its beginning,
// or a command of another group.
func meantCommand(group *cobra.Command, word string) string {
	var names []string
	for _, sub := range group.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	meant := diagnostic.Nearest(word, names)
	for _, name := range names {
		if meant == "" && len(word) > 2 && strings.HasPrefix(name, word) {
			meant = name
		}
	}
	if meant != "" {
		return didYouMean(group.CommandPath() + " " + meant)
	}
	for _, other := range allCommands(group.Root()) {
		if !other.Hidden && other != group && other.Name() == word {
			return didYouMean(other.CommandPath())
		}
	}
	return ""
}

func didYouMean(what string) string { return "did you mean '" + what + "'?" }

// meantFlag names the flag that an unknown one may stand for. args are those of dsbuild.
func meantFlag(cmd *cobra.Command, unknown *pflag.NotExistError, args []string) string {
	name := unknown.GetSpecifiedName()
	if program := slices.IndexFunc(args, func(word string) bool { return strings.HasSuffix(word, ".py") }); program >= 0 &&
		strings.HasSuffix(cmd.Use, programUse) && !slices.Contains(args[:program], "--") {
		return "put -- before the program: -- " + strings.Join(args[program:], " ")
	}
	if letters, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "="); letters != "" {
		if len(letters) > 1 && cmd.Flags().Lookup(letters) != nil {
			return "did you mean --" + letters + "?"
		}
		return ""
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := diagnostic.Nearest(name, names); near != "" {
		return "did you mean --" + near + "?"
	}
	if key, ok := launch.KeyOfSbatch(name); ok && slices.Contains(names, key.FlagName()) {
		own := key.FlagName()
		return "did you mean --" + own + "?"
	}
	if slices.Contains(names, "sbatch") && name != "" {
		return "--sbatch=--" + name + " passes an option of sbatch on"
	}
	var others []string
	for _, other := range allCommands(cmd.Root()) {
		if other.Flags().Lookup(name) != nil {
			others = append(others, "'"+other.CommandPath()+"'")
		}
	}
	const few = 3
	if len(others) == 0 || len(others) > few {
		return ""
	}
	return fmt.Sprintf("--%s is a flag of %s", name, strings.Join(others, ", "))
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
	f := invalid.GetFlag()
	var number *strconv.NumError
	if errors.As(invalid, &number) && errors.Is(number.Err, strconv.ErrRange) {
		return fmt.Errorf("--%s %q: the number is too large", f.Name, invalid.GetValue())
	}
	kinds := map[string]string{"int": "a whole number", "bool": "true or false", "duration": "a duration such as 90s, 5m or 1h"}
	if kind := kinds[f.Value.Type()]; kind != "" {
		return fmt.Errorf("--%s %q: must be %s", f.Name, invalid.GetValue(), kind)
	}
	return fmt.Errorf("--%s %q: %w", f.Name, invalid.GetValue(), invalid.Unwrap())
}

// wrongArguments says which argument is missing, or too many, by the line of a command's use.
func wrongArguments(cmd *cobra.Command, args []string) (err error, hint string) { //nolint:revive,staticcheck // the error is a result, not a failure
	var names []string // of arguments; those in brackets are optional
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		names = append(names, strings.TrimSuffix(word, "..."))
	}
	if len(args) < len(names) && !strings.HasPrefix(names[len(args)], "[") {
		return fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine()), ""
	}
	extra := args[min(len(names), len(args)-1)]
	if len(names) == 0 {
		err = fmt.Errorf("%q: %s takes no arguments", extra, cmd.CommandPath())
	} else {
		err = fmt.Errorf("%q: one argument too many: %s", extra, cmd.UseLine())
	}
	return err, meantArgument(cmd, extra)
}

// meantArgument names the flag whose value an argument may be.
func meantArgument(cmd *cobra.Command, arg string) string {
	var gpus []compat.GPU
	if tables, err := compat.NewTables(); err == nil {
		gpus = tables.GPUsNamed(arg)
	}
	archs, err := wheel.ParseArchs([]string{arg})
	yaml := strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".yml")
	for _, flag := range []struct {
		name string
		fits bool
	}{
		{"gpu", len(gpus) > 0},
		{"arch", err == nil && len(archs) > 0},
		{"wheel", strings.HasSuffix(arg, ".whl")},
		{"file", yaml},
		{"for", yaml},
	} {
		if flag.fits && cmd.Flags().Lookup(flag.name) != nil {
			return "did you mean --" + flag.name + " " + arg + "?"
		}
	}
	return ""
}

// oneOf refuses a value that a flag does not have.
func oneOf(command, flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return &usageError{
		err: fmt.Errorf("--%s %q: must be one of %s", flag, value, strings.Join(known, ", ")), command: command,
		hint: diagnostic.DidYouMean(value, known),
	}
}
