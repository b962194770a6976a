package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// noNodes returns the error of a partition that has no nodes or does not exist. "" is the default
// partition.
func noNodes(partition string) error {
	what := "no nodes in Slurm partition " + partition
	if partition == "" {
		what = "no default partition in Slurm"
	}
	return fault.New(fault.Usage, "list the partitions: sinfo", "%s", what)
}

// check tests the nodes and the job options with Slurm before any node is requested.
func (d *Dialer) check(ctx context.Context) error {
	listed, err := Nodes(ctx, d.opt.Partition)
	if err != nil {
		return fault.WithCode(err, fault.Usage)
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
			return fault.New(fault.Usage,
				"list the partitions with sinfo, and your accounts and QOS with sacctmgr show assoc user=$USER",
				"job rejected by Slurm: %w", err)
		}
	}
	return nil
}

// unknown returns the error of nodes that do not exist, or are not in this partition.
func (d *Dialer) unknown(ctx context.Context, names []string, listed []Node) error {
	const advice = "use Slurm's node names (NodeName) in the inventory; list them: sinfo --Node"
	if d.opt.Partition == "" {
		return fault.New(fault.Usage, advice, "%s: unknown to Slurm", ui.FoldNames(names))
	}
	if len(listed) == 0 {
		return noNodes(d.opt.Partition)
	}
	all, err := Nodes(ctx, "")
	if err != nil {
		return err
	}
	_, strangers := d.byPartition(names, all)
	if len(strangers) > 0 {
		return fault.New(fault.Usage, advice, "%s: unknown to Slurm", ui.FoldNames(strangers))
	}
	return fault.New(fault.Usage, "omit --partition to request each node in one of its own partitions",
		"%s: not in partition %s", ui.FoldNames(names), d.opt.Partition)
}

// partition is a Slurm partition in which nodes are requested.
type partition struct {
	name   string
	nodes  []Node   // the wanted nodes
	others []string // the other nodes of the partition
}

// usable returns the wanted nodes that Slurm can allocate, now or later.
func (p partition) usable() []string {
	var names []string
	for _, n := range p.nodes {
		if n.down() == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// byPartition groups nodes by the partition in which they will be requested. unknown are the nodes
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
		// The nodes of the partition that are not requested.
		p := parts[i]
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
		parts[i].others = names
	}
	return parts, unknown
}

// partitionOf returns the first partition of a node, in the order of Options.Partition, that starts
// jobs. If none does, it returns the first.
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

// memoryMB is the memory that a job requests on a node: enough for a Python that imports torch. If
// a node of the partition has less in Slurm's configuration, the administrator probably set no
// RealMemory, and the job requests no memory.
const memoryMB = 2048

// jobOptions returns the options of a job for at least one and at most all of these nodes of a
// partition. --nodelist would demand all of them, so jobOptions excludes the partition's other
// nodes instead.
func (d *Dialer) jobOptions(p partition, names []string) []string {
	var args []string
	asked := slices.ContainsFunc(d.opt.More, func(option string) bool { return strings.HasPrefix(option, "--mem") })
	small := slices.ContainsFunc(p.nodes, func(n Node) bool { return n.MemoryMB < memoryMB })
	if !asked && !small {
		args = append(args, fmt.Sprintf("--mem=%dM", memoryMB))
	}
	args = append(args, d.opt.More...)
	// Later options override the user's. --no-kill keeps the job when one of its nodes fails.
	args = append(args, "--job-name=dsbuild", "--partition="+p.name,
		fmt.Sprintf("--nodes=1-%d", len(names)), "--cpus-per-task=1", "--no-kill")
	others := slices.Clone(p.others)
	for _, n := range p.nodes {
		if !slices.Contains(names, n.Name) {
			others = append(others, n.Name)
		}
	}
	if len(others) > 0 {
		args = append(args, "--exclude="+ui.FoldNames(others))
	}
	for _, o := range []struct{ option, value string }{
		{"--account=", d.opt.Account},
		{"--qos=", d.opt.QOS},
		{"--time=", d.opt.Time},
	} {
		if o.value != "" {
			args = append(args, o.option+o.value)
		}
	}
	return args
}
