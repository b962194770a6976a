package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// newRootCommand assembles the command tree.
func newRootCommand(a *app) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "dsbuild",
		Short: "Build DeepSpeed wheels with precompiled ops and deploy them to GPU clusters",
		Example: `  $ dsbuild wheel                            # one wheel for all supported GPUs
  $ dsbuild deploy inventory.yaml            # install it on every node
  $ dsbuild verify inventory.yaml            # check for drift
  $ dsbuild ship inventory.yaml --dry-run    # preview build and deploy`,
		Annotations:   map[string]string{helpNotes: rootNotes()},
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
	root.Flags().BoolVarP(&version, "version", "V", false, "Print the version")
	inGroup(root, groupGlobal, "version")
	addGlobalFlags(root, &a.show)
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		a.hints = newHints(cmd, args)
		return a.prepare(cmd)
	}
	cobra.EnableCommandSorting = false // commandGroups has the order of the work
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
	installHelp(root)
	for _, cmd := range append(allCommands(root), root) {
		cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags = false, false
		completeValues(cmd)
		if cmd.Name() == "completion" {
			cmd.Short = "Generate a shell completion script"
		}
		switch {
		case cmd.Name() == "help":
			cmd.Short = "Show help for a command"
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

// prepare applies the variables of a site and the global flags, and checks the flags of a command and the directories
// that it uses, before the command runs.
func (a *app) prepare(cmd *cobra.Command) error {
	if err := setFromEnvironment(cmd.Flags()); err != nil {
		return err
	}
	if a.console != nil {
		a.console.Configure(a.show)
	}
	if err := rejectEmptyFlags(cmd); err != nil {
		return err
	}
	if err := checkFlagRules(cmd); err != nil {
		return err
	}
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if top.GroupID == "" || top.GroupID == groupReference {
		return nil // it uses no directories of dsbuild
	}
	return checkOwnFolders(cmd.Context())
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
		{"Getting started", []*cobra.Command{
			newShipCommand(a),
			newStartCommand(a),
		}},
		{"Wheels", []*cobra.Command{
			newWheelCommand(a),
			newInspectCommand(a),
			newVerifyWheelCommand(a),
			newRebuildCommand(a),
			newSignCommand(a),
			newIndexCommand(a),
		}},
		{"Cluster", []*cobra.Command{
			newNodesCommand(a),
			newDeployCommand(a),
			newVerifyCommand(a),
			newRollbackCommand(a),
			newEnvCommand(a),
			newNightlyCommand(a),
		}},
		{"Jobs", []*cobra.Command{
			newCheckCommand(a),
			newWhyCommand(a),
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

// helpWidth is the width of the help, in columns.
const helpWidth = 80

// rootNotes is the text of dsbuild --help besides commands and flags.
func rootNotes() string {
	exits := lists.Map(exitMeanings(), func(e exitMeaning) string { return fmt.Sprintf("  %-3d  %s", e.code, e.meaning) })
	return `INVENTORY is a file (dsbuild YAML, DeepSpeed hostfile or Ansible inventory), "-"
for standard input, a node expression such as gpu[01-16], or slurm:PARTITION.
See "dsbuild nodes --help".

Results are written to standard output, progress and messages to standard error.

Exit codes:
` + strings.Join(exits, "\n")
}
