package slurm

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// Node is a node as sinfo lists it.
type Node struct {
	Name string
	// Partitions are the node's partitions, the default one first.
	Partitions []Partition
	// State is sinfo's word for the state, such as idle, mixed or drained*.
	State string
	// Reason is the reason why the node is down or drained, if any.
	Reason   string
	MemoryMB int // memory that jobs may request; 1 if it is not configured
	GPUs     int
	GPUTypes []string
	Features []string
}

// Partition is a partition as sinfo lists it.
type Partition struct {
	Name    string
	Default bool
	Up      bool // starts jobs
}

// sinfoFields are the columns of sinfo's output. The reason is last, because it may contain any text.
const sinfoFields = "%N|%P|%a|%T|%G|%b|%m|%E"

// Nodes lists the nodes of a partition, or of several separated by commas. If partition is empty, it
// lists all nodes that this user may see.
func Nodes(ctx context.Context, partition string) ([]Node, error) {
	args := []string{"--noheader", "--Node", "--format=" + sinfoFields}
	if partition != "" {
		args = append(args, "--partition="+partition)
	}
	out, said, err := Program{Name: "sinfo", Args: args}.Output(ctx)
	if err != nil {
		try := cmp.Or(fault.Hint(err), "run dsbuild on a login node of the cluster, where sinfo lists its nodes")
		return nil, fault.WithHint(fmt.Errorf("cannot list Slurm nodes: %w", err), "%s", try)
	}
	nodes, err := parseNodes(out)
	if err == nil && len(nodes) == 0 && said != "" {
		err = fmt.Errorf("cannot list Slurm nodes: %s", said)
	}
	return nodes, err
}

// parseNodes reads sinfo's lines, one for each node and partition.
func parseNodes(text string) ([]Node, error) {
	var nodes []Node
	place := make(map[string]int)
	reason := "none" // of the line before
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", strings.Count(sinfoFields, "|")+1)
		if len(f) != strings.Count(sinfoFields, "|")+1 || f[0] == "" {
			if reason != "none" { // a reason of several lines, such as the output of a program
				continue
			}
			return nil, fmt.Errorf("unexpected output of sinfo: %.200q", line)
		}
		reason = f[7]
		name, isDefault := strings.CutSuffix(f[1], "*")
		i, seen := place[f[0]]
		if !seen {
			i = len(nodes)
			place[f[0]] = i
			// Split one of Slurm's lists, which prints "(null)" if it is empty.
			list := f[5]
			var features []string
			for w := range strings.SplitSeq(list, ",") {
				if w != "" && w != "(null)" && w != "N/A" {
					features = append(features, w)
				}
			}
			n := Node{Name: f[0], State: f[3], Features: features}
			n.GPUs, n.GPUTypes = gpus(f[4])
			n.MemoryMB, _ = strconv.Atoi(strings.TrimSuffix(f[6], "+")) //nolint:errcheck // 0 is less than any job requests
			if f[7] != "none" {
				n.Reason = f[7]
			}
			nodes = append(nodes, n)
		}
		p := Partition{Name: name, Default: isDefault, Up: f[2] == "up"}
		if isDefault {
			nodes[i].Partitions = slices.Insert(nodes[i].Partitions, 0, p)
		} else {
			nodes[i].Partitions = append(nodes[i].Partitions, p)
		}
	}
	return nodes, nil
}

// gresItem matches one generic resource, such as gpu:2, gpu:a100:8(S:0-1), gpu:1g.5gb:7 or
// gpu:tesla:no_consume:4. The last word is the count.
var gresItem = regexp.MustCompile(`(?:^|,)gpu((?::[A-Za-z0-9][A-Za-z0-9_.-]*)+)`)

// gpus counts the GPUs in a list of generic resources and returns their types.
func gpus(list string) (count int, types []string) {
	for _, m := range gresItem.FindAllStringSubmatch(list, -1) {
		words := strings.Split(m[1], ":")[1:]
		n, err := strconv.Atoi(words[len(words)-1])
		if err != nil {
			continue
		}
		count += n
		for _, t := range words[:len(words)-1] {
			if t != "no_consume" && !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
	}
	return count, types
}

// stateFlags are the flags that sinfo appends to a state.
const stateFlags = "*~#!%$@^-+"

// down returns the reason why Slurm will never start a job on the node. It returns "" if Slurm may.
func (n Node) down() string {
	state := strings.TrimRight(n.State, stateFlags)
	switch {
	case strings.ContainsAny(n.State[len(state):], "~!%"):
		return "powered down" // a wake-up may take long and cost money
	case slices.Contains([]string{"idle", "mixed", "allocated", "completing", "planned", "reserved", "maint", "blocked"}, state):
		return ""
	case n.Reason != "":
		return state + ": " + n.Reason
	}
	return state
}

// stateOf returns a job's state and its reason, as squeue prints them.
func stateOf(ctx context.Context, id string) (state, reason string, err error) {
	args := []string{"--noheader", "--jobs=" + id, "--states=all", "--format=%T|%r"}
	out, _, err := Program{Name: "squeue", Args: args}.Output(ctx)
	if err != nil {
		return "", "", err
	}
	line, _, _ := strings.Cut(out, "\n")
	state, reason, _ = strings.Cut(line, "|")
	if reason == "None" {
		reason = ""
	}
	return state, reason, nil
}

// Inventory lists the nodes of a partition, or of the default partition.
func Inventory(ctx context.Context, partition string) ([]inventory.SlurmNode, error) {
	listed, err := Nodes(ctx, partition)
	if err != nil {
		return nil, err
	}
	// The topology only sorts the nodes. Without it, they stay in Slurm's order.
	switches, _ := Switches(ctx) //nolint:errcheck // optional
	var nodes []inventory.SlurmNode
	for _, n := range listed {
		groups := slices.Concat(n.Features, n.GPUTypes)
		isDefault := false
		for _, p := range n.Partitions {
			groups = append(groups, p.Name)
			isDefault = isDefault || p.Default
		}
		if name := switches[n.Name]; name != "" {
			groups = append(groups, name)
		}
		if partition != "" || isDefault {
			nodes = append(nodes, inventory.SlurmNode{Name: n.Name, Slots: n.GPUs, Groups: groups})
		}
	}
	if len(nodes) == 0 {
		return nil, noNodes(partition)
	}
	return nodes, nil
}
