package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/launch"
)

// The help of a command consists of its cobra fields and of annotations. A flag's usage begins with its placeholder
// in backquotes, which is printed behind the name only, and is a noun or verb phrase without a final full stop:
//
//	flags.StringVar(&f.wheel, "wheel", "dist", "`PATH` Wheel, or directory from which each node gets the best match")
//	choiceVar(flags, &f.via, "via", viaSSH, []string{viaSSH, viaSlurm}, "Reach nodes over SSH, or ...")
//	inGroup(cmd, groupWheel, "wheel")
//
// The default of the flag is appended. One that is not a constant is written out: (default: policy in INVENTORY).
// Flags are printed by group, and within a group in the order of their declaration.
const (
	groupRule   = "dsbuild_group" // of a flag: its heading
	helpNotes   = "notes"         // of a command: paragraphs below the examples
	helpSeeAlso = "see_also"      // of a command: what "See also:" lists; an unbroken line, printHelp wraps it
)

// The headings of flags that several commands have.
const (
	groupTarget     = "Target"
	groupVersions   = "Versions"
	groupSources    = "Sources and extras"
	groupBuild      = "Build"
	groupWheel      = "Wheel"
	groupEnv        = "Environment"
	groupChecks     = "Checks"
	groupNodes      = "Nodes and rollout"
	groupTransfer   = "Transfer"
	groupConnection = "Connection"
	groupSlurm      = "Slurm allocation (with --via slurm)"
	groupIndex      = "Index"
	groupOutput     = "Output"
	groupGlobal     = "Global flags"
	groupOther      = "Flags" // flags without a group
	groupJob        = "Input and output"
	groupSubmit     = "Submit"
)

// flagGroups lists the headings in the order of the help. Add new headings here.
func flagGroups() []string {
	return slices.Concat([]string{groupOther, groupJob}, launch.Groups(), []string{
		groupSubmit, groupTarget, groupVersions, groupSources, groupBuild, groupWheel, groupEnv, groupChecks,
		groupNodes, groupTransfer, groupConnection, groupSlurm, groupIndex, groupOutput, groupGlobal,
	})
}

// inGroup puts flags of a command under a heading of flagGroups, as in
//
//	inGroup(cmd, groupTransfer, "bwlimit", "relay")
//
// The function that declares flags also groups them. The last call for a flag wins, so a command can move a
// shared flag.
func inGroup(cmd *cobra.Command, heading string, names ...string) {
	for _, name := range names {
		annotate(cmd, name, groupRule, heading)
	}
}

// choice is a flag with a fixed set of values. Set rejects any other, the placeholder in the help is "a|b",
// and shells complete the values.
type choice[T ~string] struct {
	value  *T
	values []T
}

// choiceVar declares a flag whose value is one of values, as in
//
//	choiceVar(flags, &f.via, "via", viaSSH, []string{viaSSH, viaSlurm}, "Reach nodes over SSH, or ...")
func choiceVar[T ~string](flags *pflag.FlagSet, p *T, name string, value T, values []T, usage string) {
	*p = value
	flags.Var(&choice[T]{p, values}, name, usage)
}

// Set implements pflag.Value.
func (c *choice[T]) Set(text string) error {
	if !slices.Contains(c.values, T(text)) {
		return &choiceError{want: lists.Or(c.names()), hint: lineerr.DidYouMean(text, c.names())}
	}
	*c.value = T(text)
	return nil
}

// String implements pflag.Value.
func (c *choice[T]) String() string {
	if c.value == nil { // pflag compares defaults with a zero value
		return ""
	}
	return string(*c.value)
}

// Type is the placeholder of the value in the help.
func (c *choice[T]) Type() string {
	return strings.Join(c.names(), "|")
}

func (c *choice[T]) names() []string {
	return lists.Map(c.values, func(v T) string { return string(v) })
}

// choiceError is a value that a choice does not have.
type choiceError struct{ want, hint string }

func (e *choiceError) Error() string { return "want " + e.want }
func (e *choiceError) Hint() string  { return e.hint }

// installHelp makes cobra print the help and usage of all commands below root as printHelp does.
func installHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, _ = io.WriteString(cmd.OutOrStdout(), helpText(cmd)) // a reader that goes away is no failure
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := io.WriteString(cmd.OutOrStderr(), helpText(cmd))
		return err
	})
}

// helpText is what --help prints.
func helpText(cmd *cobra.Command) string {
	var parts []string
	add := func(text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			parts = append(parts, text)
		}
	}
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	add(about)
	add("Usage:\n  " + useLine(cmd))
	add(commandList(cmd))
	if cmd.HasExample() {
		add("Examples:\n" + cmd.Example)
	}
	add(cmd.Annotations[helpNotes])
	for _, g := range groupedFlags(cmd) {
		add(g.heading + ":\n" + flagLines(g.flags))
	}
	if text := cmd.Annotations[helpSeeAlso]; text != "" {
		add(wrap("See also: "+text, helpWidth, ""))
	}
	if cmd.HasAvailableSubCommands() {
		add(`Run "` + cmd.CommandPath() + ` <command> --help" for more information about a command.`)
	}
	return strings.Join(parts, "\n\n") + "\n"
}

// useLine is the command line of a command, without its values.
func useLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " <command> [flags]"
	}
	return cmd.UseLine()
}

// commandList lists the commands of a group, under their headings if they have any.
func commandList(cmd *cobra.Command) string {
	width := 0
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			width = max(width, len(sub.Name()))
		}
	}
	var parts []string
	titles := append([]*cobra.Group{{Title: "Commands:"}}, cmd.Groups()...)
	for _, group := range titles {
		var lines []string
		for _, sub := range cmd.Commands() {
			if sub.GroupID == group.ID && (sub.IsAvailableCommand() || sub.Name() == "help") {
				lines = append(lines, fmt.Sprintf("  %-*s  %s", width, sub.Name(), sub.Short))
			}
		}
		if len(lines) > 0 {
			parts = append(parts, group.Title+"\n"+strings.Join(lines, "\n"))
		}
	}
	return strings.Join(parts, "\n\n")
}

// flagGroup is the flags under a heading of the help.
type flagGroup struct {
	heading string
	flags   []*pflag.Flag
}

// groupedFlags returns the visible flags of a command, those that it inherits last.
func groupedFlags(cmd *cobra.Command) []flagGroup {
	of := map[string][]*pflag.Flag{}
	collect := func(f *pflag.Flag) {
		heading := groupOther
		if rule := f.Annotations[groupRule]; len(rule) == 1 {
			heading = rule[0]
		}
		if !f.Hidden {
			of[heading] = append(of[heading], f)
		}
	}
	for _, set := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
		set.SortFlags = false
		set.VisitAll(collect)
	}
	var groups []flagGroup
	for _, heading := range flagGroups() {
		if len(of[heading]) > 0 {
			groups = append(groups, flagGroup{heading, of[heading]})
		}
	}
	return groups
}

// flagColumn is the column in which the texts of flags begin.
const flagColumn = 26

// flagLines are the lines of flags in the help.
func flagLines(flags []*pflag.Flag) string {
	var b strings.Builder
	for _, f := range flags {
		name, usage := flagHelp(f)
		head := "  " + name
		if gap := flagColumn - utf8.RuneCountInString(head); gap >= 2 {
			head += strings.Repeat(" ", gap)
		} else {
			head += "\n" + strings.Repeat(" ", flagColumn)
		}
		b.WriteString(head + wrap(usage, helpWidth-flagColumn, strings.Repeat(" ", flagColumn)) + "\n")
	}
	return b.String()
}

// flagHelp returns a flag with its placeholder, and its usage with its default.
func flagHelp(f *pflag.Flag) (name, usage string) {
	value, usage := pflag.UnquoteUsage(f)
	usage = strings.TrimPrefix(usage, value+" ")
	if name = "--" + f.Name; f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		name += " " + value
	}
	switch f.DefValue {
	case "", "false", "[]", "0", "0s":
	default:
		format := " (default %q)"
		if kind := f.Value.Type(); kind == "int" || kind == "duration" {
			format = " (default %s)"
		}
		usage += fmt.Sprintf(format, shortDefault(f))
	}
	if rule := f.Annotations[siteRule]; len(rule) == 1 {
		usage += " [env: " + rule[0] + "]"
	}
	return name, usage
}

// setPlainUsages replaces the usages of all flags by their texts in the help, for output that does not come from
// helpText: word returns the usage of a flag from its placeholder and its text.
func setPlainUsages(root *cobra.Command, word func(placeholder, usage string) string) {
	for _, cmd := range append(allCommands(root), root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			placeholder, _ := pflag.UnquoteUsage(f)
			_, usage := flagHelp(f)
			f.Usage = word(placeholder, usage)
		})
	}
}

// shortDefault is the default of a flag; 1m0s is written as 1m, and [dist] as dist.
func shortDefault(f *pflag.Flag) string {
	if f.Value.Type() != "duration" {
		return strings.Trim(f.DefValue, "[]")
	}
	text := f.DefValue
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// wrap breaks text between words, so that no line is wider than width columns, and begins each further line with
// indent.
func wrap(text string, width int, indent string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n"+indent)
}
