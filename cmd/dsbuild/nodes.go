package main

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// nodesOptions are the flags of dsbuild nodes.
type nodesOptions struct {
	inventory string
	limit     string
	to        string
	json      bool
}

func newNodesCommand(a *app) *cobra.Command {
	var opts nodesOptions
	cmd := &cobra.Command{
		Use:   "nodes INVENTORY",
		Short: "List the nodes of an inventory, or convert it",
		Long: `List the nodes of an inventory, each with its address, user and other settings of its
connection. dsbuild contacts no node.

INVENTORY is, for this command and all others, a file, - for standard input, a Slurm
node expression such as gpu[01-16],cpu1, or a Slurm partition as slurm:NAME (slurm: is
the default partition). A file is dsbuild's own YAML, a DeepSpeed hostfile, an Ansible
inventory, or the output of ansible-inventory --list. The format is detected from the
content. dsbuild reads Ansible's files, folders and dynamic inventories with
ansible-inventory; without it, dsbuild reads plain INI files.

With --to dsbuild writes the nodes in another format: hostfile for DeepSpeed, slurm for
Slurm, ansible for Ansible (INI), yaml for dsbuild. It names the settings that the
format cannot hold.`,
		Example: `  dsbuild nodes inventory.yaml
  dsbuild nodes inventory.yaml --limit 'a100,!gpu[03-04]' --json
  dsbuild nodes hosts.ini --to yaml > inventory.yaml
  dsbuild nodes slurm:gpu --to yaml
  dsbuild nodes "$SLURM_JOB_NODELIST" --to ansible`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.inventory = args[0]
			if cmd.Flags().Changed("to") {
				if opts.to == "json" {
					return usageErrorf(cmd.CommandPath(), "--to json: --json prints JSON; --to takes one of %s", strings.Join(inventory.Writers(), ", "))
				}
				if err := oneOf(cmd.CommandPath(), "to", opts.to, inventory.Writers()...); err != nil {
					return err
				}
			}
			return runNodes(cmd.Context(), a, opts)
		},
	}
	addLimitFlag(cmd, &opts.limit)
	cmd.Flags().StringVar(&opts.to, "to", "", "write the inventory as `"+strings.Join(inventory.Writers(), "|")+"`")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print one JSON document")
	flagsExclude(cmd, "json", "to", "both decide the format")
	return cmd
}

// addLimitFlag gives a command --limit, for app.loadInventory.
func addLimitFlag(cmd *cobra.Command, limit *string) {
	cmd.Flags().StringVar(limit, "limit", "", "only these `NODES`: names, ranges, groups and patterns (gpu*), separated by commas; !NAME leaves out")
}

// loadInventory reads INVENTORY and keeps the nodes of --limit.
func (a *app) loadInventory(ctx context.Context, name, limit string) (*inventory.Inventory, error) {
	inv, err := a.openInventory(ctx, name)
	if err != nil {
		return nil, err
	}
	return a.limitNodes(inv, limit)
}

// openInventory reads INVENTORY.
func (a *app) openInventory(ctx context.Context, name string) (*inventory.Inventory, error) {
	return inventory.Open(ctx, name, inventory.Options{Stdin: a.stdin, Ansible: ansibleInventory(), Slurm: slurmInventory})
}

// limitNodes keeps the nodes of --limit. It notes settings of another tool's inventory
// that have no effect.
func (a *app) limitNodes(inv *inventory.Inventory, limit string) (*inventory.Inventory, error) {
	inv, err := inv.Select(limit)
	if err != nil {
		return nil, err
	}
	remarks := make([]ui.Named, len(inv.Remarks))
	for i, r := range inv.Remarks {
		remarks[i] = ui.Named{Name: r.Node, Text: r.Text}
	}
	for _, r := range ui.Fold(remarks) {
		if r.Names != "" {
			r.Text = r.Names + ": " + r.Text
		}
		a.reporter.Note("%s", r.Text)
	}
	return inv, nil
}

func runNodes(ctx context.Context, a *app, opts nodesOptions) error {
	inv, err := a.loadInventory(ctx, opts.inventory, opts.limit)
	if err != nil {
		return err
	}
	switch {
	case opts.to != "":
		return printConverted(a, inv, opts.to)
	case opts.json:
		return ui.JSON(a.stdout, newNodesDocument(inv))
	}
	rows := make([][]string, 0, len(inv.Hosts))
	for _, h := range inv.Hosts {
		port := "-"
		if h.Port != 0 {
			port = strconv.Itoa(h.Port)
		}
		rows = append(rows, []string{h.Name, h.Address, port, orDash(h.User), h.Python, orDash(strings.Join(h.Groups, ","))})
	}
	return ui.Table(a.stdout, []string{"NAME", "ADDRESS", "PORT", "USER", "PYTHON", "GROUPS"}, rows)
}

// printConverted prints the inventory in another notation, and names the values that it cannot
// hold.
func printConverted(a *app, inv *inventory.Inventory, notation string) error {
	text, lost, err := inv.Write(notation)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(a.stdout, text); err != nil {
		return err
	}
	// One line for the nodes that lose the same.
	keys := make(map[string][]string)
	var order []string
	for _, l := range lost {
		if keys[l.Node] == nil {
			order = append(order, l.Node)
		}
		keys[l.Node] = append(keys[l.Node], l.Text)
	}
	said := make([]ui.Named, len(order))
	for i, node := range order {
		said[i] = ui.Named{Name: node, Text: strings.Join(keys[node], ", ")}
	}
	for _, f := range ui.Fold(said) {
		of := ""
		if f.Names != "" {
			of = " for " + f.Names
		}
		a.reporter.Note("not written%s: %s (--to %s cannot hold it)", of, f.Text, notation)
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// nodesDocument is the JSON document of dsbuild nodes --json. Settings that the
// inventory lacks are left out.
type nodesDocument struct {
	KnownHosts string      `json:"known_hosts,omitempty"`
	Nodes      []nodeEntry `json:"nodes"`
}

type nodeEntry struct {
	Name         string            `json:"name"`
	Node         string            `json:"node"`
	Address      string            `json:"address"`
	Port         int               `json:"port,omitempty"`
	User         string            `json:"user,omitempty"`
	Sudo         string            `json:"sudo,omitempty"`
	IdentityFile string            `json:"identity_file,omitempty"`
	ProxyJump    string            `json:"proxy_jump,omitempty"`
	Groups       []string          `json:"groups"`
	Python       string            `json:"python"`
	Env          map[string]string `json:"env,omitempty"`
	Setup        string            `json:"setup,omitempty"`
	ExecPrefix   []string          `json:"exec_prefix,omitempty"`
	Slots        int               `json:"slots,omitempty"`
	Position     string            `json:"position"`
}

func newNodesDocument(inv *inventory.Inventory) nodesDocument {
	doc := nodesDocument{KnownHosts: inv.KnownHosts, Nodes: make([]nodeEntry, 0, len(inv.Hosts))}
	for _, h := range inv.Hosts {
		entry := nodeEntry(h)
		if entry.Groups == nil {
			entry.Groups = []string{}
		}
		doc.Nodes = append(doc.Nodes, entry)
	}
	return doc
}
