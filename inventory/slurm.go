package inventory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// slurmPrefix is the prefix of an inventory from Slurm. A partition or a list of partitions follows,
// or nothing for the default partition.
const slurmPrefix = "slurm:"

// SlurmNode is a node as Slurm reports it.
type SlurmNode struct {
	Name   string
	Slots  int      // number of GPUs, or 0 if unknown
	Groups []string // partitions, features and GPU types
}

// fromSlurm reads the nodes of a partition.
func (o Options) fromSlurm(ctx context.Context, name string) (*Inventory, error) {
	rd, err := newReader("-")
	if err != nil {
		return nil, unreadable(name, err)
	}
	rd.File = name
	partition := strings.TrimPrefix(name, slurmPrefix)
	if o.Slurm == nil {
		return nil, unreadable(name, fmt.Errorf("Slurm partitions are not supported here")) //nolint:staticcheck // a name
	}
	found, err := o.Slurm(ctx, partition)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		failed := unreadable(name, err)
		failed.Problems[0].Hint = fault.Hint(err)
		return nil, failed
	}
	inv := rd.slurmNodes(found)
	if err := rd.Err(); err != nil {
		return nil, err
	}
	inv.Path = name
	return inv, nil
}

// slurmNodes makes an inventory of Slurm's nodes.
func (r *reader) slurmNodes(found []SlurmNode) *Inventory {
	at := Position{File: r.File}
	list := nodeList{reader: r, first: make(map[string]Position)}
	names := make(map[string]bool, len(found))
	for _, n := range found {
		names[n.Name] = true
	}
	for _, n := range found {
		if err := checkName(n.Name); err != nil {
			r.Add(at, "", "%v", err)
			continue
		}
		var s settings
		if n.Slots > 0 {
			s.slots = some(n.Slots)
		}
		for _, g := range n.Groups {
			// --limit cannot use a group with an invalid name, or with the name of a node.
			if checkName(g) == nil && !names[g] && !slices.Contains(s.groups, g) {
				s.groups = append(s.groups, g)
			}
		}
		list.addNode(n.Name, at, s)
	}
	if len(found) == 0 {
		r.Add(at, "", "no nodes in the inventory")
	}
	return &Inventory{Hosts: list.hosts}
}
