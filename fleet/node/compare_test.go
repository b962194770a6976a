package node_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
)

// member is a node with DeepSpeed and all that must be equal, and one change.
func member(change func(*node.Facts)) node.Facts {
	abi := true
	f := node.Facts{
		Python: "3.11.2", Tag: "cp311", Glibc: "2.36", CPU: "x86-64-v4", Torch: "2.15.0", TorchCUDA: "13.2", NCCL: "2.28.9", CXX11ABI: &abi,
		Transformers: "5.0.0", Driver: "580.65.06", GPUs: []node.GPU{{Name: "NVIDIA H200", Arch: "9.0"}, {Name: "NVIDIA H200", Arch: "9.0"}},
		Libstdcxx: "3.4.30", Environment: "venv",
		DeepSpeed: &node.Installed{Version: "0.19.8+torch2.15.cu132.sm90.v3", SHA256: strings.Repeat("a", 64)},
	}
	if change != nil {
		change(&f)
	}
	return f
}

// fleet is n nodes alike, then the given ones.
func fleet(n int, others ...node.Facts) []node.Facts {
	return append(slices.Repeat([]node.Facts{member(nil)}, n), others...)
}

func version(v string) func(*node.Facts) {
	return func(f *node.Facts) { f.DeepSpeed = &node.Installed{Version: v} }
}

func TestCompareNamesWhoHasWhat(t *testing.T) {
	if d := node.Compare(fleet(3), node.Properties()); len(d) != 0 {
		t.Errorf("equal nodes differ: %v", d)
	}
	if d := node.Compare(nil, node.Properties()); len(d) != 0 {
		t.Errorf("no nodes differ: %v", d)
	}
	d := node.Compare([]node.Facts{member(func(f *node.Facts) { f.Torch, f.Driver = "2.14.0", "" }), member(nil), member(nil)}, node.Properties())
	want := []node.Diff{
		{What: "torch", Must: true, Values: []node.Value{{Value: "2.15.0", Nodes: []int{1, 2}}, {Value: "2.14.0", Nodes: []int{0}}}},
		{What: "driver", Values: []node.Value{{Value: "580.65.06", Nodes: []int{1, 2}}, {Value: "", Nodes: []int{0}}}},
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("diffs: %v", d)
	}
}

// TestCompareWhatMustBeEqual changes one thing at a time.
func TestCompareWhatMustBeEqual(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*node.Facts)
		must   bool
	}{
		"deepspeed, other release":  {version("0.19.7+torch2.15.cu132.sm90.v3"), true},
		"deepspeed, other commit":   {version("0.19.8+g1234567.torch2.15.cu132.sm90.v3"), true},
		"deepspeed, changed source": {version("0.19.8+g1234567.sabcdef0.torch2.15.cu132.sm90.v3"), true},
		"deepspeed, its own build":  {version("0.19.8+unknown"), true},
		"deepspeed, none":           {func(f *node.Facts) { f.DeepSpeed = nil }, true},
		"deepspeed, other GPUs":     {version("0.19.8+torch2.15.cu132.sm80.v3"), false},
		"torch, patch level":        {func(f *node.Facts) { f.Torch = "2.15.1" }, true},
		"torch, none":               {func(f *node.Facts) { f.Torch = "" }, true},
		"cuda":                      {func(f *node.Facts) { f.TorchCUDA = "13.0" }, true},
		"cxx11abi":                  {func(f *node.Facts) { old := false; f.CXX11ABI = &old }, true},
		"nccl":                      {func(f *node.Facts) { f.NCCL = "2.27.3" }, true},
		"python":                    {func(f *node.Facts) { f.Python = "3.12.2" }, true},
		"python, free-threaded":     {func(f *node.Facts) { f.Tag += "t" }, true},
		"torch, another build":      {func(f *node.Facts) { f.TorchBuild = "rocm6.4" }, true},
		"python, patch level":       {func(f *node.Facts) { f.Python = "3.11.9" }, false},
		"transformers":              {func(f *node.Facts) { f.Transformers = "4.57.1" }, true},
		"transformers, none":        {func(f *node.Facts) { f.Transformers = "" }, true},
		"gpus":                      {func(f *node.Facts) { f.GPUs = f.GPUs[:1] }, false},
		"driver":                    {func(f *node.Facts) { f.Driver = "570.1" }, false},
		"cpu":                       {func(f *node.Facts) { f.CPU = "x86-64-v3" }, false},
		"glibc":                     {func(f *node.Facts) { f.Glibc = "2.31" }, false},
		"libstdcxx":                 {func(f *node.Facts) { f.Libstdcxx = "3.4.29" }, false},
		"container":                 {func(f *node.Facts) { f.Container = "docker" }, false},
		"environment":               {func(f *node.Facts) { f.Environment = "conda" }, false},
	} {
		facts := fleet(2, member(c.change))
		property, _, _ := strings.Cut(what, ",")
		found := node.Compare(facts, node.Properties())
		if len(found) != 1 || found[0].What != property || found[0].Must != c.must {
			t.Errorf("%s: %+v", what, found)
		}
		deviations := node.Deviations(facts, node.Properties(), nil)
		if len(deviations[0])+len(deviations[1]) > 0 || (len(deviations[2]) == 1) != c.must {
			t.Errorf("%s: %+v", what, deviations)
		}
	}
}

func TestWhatIsNotKnownIsNoDifference(t *testing.T) {
	blank := member(func(f *node.Facts) {
		f.CXX11ABI, f.NCCL, f.Libstdcxx, f.Environment = nil, "", "", ""
		f.DeepSpeed = &node.Installed{Version: f.DeepSpeed.Version}
	})
	if d := node.Compare(fleet(1, blank), node.Properties()); len(d) > 0 {
		t.Errorf("%+v", d)
	}
	if d := node.Deviations(fleet(1, blank), node.Properties(), nil); len(d[0])+len(d[1]) > 0 {
		t.Errorf("%+v", d)
	}
	other := member(func(f *node.Facts) { f.NCCL = "2.27.3" })
	d := node.Compare(fleet(2, blank, other), node.Properties())
	if len(d) != 1 || len(d[0].Values) != 2 || !slices.Equal(d[0].Values[1].Nodes, []int{3}) {
		t.Errorf("%+v", d)
	}
}

func TestDeviationsSayFromWhom(t *testing.T) {
	facts := fleet(14, member(func(f *node.Facts) { f.Torch = "2.14.0" }), member(func(f *node.Facts) { f.Python = "3.11.9" }))
	got := node.Deviations(facts, node.Properties(), nil)
	want := []node.Deviation{{What: "torch", Value: "2.14.0", Norm: "2.15.0", Most: 15, Of: 16}}
	for i, d := range got {
		if i == 14 && !reflect.DeepEqual(d, want) || i != 14 && len(d) > 0 {
			t.Errorf("node %d: %+v", i, d)
		}
	}
}

func TestDeviationsFromThoseThatVote(t *testing.T) {
	other := func(f *node.Facts) { f.Torch = "2.14.0" }
	facts := fleet(1, member(other), member(other))
	for i, d := range node.Deviations(facts, node.Properties(), []bool{true, false, false}) {
		if (len(d) == 1 && d[0].Norm == "2.15.0" && d[0].Most == 1) != (i > 0) {
			t.Errorf("node %d: %+v", i, d)
		}
	}
	for i, d := range node.Deviations(facts, node.Properties(), make([]bool, 3)) {
		if (len(d) == 1 && d[0].Norm == "2.14.0") != (i == 0) {
			t.Errorf("with no votes, node %d: %+v", i, d)
		}
	}
}

func TestDeviationsOfATie(t *testing.T) {
	other := func(f *node.Facts) { f.Torch = "2.14.0" }
	facts := fleet(2, member(other), member(other), member(func(f *node.Facts) { f.Torch = "2.13.0" }))
	for i, d := range node.Deviations(facts, node.Properties(), nil) {
		if len(d) != 1 || d[0].What != "torch" || len(d[0].Tie) != 3 || d[0].Value != facts[i].Torch || !slices.Equal(d[0].Tie[1].Nodes, []int{2, 3}) {
			t.Errorf("node %d: %+v", i, d)
		}
	}
}

// TestNormIsANodeThatExists: most nodes have Python 3.12, but most of those with
// the torch that most have do not.
func TestNormIsANodeThatExists(t *testing.T) {
	b := func(f *node.Facts) { f.Torch, f.Python = "2.14.0", "3.12.1" }
	c := func(f *node.Facts) { f.Torch, f.Python = "2.13.0", "3.12.1" }
	facts := fleet(6, slices.Concat(slices.Repeat([]node.Facts{member(b)}, 5), slices.Repeat([]node.Facts{member(c)}, 5))...)
	for i, d := range node.Deviations(facts, node.Properties(), nil) {
		switch {
		case i < 6 && len(d) > 0:
			t.Errorf("node %d is of the largest group: %+v", i, d)
		case i >= 6 && (len(d) != 2 || d[1].What != "python" || d[1].Norm != "3.11.2" || d[1].Most != 6 || d[1].Of != 16):
			t.Errorf("node %d: %+v", i, d)
		}
	}
}

// cpuTime is the CPU time of this process so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestCompareManyNodes: nodes that are all different take no square of time.
func TestCompareManyNodes(t *testing.T) {
	const few, many = 1000, 20_000
	took := func(count int) time.Duration {
		var facts []node.Facts
		for i := range count {
			facts = append(facts, member(func(f *node.Facts) { f.Driver, f.Torch = fmt.Sprint(i), fmt.Sprint(i) }))
		}
		begin := cpuTime(t)
		node.Compare(facts, node.Properties())
		node.Deviations(facts, node.Properties(), nil)
		return cpuTime(t) - begin
	}
	if one, all := took(few), took(many); all > 5*many/few*one {
		t.Errorf("%d nodes took %s, and %d %s", few, one, many, all)
	}
}
