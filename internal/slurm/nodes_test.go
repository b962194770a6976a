package slurm

import (
	"reflect"
	"testing"
)

// sinfo's output about nodes in several partitions, as on a larger cluster.
func TestParseNodes(t *testing.T) {
	t.Parallel()
	const said = `gpu01|gpu|up|mixed|gpu:a100:8(S:0-1),lustre:1|a100,ib|1031000|none
gpu01|all*|up|mixed|gpu:a100:8(S:0-1),lustre:1|a100,ib|1031000|none
gpu02|gpu|up|drained*|gpu:2,gpu:h100:no_consume:4|(null)|1031000|disk | see 4711
I/O error | sda

cpu1|old|inact|idle~|(null)|(null)|1+|none
`
	got, err := parseNodes(said)
	want := []Node{
		{
			Name: "gpu01", Partitions: []Partition{{"all", true, true}, {"gpu", false, true}}, State: "mixed",
			MemoryMB: 1031000, GPUs: 8, GPUTypes: []string{"a100"}, Features: []string{"a100", "ib"},
		},
		{Name: "gpu02", Partitions: []Partition{{"gpu", false, true}}, State: "drained*", Reason: "disk | see 4711", MemoryMB: 1031000, GPUs: 6, GPUTypes: []string{"h100"}},
		{Name: "cpu1", Partitions: []Partition{{"old", false, false}}, State: "idle~", MemoryMB: 1},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\n%+v", err, got, want)
	}
	if _, err := parseNodes("gpu01|gpu\n"); err == nil {
		t.Error("half a line was understood")
	}
}

// scontrol's output about a tree of switches, about blocks, and about no topology.
func TestParseTopology(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]map[string]string{
		"SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[01-02]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu03\nSwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-03] Switches=leaf[1-2]\n": {"gpu01": "leaf1", "gpu02": "leaf1", "gpu03": "leaf2"},
		"BlockName=b1 BlockIndex=0 Nodes=gpu[01-02] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=(null) BlockSize=2\n":                                                                        {"gpu01": "b1", "gpu02": "b1"},
		"slurm_load_topo error: No topology information available\n":                                                                                                                          {},
	} {
		if got, err := parseTopology(said); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", said, got, err)
		}
	}
	if _, err := parseTopology("SwitchName=a Level=0 Nodes=gpu[01\n"); err == nil {
		t.Error("half a list was understood")
	}
}

// dsbuild gives up a node at once only if waiting cannot help.
func TestNodeStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"idle": "", "mixed-": "", "allocated": "", "completing": "", "reserved": "", "blocked": "", "idle*": "", "allocated@": "", "idle#": "",
		"idle~": "powered down", "down*": "down: broken", "drained": "drained: broken", "draining@": "draining: broken", "future": "future: broken",
	} {
		if n := (Node{State: state, Reason: "broken"}); n.down() != want {
			t.Errorf("%s: %q", state, n.down())
		}
	}
}

// dsbuild chooses a partition for each node, and excludes the partition's other nodes.
func TestByPartition(t *testing.T) {
	t.Parallel()
	up := func(names ...string) (all []Partition) {
		for _, n := range names {
			all = append(all, Partition{Name: n, Up: true})
		}
		return all
	}
	listed := []Node{
		{Name: "n1", Partitions: up("batch", "gpu")},
		{Name: "n2", Partitions: append([]Partition{{Name: "batch"}}, up("gpu")...)},
		{Name: "n3", Partitions: up("gpu")},
	}
	for wanted, want := range map[string]map[string][2][]string{
		"":          {"batch": {{"n1"}, {"n2"}}, "gpu": {{"n2"}, {"n1", "n3"}}},
		"gpu,batch": {"gpu": {{"n1", "n2"}, {"n3"}}},
	} {
		d := Dialer{opt: Options{Partition: wanted}}
		parts, unknown := d.byPartition([]string{"n1", "n2", "n9"}, listed)
		got := make(map[string][2][]string)
		for _, p := range parts {
			var names []string
			for _, n := range p.nodes {
				names = append(names, n.Name)
			}
			got[p.name] = [2][]string{names, p.others}
		}
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(unknown, []string{"n9"}) {
			t.Errorf("--partition %q: %v, unknown %q", wanted, got, unknown)
		}
	}
}
