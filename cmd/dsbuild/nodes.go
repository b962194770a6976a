package main

import (
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
		RunE: func(_ *cobra.Command, args []string) error {
			opts.inventory = args[0]
			return runNodes(a, opts)
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

// loadInventory reads the inventory at path ("-" is standard input) and keeps
// what --limit names.
func (a *app) loadInventory(path, limit string) (*inventory.Inventory, error) {
	read := func() (*inventory.Inventory, error) { return inventory.Load(path) }
	if path == "-" {
		read = func() (*inventory.Inventory, error) { return inventory.Read(a.stdin, path) }
	}
	inv, err := read()
	if err != nil {
		return nil, err
	}
	return inv.Select(limit)
}

func runNodes(a *app, opts nodesOptions) error {
	inv, err := a.loadInventory(opts.inventory, opts.limit)
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
