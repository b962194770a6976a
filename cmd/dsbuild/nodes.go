package main

import (
	"cmp"
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// nodesFlags are the flags of dsbuild nodes.
type nodesFlags struct {
	limit string
	to    string
	json  bool
}

func newNodesCommand(a *app) *cobra.Command {
	var f nodesFlags
	cmd := &cobra.Command{
		Use:        "nodes INVENTORY",
		SuggestFor: []string{"list", "hosts"},
		Short:      "List the nodes of an inventory",
		Long: `List the nodes of an inventory with their connection settings. No node is
contacted.

For every command, INVENTORY is a file, "-" for standard input, a node
expression such as gpu[01-16],cpu1 (gpu[01] for one node), or slurm:PARTITION
(slurm: for the default partition). A file is dsbuild YAML, a DeepSpeed
hostfile, a list of hosts, an Ansible inventory, or the output of
ansible-inventory --list; its format is detected. Ansible inventories are read
with ansible-inventory.`,
		Example: `  # List some nodes
  $ dsbuild nodes inventory.yaml
  $ dsbuild nodes inventory.yaml --limit 'a100,!gpu[03-04]' --json

  # Convert an Ansible inventory to a DeepSpeed hostfile
  $ dsbuild nodes hosts.ini --to hostfile > hostfile

  # List the nodes of a Slurm partition
  $ dsbuild nodes slurm:gpu`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runNodes(cmd.Context(), a, args[0], f) },
	}
	addLimitFlag(cmd, &f.limit)
	cmd.Flags().StringVar(&f.to, "to", "", "`FORMAT` Print the inventory in this format: hostfile (addresses and slots only)")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print one JSON document")
	flagsExclude(cmd, "json", "to", "both set the output format")
	return cmd
}

func runNodes(ctx context.Context, a *app, name string, f nodesFlags) error {
	if f.to != "" {
		if err := oneOf("to", f.to, "hostfile"); err != nil {
			return err
		}
	}
	inv, err := a.loadInventory(ctx, name, f.limit, nodeDefaults{})
	if err != nil {
		return err
	}
	switch {
	case f.to != "":
		return printHostfile(a, inv)
	case f.json:
		return ui.JSON(a.stdout, newNodeList(inv))
	}
	rows := make([][]string, 0, len(inv.Hosts))
	for _, h := range inv.Hosts {
		port := "-"
		if h.Port != 0 {
			port = strconv.Itoa(h.Port)
		}
		groups := strings.Join(h.Groups, ",")
		rows = append(rows, []string{h.Name, h.Address, port, cmp.Or(h.User, "-"), h.Python, cmp.Or(groups, "-")})
	}
	return ui.Table(a.stdout, []string{"NAME", "ADDRESS", "PORT", "USER", "PYTHON", "GROUPS"}, rows)
}

// printHostfile prints the inventory as a hostfile.
func printHostfile(a *app, inv *inventory.Inventory) error {
	text, err := inv.Hostfile()
	if err != nil {
		return err
	}
	a.reporter.Note("a hostfile holds only addresses and slots; other inventory settings are omitted")
	_, err = io.WriteString(a.stdout, text)
	return err
}
