package deploy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Every node gets the wheel that is given to it, also where another would suit
// it better, or nothing, with the reason.
func TestAssignedPlan(t *testing.T) {
	t.Parallel()
	low := planWheel("low.whl", func(m *wheel.Manifest) { m.CPU = "x86-64-v2" })
	high, alien := planWheel("high.whl", nil), planWheel("alien.whl", func(m *wheel.Manifest) { m.Torch = "2.8.0" })
	pending := deploy.Assignment{Name: "pending", Pending: "soon"}
	runs := func(f *node.Facts) {
		f.DeepSpeed = &node.Installed{Version: "0.19.8", SHA256: "sha-low.whl", Record: "r", Intact: true}
	}
	managed := func(f *node.Facts) { f.ExternallyManaged = true }
	for i, c := range []struct {
		change func(*node.Facts)
		given  deploy.Assignment
		want   change.Action
		wheel  string
		why    string
		unfit  bool
	}{
		{nil, deploy.Assignment{Name: "low.whl", Wheel: &low}, change.Install, "low.whl", "", false},
		{nil, deploy.Assignment{Name: "high.whl", Wheel: &high}, change.Install, "high.whl", "", false},
		{runs, deploy.Assignment{Name: "low.whl", Wheel: &low}, change.UpToDate, "low.whl", "", false},
		{runs, deploy.Assignment{Name: "high.whl", Wheel: &high}, change.Install, "high.whl", "", false},
		{nil, pending, change.Install, "pending", "", false},
		{managed, pending, change.Refuse, "", "PEP 668", false},
		{managed, deploy.Assignment{Wheel: &low}, change.Refuse, "", "PEP 668", false},
		{nil, deploy.Assignment{Refusal: &deploy.Refusal{Reasons: []string{"too old"}}}, change.Refuse, "", "too old", true},
		{nil, deploy.Assignment{Err: errors.New("not built")}, change.Absent, "", "not built", false},
		{nil, deploy.Assignment{Name: "alien.whl", Wheel: &alien}, change.Refuse, "alien.whl", "torch 2.8", true},
	} {
		probed := []deploy.ProbeResult{{Name: "n", Facts: facts(c.change)}}
		plan, err := deploy.NewAssignedPlan(probed, []deploy.Assignment{c.given}, deploy.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := plan.Nodes[0]
		if n.Action != c.want || n.WheelName != c.wheel || !strings.Contains(strings.Join(n.Reasons, "; "), c.why) ||
			n.Unfit != c.unfit || len(n.Reasons) > 0 != (c.why != "") {
			t.Errorf("case %d: %+v", i, n)
		}
	}
}

// Nodes that share an environment must be given one wheel.
func TestAssignedPlanOfASharedEnvironment(t *testing.T) {
	t.Parallel()
	a := planWheel("a.whl", nil)
	known := []deploy.ProbeResult{{Name: "n1", Facts: facts(nil), Shares: "a word"}, {Name: "n2", Facts: facts(nil), Shares: "a word"}}
	first, second := deploy.Assignment{Name: "a.whl", Wheel: &a}, deploy.Assignment{Name: "b", Pending: "soon"}
	plan, err := deploy.NewAssignedPlan(known, []deploy.Assignment{first, first}, deploy.PlanOptions{})
	if err != nil || plan.Nodes[0].Action != change.Install || plan.Nodes[1].Action != change.Shared ||
		len(plan.Wheels) != 1 {
		t.Errorf("%v, %+v", err, plan)
	}
	plan, err = deploy.NewAssignedPlan(known, []deploy.Assignment{first, second}, deploy.PlanOptions{})
	if err != nil || plan.Nodes[0].Action != change.Refuse || plan.Nodes[1].Action != change.Refuse ||
		!strings.Contains(plan.Nodes[1].Reasons[0], "nodes need different wheels") {
		t.Errorf("%v, %+v", err, plan)
	}
	for i, other := range []string{"n2", "n1"} {
		if reason := plan.Nodes[i].Reasons[0]; !strings.HasPrefix(reason, "shares an environment with "+other+": ") {
			t.Errorf("%s is refused because it %s, want with %s", plan.Nodes[i].Name, reason, other)
		}
	}
}

// Before wheels are chosen only the nodes are refused that would refuse any wheel.
func TestUsable(t *testing.T) {
	t.Parallel()
	managed := facts(func(f *node.Facts) { f.ExternallyManaged = true })
	bare, old := facts(func(f *node.Facts) { f.Torch = "" }), facts(func(f *node.Facts) { f.Torch = "1.0" })
	lost := deploy.ProbeResult{Name: "lost", Err: errors.New("no route")}
	plan := deploy.Usable([]deploy.ProbeResult{{Facts: managed}, {Facts: bare}, {Facts: old}, lost}, deploy.PlanOptions{})
	for i, want := range []change.Action{change.Refuse, change.Refuse, change.Install, change.Absent} {
		if n := plan.Nodes[i]; n.Action != want || len(n.Reasons) > 0 != (want != change.Install) {
			t.Errorf("node %d: %+v, want %s", i, n, want)
		}
	}
}
