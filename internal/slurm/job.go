package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// ConfigError is what Slurm says cannot be: nodes that it does not know, or a
// partition, an account or a time that it does not take.
type ConfigError struct {
	what string
	hint string
}

func (e *ConfigError) Error() string { return e.what }

// Hint says what to try.
func (e *ConfigError) Hint() string { return e.hint }

// ExitCode is that of a wrong configuration.
func (e *ConfigError) ExitCode() int { return 2 }

// NoNodes is the error of a partition without nodes, or that Slurm does not know; ""
// is the default one.
func NoNodes(partition string) *ConfigError {
	what := "Slurm has no nodes in partition " + partition
	if partition == "" {
		what = "Slurm has no default partition"
	}
	return &ConfigError{what, "'sinfo' says which partitions there are"}
}

// check finds out what cannot be, before anything is asked for.
func (d *Dialer) check(ctx context.Context) error {
	listed, err := Nodes(ctx, d.opt.Partition)
	if err != nil {
		return &ConfigError{err.Error(), hint.Of(err)}
	}
	parts, unknown := d.byPartition(d.opt.Nodes, listed)
	if len(unknown) > 0 {
		return d.unknown(ctx, unknown, listed)
	}
	for _, part := range parts {
		if len(part.usable()) == 0 {
			continue
		}
		args := append([]string{"--test-only", "--wrap=true"}, d.jobOptions(part, part.usable())...)
		if _, _, err := (Program{Name: "sbatch", Args: args}).Output(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			return &ConfigError{"Slurm would not take a job for these nodes: " + err.Error(),
				"'sinfo' says which partitions there are, 'sacctmgr show assoc user=$USER' which accounts and QOS are yours"}
		}
	}
	return nil
}

// unknown is the error of nodes that Slurm does not know, or not in this partition.
func (d *Dialer) unknown(ctx context.Context, names []string, listed []Node) error {
	const advice = "in the inventory a node must have the name that Slurm has for it (NodeName): 'sinfo --Node' lists them"
	if d.opt.Partition == "" {
		return &ConfigError{fmt.Sprintf("Slurm knows no node %s", ui.FoldNames(names)), advice}
	}
	if len(listed) == 0 {
		return NoNodes(d.opt.Partition)
	}
	all, err := Nodes(ctx, "")
	if err != nil {
		return err
	}
	_, strangers := d.byPartition(names, all)
	if len(strangers) > 0 {
		return &ConfigError{fmt.Sprintf("Slurm knows no node %s", ui.FoldNames(strangers)), advice}
	}
	return &ConfigError{fmt.Sprintf("%s: not in partition %s", ui.FoldNames(names), d.opt.Partition), "without --partition each is asked for in one that it is in"}
}

// partition is one in which nodes are asked for.
type partition struct {
	name   string
	nodes  []Node   // that are wanted
	others []string // that are in it, and are not
}

// usable are the wanted nodes that can be had, now or later.
func (p partition) usable() []string {
	var names []string
	for _, n := range p.nodes {
		if n.down() == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// byPartition finds for each node the partition to ask for it in, and names those
// that Slurm does not list.
func (d *Dialer) byPartition(names []string, listed []Node) (parts []partition, unknown []string) {
	at := make(map[string]int)
	known := make(map[string]Node, len(listed))
	for _, n := range listed {
		known[n.Name] = n
	}
	for _, name := range names {
		n, ok := known[name]
		if !ok {
			unknown = append(unknown, name)
			continue
		}
		in := d.partitionOf(n)
		if _, seen := at[in]; !seen {
			at[in] = len(parts)
			parts = append(parts, partition{name: in})
		}
		parts[at[in]].nodes = append(parts[at[in]].nodes, n)
	}
	for i := range parts {
		parts[i].others = parts[i].outsiders(listed)
	}
	return parts, unknown
}

// outsiders are the nodes of the partition that are not wanted.
func (p partition) outsiders(listed []Node) []string {
	wanted := make(map[string]bool, len(p.nodes))
	for _, n := range p.nodes {
		wanted[n.Name] = true
	}
	var names []string
	for _, n := range listed {
		in := slices.ContainsFunc(n.Partitions, func(one Partition) bool { return one.Name == p.name })
		if in && !wanted[n.Name] {
			names = append(names, n.Name)
		}
	}
	return names
}

// partitionOf is the first partition of a node, in the order asked for, that starts
// jobs; the first where none does.
func (d *Dialer) partitionOf(n Node) string {
	order := n.Partitions
	if d.opt.Partition != "" {
		wanted := strings.Split(d.opt.Partition, ",")
		order = slices.Clone(order)
		slices.SortStableFunc(order, func(a, b Partition) int {
			return slices.Index(wanted, a.Name) - slices.Index(wanted, b.Name)
		})
	}
	for _, p := range order {
		if p.Up {
			return p.Name
		}
	}
	return order[0].Name
}

// memoryMB is what a job asks of a node: enough for a Python that imports torch. It
// is not asked for where nodes say they have less: there nobody wrote down how much.
const memoryMB = 2048

// jobOptions are those of a job for some of these nodes of a partition: as many as
// are free, one at least. A list of nodes would mean all of them, so the others are
// excluded.
func (d *Dialer) jobOptions(p partition, names []string) []string {
	var args []string
	asked := slices.ContainsFunc(d.opt.More, func(option string) bool { return strings.HasPrefix(option, "--mem") })
	small := slices.ContainsFunc(p.nodes, func(n Node) bool { return n.MemoryMB < memoryMB })
	if !asked && !small {
		args = append(args, fmt.Sprintf("--mem=%dM", memoryMB))
	}
	args = append(args, d.opt.More...)
	// What follows has the last word. A node that fails must not take the others along.
	args = append(args, "--job-name=dsbuild", "--partition="+p.name, fmt.Sprintf("--nodes=1-%d", len(names)), "--cpus-per-task=1", "--no-kill")
	if others := p.without(names); len(others) > 0 {
		args = append(args, "--exclude="+ui.FoldNames(others))
	}
	for _, o := range []struct{ option, value string }{{"--account=", d.opt.Account}, {"--qos=", d.opt.QOS}, {"--time=", d.opt.Time}} {
		if o.value != "" {
			args = append(args, o.option+o.value)
		}
	}
	return args
}

// without are all nodes of the partition but these.
func (p partition) without(names []string) []string {
	var others []string
	for _, n := range p.nodes {
		if !slices.Contains(names, n.Name) {
			others = append(others, n.Name)
		}
	}
	return append(others, p.others...)
}
