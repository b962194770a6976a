package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline/planner"
)

// app holds the things that every command gets: the streams, the reporter that owns stderr, and the
// version. Commands never use os.Stdout, os.Stderr or os.Stdin.
type app struct {
	stdin    io.Reader
	stdout   io.Writer       // results
	stderr   io.Writer       // progress and log; prefer reporter
	reporter ui.Reporter     // closed by run, not by commands
	prompt   remote.Prompter // asks at the terminal; nil: there is none. Closed by run
	version  string
}

// run executes the command line and returns the exit code. It prints the error; nothing else
// does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	style := ui.FromEnvironment(stderr)
	stdout, stderr = withoutBrokenPipe(stdout), withoutBrokenPipe(stderr)
	console := ui.New(stderr, style)
	prompt := ui.FindPrompt(console)
	ctx, stop := withInterrupt(ctx, console, prompt.Close)
	defer stop()

	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, reporter: console, version: "(devel)"}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		a.version = info.Main.Version
	}
	if prompt != nil {
		a.prompt = prompt
	}
	err := executeCommand(ctx, newRootCommand(a), args)
	prompt.Close()
	console.Close()
	if err != nil {
		ui.PrintError(stderr, plainInterrupt(ctx, folderHint(err)))
	}
	return exitCode(ctx, err)
}

// newRootCommand assembles the command tree.
func newRootCommand(a *app) *cobra.Command {
	var version bool
	exits := each.Map(exitMeanings(), func(e exitMeaning) string { return fmt.Sprintf("  %-3d  %s", e.code, e.meaning) })
	root := &cobra.Command{
		Use:   "dsbuild",
		Short: "Build DeepSpeed wheels with compiled operators and deploy them to GPU nodes",
		Long: `dsbuild builds the right DeepSpeed wheel once, in a clean container or on this
machine, proves what is inside it, puts it on every node, and proves that every
node runs the same.

INVENTORY is dsbuild's own YAML, a hostfile, an Ansible inventory, - for
standard input, nodes such as gpu[01-16], or slurm:PARTITION: see 'dsbuild nodes
--help'.

Results go to standard output, progress and messages to standard error.

Exit codes:
` + strings.Join(exits, "\n"),
		Example: `  dsbuild ship inventory.yaml
  dsbuild wheel
  dsbuild deploy inventory.yaml`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				_, err := io.WriteString(a.stdout, versionLine(a.version))
				return err
			}
			return cmd.Help()
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.Flags().BoolVar(&version, "version", false, "version for dsbuild")
	for _, group := range commandGroups(a) {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title + ":"})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newManCommand(a)) // hidden
	root.SetHelpCommandGroupID(groupReference)
	root.SetCompletionCommandGroupID(groupReference)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	completeWithoutPackage(root, a.stdout)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", fmt.Sprint("FlagUsagesWrapped ", helpWidth)))
	for _, cmd := range allCommands(root) {
		completeValues(cmd)
		switch {
		case cmd.Name() == "help":
			cmd.Args = func(_ *cobra.Command, args []string) error { // cobra by itself prints a line and succeeds
				_, rest, err := root.Find(args)
				if err == nil && len(rest) > 0 {
					err = fmt.Errorf("unknown command %q", strings.Join(args, " "))
				}
				return err
			}
		case cmd.HasSubCommands() && !cmd.Runnable(): // cobra by itself prints the help for an unknown word, and succeeds
			cmd.Args = cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

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
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		placeholder, _ := pflag.UnquoteUsage(f)
		if f.Name != "gpu" && f.Name != "ops" && (!strings.Contains(placeholder, "|") || placeholder != strings.ToLower(placeholder)) {
			return
		}
		err := cmd.RegisterFlagCompletionFunc(f.Name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
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
		})
		if err != nil {
			panic(err) // it has one already
		}
	})
}

// groupReference is also the group of the commands that cobra adds.
const groupReference = "Reference"

// commandGroup is a part of the list that dsbuild --help prints.
type commandGroup struct {
	title    string
	commands []*cobra.Command
}

// commandGroups lists all commands. A new command is one more line here.
func commandGroups(a *app) []commandGroup {
	return []commandGroup{
		{"Build", []*cobra.Command{
			newWheelCommand(a),
			newInspectCommand(a),
			newVerifyWheelCommand(a),
			newRebuildCommand(a),
			newSignCommand(a),
			newIndexCommand(a),
		}},
		{"Fleet", []*cobra.Command{
			newStartCommand(a),
			newNodesCommand(a),
			newShipCommand(a),
			newDeployCommand(a),
			newVerifyCommand(a),
			newRollbackCommand(a),
			newEnvCommand(a),
			newNightlyCommand(a),
		}},
		{"Jobs", []*cobra.Command{
			newCheckCommand(a),
			newLaunchCommand(a),
		}},
		{groupReference, []*cobra.Command{
			newGPUsCommand(a),
			newOpsCommand(a),
			newToolchainsCommand(a),
			newVersionCommand(a),
		}},
	}
}

// executeCommand runs the command that args name. Whatever cobra refuses before the
// command itself starts (flags, arguments, unknown commands) is wrong usage.
func executeCommand(ctx context.Context, root *cobra.Command, args []string) error {
	started := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		started = true
		if err := refuseEmptyFlags(cmd); err != nil {
			return err
		}
		return checkFlagRules(cmd)
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var request *planner.RequestError
	var usage *usageError
	switch {
	case err == nil:
		return nil
	case !started:
		err = wrongUsage(cmd, args, err)
	case errors.As(err, &request) && !errors.As(err, &usage):
		err = &usageError{err: err, hint: request.Hint()}
	}
	if errors.As(err, &usage) && usage.command == "" {
		usage.command = cmd.CommandPath()
	}
	text, args := fault.Hint(err), cmd.Flags().Args()
	if strings.Contains(text, "INVENTORY") && len(args) == 1 && strings.HasSuffix(cmd.Use, " INVENTORY") {
		return fault.WithHint(err, "%s", fleetFlags{inventory: args[0]}.nameInventory(text))
	}
	return err
}

// refuseEmptyFlags refuses flags whose value is empty: in --limit "$NODES" a
// variable that is not set would stand for every node.
func refuseEmptyFlags(cmd *cobra.Command) error {
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
	return usagef("%s: the value is empty; is a shell variable not set? Give a value, or leave the flag out", strings.Join(empty, ", "))
}

func versionLine(version string) string {
	return fmt.Sprintf("dsbuild %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version of dsbuild", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.RunE = func(*cobra.Command, []string) error {
		if !asJSON {
			_, err := io.WriteString(a.stdout, versionLine(a.version))
			return err
		}
		doc := map[string]string{"version": a.version, "commit": "", "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					doc["commit"] = s.Value
				}
			}
		}
		return ui.JSON(a.stdout, doc)
	}
	return cmd
}

// helpWidth is the width of the help, in columns.
const helpWidth = 80

// The paragraphs that tell commands apart whose names are alike.
const (
	whichCheck = `

Which one? check: are the nodes ready for a job. verify: do the nodes run the
same. verify-wheel: does the file of a wheel match its metadata. inspect: the
content of any wheel.`
	whichDeploy = `

Which one? deploy installs wheels that exist. ship first builds those that the
nodes need. env gives bare nodes a whole environment, torch included.`
)

// newManCommand makes a hidden command for packagers of dsbuild.
func newManCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands into a folder",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fault.WithHint(err, "name a folder that dsbuild can create")
			}
			// The date of the pages is that of SOURCE_DATE_EPOCH, if it is set.
			header := &doc.GenManHeader{Section: "1", Source: "dsbuild " + a.version, Manual: "dsbuild"}
			return doc.GenManTree(cmd.Root(), header, args[0])
		},
	}
}
