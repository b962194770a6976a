package ship

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

func archs(t *testing.T, names ...string) []wheel.Arch {
	t.Helper()
	all, err := wheel.ParseArchs(names)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ended is the error of a program that ended with a status.
func ended(t *testing.T, status int) error {
	t.Helper()
	return exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("exit %d", status)).Run()
}

// codedError is an error with an exit code.
type codedError int

func (codedError) Error() string   { return "refused" }
func (c codedError) ExitCode() int { return int(c) }

// The name of a wheel says for which nodes it is, and no two wheels of a run have one name.
func TestNamesOfWheels(t *testing.T) {
	t.Parallel()
	r := wheel.Request{Python: "3.11", Torch: "2.15.0", CUDA: "13.2", CPU: wheel.CPUv3, Archs: archs(t, "8.0", "9.0")}
	stable, onCPU := r, r
	stable.ABI = wheel.StableABI
	onCPU.ABI, onCPU.CUDA, onCPU.CPU, onCPU.Archs = wheel.StableABI, "", "", nil
	old := wheel.Request{Python: "3.10", Torch: "2.4.1"}
	all := []*Delivery{{Request: r}, {Request: r}, {Request: old}, {Request: stable}, {Request: onCPU}}
	nameWheels(all)
	for i, want := range []string{
		"cp311-torch2.15.0-sm80-sm90-v3", "cp311-torch2.15.0-sm80-sm90-v3-2", "cp310-torch2.4.1",
		"py3-torch" + compat.StableTorch + "-cu132-sm80-sm90-v3", "py3-torch" + compat.StableTorch,
	} {
		if all[i].Name != want {
			t.Errorf("%d: %s, want %s", i, all[i].Name, want)
		}
	}
}

// The exit code says whom to blame: the request, the wheels or some nodes; never the status of a
// program that ran in a build.
func TestErrorOfPlan(t *testing.T) {
	t.Parallel()
	good := &Delivery{Name: "good", Nodes: []string{"a"}}
	bad := func(err error) *Delivery { return &Delivery{Name: "bad", Nodes: []string{"b", "c"}, Err: err} }
	unserved := ExcludedNode{Node: "d", Reasons: []string{"no torch"}, Hint: "install torch", unserved: true}
	lost := ExcludedNode{Node: "e", Reasons: []string{"no connection"}}
	for name, c := range map[string]struct {
		plan Selection
		text string
		code int
		hint string
	}{
		"all served":        {Selection{Nodes: 1, Wheels: []*Delivery{good}}, "", 0, ""},
		"no nodes left":     {Selection{}, "", 0, ""},
		"one left":          {Selection{Nodes: 2, Wheels: []*Delivery{good}, Excluded: []ExcludedNode{lost}}, "1 of 2 nodes get no wheel", 3, ""},
		"one failed":        {Selection{Nodes: 3, Wheels: []*Delivery{good, bad(errors.New("x"))}}, "2 of 3 nodes get no wheel: 1 of 2 wheels failed", 3, ""},
		"none can be built": {Selection{Nodes: 1, Excluded: []ExcludedNode{unserved}}, "cannot build a wheel for any of the nodes", 2, "install torch"},
		"none is reached":   {Selection{Nodes: 2, Excluded: []ExcludedNode{unserved, lost}}, "2 of 2 nodes get no wheel", 3, ""},
		"the only one":      {Selection{Nodes: 2, Wheels: []*Delivery{bad(fault.WithHint(codedError(4), "look"))}}, "bad: refused", 4, "look"},
		"all, for one reason": {
			Selection{Nodes: 4, Wheels: []*Delivery{bad(codedError(4)), bad(fault.WithHint(codedError(4), "look"))}},
			"all 2 wheels failed:\nbad: refused\nbad: refused\n  hint: look", 4, "",
		},
		"all, for several": {Selection{Nodes: 4, Wheels: []*Delivery{bad(codedError(4)), bad(codedError(2))}}, "all 2 wheels failed:\nbad: refused\nbad: refused", 1, ""},
		"all, by a program": {
			Selection{Nodes: 4, Wheels: []*Delivery{bad(ended(t, 2)), bad(fmt.Errorf("ninja: %w", ended(t, 2)))}},
			"all 2 wheels failed:\nbad: exit status 2\nbad: ninja: exit status 2", 1, "",
		},
	} {
		err := c.plan.Err()
		if c.text == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || err.Error() != c.text || fault.ExitCode(err) != c.code || fault.Hint(err) != c.hint {
			t.Errorf("%s: %v, code %d, hint %q", name, err, fault.ExitCode(err), fault.Hint(err))
		}
	}
}

// A node runs a wheel if dsbuild installed it there and its files are as they were then.
func TestNodesRunning(t *testing.T) {
	t.Parallel()
	probed := func(name string, d *node.Installed, unfinished bool) deploy.ProbeResult {
		return deploy.ProbeResult{Name: name, Facts: node.Facts{DeepSpeed: d, Unfinished: unfinished}}
	}
	known := []deploy.ProbeResult{
		probed("it", &node.Installed{SHA256: "aa", Intact: true}, false),
		probed("none", nil, false),
		probed("altered", &node.Installed{SHA256: "aa"}, false),
		probed("another", &node.Installed{SHA256: "bb", Intact: true}, false),
		probed("unfinished", &node.Installed{SHA256: "aa", Intact: true}, true),
		probed("of another wheel", &node.Installed{SHA256: "aa", Intact: true}, false),
	}
	w := &Delivery{Artifact: wheel.Artifact{SHA256: "aa"}, indexes: []int{0, 1, 2, 3, 4}}
	if got := w.nodesRunning(known); len(got) != 1 || got[0] != "it" {
		t.Errorf("%v", got)
	}
	w.Artifact.SHA256 = "" // not built yet
	known[1].Facts.DeepSpeed = &node.Installed{Intact: true}
	if got := w.nodesRunning(known); len(got) != 0 {
		t.Errorf("%v run a wheel that does not exist", got)
	}
}

// A finished wheel that needs a newer glibc than the nodes have is built again.
func TestFinishedWheelForOlderNodes(t *testing.T) {
	t.Parallel()
	stored := pipeline.StoredWheel{
		File:     "/wheels/x.whl",
		Manifest: wheel.Manifest{Name: "deepspeed-0.19.8-cp311-cp311-manylinux_2_35_x86_64.whl", SHA256: "aa", Size: 7},
	}
	for glibc, fits := range map[string]bool{"2.36": true, "2.35": true, "2.28": false} {
		for state, path := range map[State]string{Exported: "/wheels/x.whl", Stored: ""} {
			w := &Delivery{State: ToBuild, Plan: planWith(compat.Toolchain{Glibc: glibc})}
			if got := w.useFinished(stored, state); got != fits {
				t.Errorf("glibc %s: %v", glibc, got)
			}
			if fits && (w.State != state || w.Artifact.Path != path || w.filePath() != "/wheels/x.whl" || !w.Artifact.Cached ||
				w.Artifact.Size != 7) {
				t.Errorf("%s: %+v", state, w.Artifact)
			}
			if !fits && (w.State != ToBuild || w.filePath() != "") {
				t.Errorf("%+v", w)
			}
		}
	}
}

// The plan for people names each wheel with its nodes and reasons, and each node without one.
func TestPlanForPeople(t *testing.T) {
	t.Parallel()
	p := &Selection{Nodes: 8, Wheels: []*Delivery{
		{Name: "one", Nodes: []string{"gpu01", "gpu02", "gpu03"}, Running: []string{"gpu02"}, State: Stored, Why: []string{"gpu01 has an A100"}},
		{Name: "two", Nodes: []string{"gpu04"}, Running: []string{"gpu04"}, State: Running},
		{Name: "three", Nodes: []string{"gpu05"}, State: Failed, Err: fault.WithHint(errors.New("no gcc\x1b[2J\nat all"), "install gcc")},
		{Name: "four", Nodes: []string{"gpu06"}, State: ToBuild},
		{Name: "five", Nodes: []string{"gpu06"}, State: Exported},
	}, Excluded: []ExcludedNode{
		{Node: "gpu07", Reasons: []string{"no torch", "no pip"}, Hint: "install torch"},
		{Node: "gpu08", Reasons: []string{"no route to 10.0.0.8"}, cause: "no route"},
		{Node: "gpu09", Reasons: []string{"no route to 10.0.0.9"}, cause: "no route"},
	}}
	var out bytes.Buffer
	if err := p.Print(&out, true); err != nil {
		t.Fatal(err)
	}
	want := `8 nodes, 5 wheels: 1 to build, 1 cached, 1 already built, 1 already running, 1 failed
one  cached
  for gpu[01-03]
  already running on gpu02
  gpu01 has an A100
two  already running
  for gpu04
three  failed
  for gpu05
  no gcc
  at all
  hint: install gcc
four  to build
  for gpu06
five  already built
  for gpu06
excluded
  gpu07: no torch; no pip
    hint: install torch
  gpu[08-09], e.g. gpu08: no route to 10.0.0.8
`
	if out.String() != want {
		t.Errorf("%s\nwant:\n%s", out.String(), want)
	}
	out.Reset()
	if err := p.Print(&out, false); err != nil {
		t.Fatal(err)
	}
	want = `8 nodes, 5 wheels: 1 to build, 1 cached, 1 already built, 1 already running, 1 failed
one  cached  for gpu[01-03]
two  already running  for gpu04
three  failed  for gpu05
  no gcc
  hint: install gcc
four  to build  for gpu06
… and 1 more wheel
excluded
  gpu07: no torch; no pip
    hint: install torch
  gpu[08-09], e.g. gpu08: no route to 10.0.0.8
--verbose prints the targets of each wheel, and all reasons
`
	if out.String() != want {
		t.Errorf("in short:\n%s\nwant:\n%s", out.String(), want)
	}
	groups := p.Groups()
	if g := groups[2]; g.Error != "no gcc\nat all" || g.Hint != "install gcc" || g.State != "failed" ||
		g.Running == nil || g.Why == nil || g.Archs == nil || g.Ops == nil {
		t.Errorf("%+v", g)
	}
	if none := new(Selection); none.Groups() == nil || none.Lines()[0] != "0 nodes, 0 wheels" {
		t.Errorf("%v", none.Lines())
	}
}
