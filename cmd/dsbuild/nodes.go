package main

import (
	"context"
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
	json      bool
}

func newNodesCommand(a *app) *cobra.Command {
	var opts nodesOptions
	cmd := &cobra.Command{
		Use:   "nodes INVENTORY",
		Short: "List the nodes of an inventory",
		Long: `List the nodes of an inventory with what is known about reaching them. Nothing
is contacted. INVENTORY is a YAML file, or - for standard input.`,
		Example: `  dsbuild nodes inventory.yaml
  dsbuild nodes inventory.yaml --limit 'a100,!gpu[03-04]' --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.inventory = args[0]
			return runNodes(cmd.Context(), a, opts)
		},
	}
	addLimitFlag(cmd, &opts.limit)
	cmd.Flags().BoolVar(&opts.json, "json", false, "print one JSON document")
	return cmd
}

// addLimitFlag gives a command --limit, for app.loadInventory.
func addLimitFlag(cmd *cobra.Command, limit *string) {
	cmd.Flags().StringVar(limit, "limit", "", "only these `NODES`: names, ranges and groups, separated by commas; !NAME leaves out")
}

// loadInventory reads what a user gave as INVENTORY and keeps what --limit names.
// What the inventory of another tool says in vain is noted.
func (a *app) loadInventory(ctx context.Context, name, limit string) (*inventory.Inventory, error) {
	inv, err := inventory.Open(ctx, name, inventory.Options{Stdin: a.stdin, Ansible: ansibleInventory()})
	if err != nil {
		return nil, err
	}
	if inv, err = inv.Select(limit); err != nil {
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
	if opts.json {
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

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// nodesDocument is the JSON document of dsbuild nodes --json. What the
// inventory does not say is left out.
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
