// Package reporttest makes reports of example fleets.
package reporttest

import (
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// Counted returns a report of nodes.
func Counted(wheels []report.Wheel, nodes []report.Node) *report.Report {
	r := &report.Report{Wheels: wheels, Nodes: nodes}
	for _, n := range nodes {
		switch n.Status {
		case report.OK:
			r.Summary.OK++
		case report.Failed:
			r.Summary.Failed++
		case report.Unreachable:
			r.Summary.Unreachable++
		case report.Refused:
			r.Summary.Refused++
		case report.Differs:
			r.Summary.Differs++
		case report.Skipped:
			r.Summary.Skipped++
		}
	}
	r.Differences = differences(nodes)
	return r
}

// differences returns the differences of nodes, as a deploy reports them.
func differences(nodes []report.Node) []report.Difference {
	var facts []node.Facts
	var names []string
	for _, n := range nodes {
		if n.Facts == nil || n.Facts.Python == "" {
			continue
		}
		f := *n.Facts
		f.DeepSpeed = nil
		if n.After != nil {
			f.DeepSpeed = &node.Installed{Version: n.After.Version, SHA256: n.After.SHA256}
		}
		facts, names = append(facts, f), append(names, n.Name)
	}
	var all []report.Difference
	for _, d := range node.Compare(facts, node.Properties()) {
		one := report.Difference{What: d.What, Must: d.Must}
		for _, v := range d.Values {
			value := report.DifferenceValue{Value: v.Value}
			for _, at := range v.Nodes {
				value.Nodes = append(value.Nodes, names[at])
			}
			one.Values = append(one.Values, value)
		}
		all = append(all, one)
	}
	return all
}

// TheWheel returns the wheel of the reports.
func TheWheel() report.Wheel {
	const version = "0.19.8+torch2.15.cu132.sm80.v3"
	return report.Wheel{
		Name:    "deepspeed-" + version + "-cp311-cp311-manylinux_2_35_x86_64.whl",
		SHA256:  strings.Repeat("9e7860b7c091b6fd", 4),
		Version: version,
	}
}

// Good returns a node on which all went well.
func Good(i int) report.Node {
	w := TheWheel()
	abi := true
	var gpus []node.GPU
	for range 8 {
		gpus = append(gpus, node.GPU{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"})
	}
	name := fmt.Sprintf("gpu%02d", i)
	return report.Node{
		Name: name, Status: report.OK, Step: "record", Changed: true, Wheel: w.Name, ExtraWheels: []string{},
		Before: &report.Version{Version: "0.18.2"},
		After:  &report.Version{Version: w.Version, SHA256: w.SHA256},
		Facts: &node.Facts{
			Python: "3.11.9", Executable: "/opt/train/venv/bin/python", Prefix: "/opt/train/venv", Tag: "cp311",
			Platform: "linux_x86_64", Glibc: "2.36", CPU: "x86-64-v4", SitePackages: "/opt/train/venv/lib/python3.11/site-packages",
			FileSystem: "ext4", Writable: true, Pip: "24.0",
			Torch: "2.15.0", TorchCUDA: "13.2", Libstdcxx: "3.4.30", CXX11ABI: &abi, NCCL: "2.28.9", Transformers: "5.2.0",
			Environment: "venv", GPUs: gpus, Driver: "590.48.01",
			DeepSpeed: &node.Installed{Version: "0.18.2", Path: "/opt/train/venv/lib/python3.11/site-packages/deepspeed"},
			FreeBytes: int64(412+i%37)<<30 + int64(i)<<24, FreeTmpBytes: int64(412+i%37)<<30 + int64(i)<<24,
		},
		Seconds: map[string]float64{
			"connect": 0.31 + float64(i%7)/50, "probe": 0.82 + float64(i%5)/20, "put": 1.9 + float64(i%11)/4,
			"install": 4.2 + float64(i%3)/2, "verify": 6.1 + float64(i%13)/5, "record": 0.11,
		},
	}
}

// Mixed returns a fleet in which much went wrong, or differs.
func Mixed() *report.Report {
	var nodes []report.Node
	for i := 1; i <= 24; i++ {
		n := Good(i)
		switch i {
		case 5:
			n.Facts.Driver = "580.95.05"
		case 9, 10, 11:
			n.Facts.NCCL, n.Facts.Transformers = "2.27.5", "4.57.1"
		case 15:
			n.Facts, n.Wheel, n.Before = nil, "", nil
			Spoil(&n, report.Unreachable, "connect", "gpu15: dial tcp 10.0.0.15:22: connect: no route to host", "is the node switched on, and its address right in the inventory?")
		case 17, 18:
			Spoil(&n, report.Refused, "fit", "deepspeed needs hjson, which is not installed; deepspeed needs ninja, which is not installed",
				"install what is missing, or bring it along: dsbuild deploy inventory.yaml --deps bundle")
		case 20:
			Spoil(&n, report.Failed, "verify", "cannot load op cpu_adam: ImportError: /opt/train/venv/lib/python3.11/site-packages/deepspeed/ops/adam/cpu_adam.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jS2_; rolled back to DeepSpeed 0.18.2", "torch on this node is not the one the wheel was built for: dsbuild wheel --torch 2.14.1 --python 3.11")
			n.Facts.Torch, n.Facts.TorchCUDA = "2.14.1", "12.9"
		case 22, 23, 24:
			n.Facts.GPUs = []node.GPU{{Name: "NVIDIA GeForce RTX 2080 Ti", Arch: "7.5"}, {Name: "NVIDIA GeForce RTX 2080 Ti", Arch: "7.5"}}
			n.Facts.CPU = "x86-64-v3"
			Spoil(&n, report.Refused, "fit", "built for sm_80, but this node has RTX 2080 Ti (7.5)", "build a wheel for it: dsbuild wheel --arch 7.5 --torch 2.15.0 --python 3.11")
		}
		nodes = append(nodes, n)
	}
	return Counted([]report.Wheel{TheWheel()}, nodes)
}

// Spoil turns a node into one on which a step failed, and which has its old DeepSpeed.
func Spoil(n *report.Node, status report.Status, step, err, hint string) {
	n.Status, n.Step, n.Error, n.Hint, n.Changed = status, step, err, hint, false
	n.After = n.Before
	last := []string{"connect", "probe", "put", "install", "verify", "record"}
	reached := false
	for _, s := range last {
		if reached || step == "fit" && s == "put" {
			reached = true
			delete(n.Seconds, s)
		}
		reached = reached || s == step
	}
}

// Hostile returns a fleet whose every text tries to run as a script.
func Hostile() *report.Report {
	const run = `</script><script>window.hacked="script"</script><img src=x onerror="window.hacked='img'"><svg onload=window.hacked=1>'"` +
		"`${window.hacked=2}`" + `<!--<script>{{.}}javascript:hacked=3&lt;script&gt;` + "\u2028\u202e\x1b[31m"
	r := Mixed()
	r.Wheels[0] = report.Wheel{Name: run, SHA256: run, Version: run}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		n.Name = fmt.Sprintf("%s%d", run, i)
		n.Error, n.Hint, n.Wheel = run, "do: dsbuild "+run, run
		n.ExtraWheels, n.Log = []string{run}, run
		n.Seconds[run] = 1
		n.Differs, n.Notes = []string{run, run}, []string{run}
		if n.After != nil {
			n.After.Version = run
		}
		if f := n.Facts; f != nil {
			f.Torch, f.TorchCUDA, f.Driver, f.Prefix, f.SitePackages = run, fmt.Sprint(run, i), run, run, run
			f.GPUs[0].Name = run
			f.Missing = []string{run}
		}
	}
	r.Groups = []report.Group{{Name: run, State: run, Nodes: []string{run}, Running: []string{run}, Why: []string{run}, Python: run, Ops: []string{run}, Error: run, Hint: "do: dsbuild " + run}}
	r.Differences = append(differences(r.Nodes), report.Difference{What: run, Values: []report.DifferenceValue{
		{Value: run, Nodes: []string{r.Nodes[0].Name}}, {Value: "", Nodes: []string{r.Nodes[1].Name}},
	}})
	return r
}

// Thousands returns a large fleet; its nodes are nearly all alike, or all different.
func Thousands(n int, different bool) *report.Report {
	r := Mixed()
	nodes := make([]report.Node, 0, n)
	for i := range n {
		one := r.Nodes[i%len(r.Nodes)]
		one.Name = fmt.Sprintf("rack%02d-gpu%03d", i/40, i%40)
		if different {
			one.Error = fmt.Sprintf("something of its own happened on %s at %d", one.Name, i*7919)
			if one.Facts != nil {
				facts := *one.Facts
				facts.Driver, facts.FreeBytes = fmt.Sprintf("590.%d", i), facts.FreeBytes+int64(i)<<27
				one.Facts = &facts
			}
		}
		nodes = append(nodes, one)
	}
	return Counted(r.Wheels, nodes)
}
