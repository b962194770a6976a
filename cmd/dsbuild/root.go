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
	exits := lists.Map(exitMeanings(), func(e exitMeaning) string { return fmt.Sprintf("  %-3d  %s", e.code, e.meaning) })
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
	wrapped := fmt.Sprint("FlagUsagesWrapped ", helpWidth)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", wrapped))
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
