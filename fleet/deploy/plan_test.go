package deploy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

func facts(change func(*node.Facts)) node.Facts {
	f := node.Facts{
		Python: "3.11.2", Executable: "/v/bin/python", Prefix: "/v", Tag: "cp311",
		Platform: "linux_x86_64", Glibc: "2.36", CPU: "x86-64-v4",
		SitePackages: "/v/lib", Writable: true, Pip: "24.0", Torch: "2.15.0", TorchCUDA: "13.2",
		Dists: map[string]string{"torch": "2.15.0"}, FreeBytes: 1 << 40, FreeTmpBytes: 1 << 40,
	}
	if change != nil {
		change(&f)
	}
	return f
}

func planWheel(name string, change func(*wheel.Manifest)) wheel.Loaded {
	m := wheel.Manifest{
		Name: name, SHA256: "sha-" + name, Size: 1 << 20, Ops: []string{"cpu_adam"}, CPU: "x86-64-v3",
		Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Glibc: "2.34",
	}
	if change != nil {
		change(&m)
	}
	return wheel.Loaded{Manifest: m, Version: "0.19.8", Requires: []string{"torch"}}
}

func TestPlanOfOneWheel(t *testing.T) {
	t.Parallel()
	w := []wheel.Loaded{planWheel("a.whl", nil)}
	w[0].Commands = []string{"ds_report"}
	nobodys, anothers := map[string]string{"ds_report": ""}, map[string]string{"ds_report": "other"}
	runsIt := &node.Installed{Version: "0.19.8", SHA256: "sha-a.whl", Record: "r", Intact: true}
	for name, c := range map[string]struct {
		change func(*node.Facts)
		opt    deploy.PlanOptions
		want   change.Action
		why    string
	}{
		"fits":            {nil, deploy.PlanOptions{}, change.Install, ""},
		"runs it":         {func(f *node.Facts) { f.DeepSpeed = runsIt }, deploy.PlanOptions{}, change.UpToDate, ""},
		"forced":          {func(f *node.Facts) { f.DeepSpeed = runsIt }, deploy.PlanOptions{Force: true}, change.Install, ""},
		"cut off":         {func(f *node.Facts) { f.DeepSpeed, f.Unfinished = runsIt, true }, deploy.PlanOptions{}, change.Install, ""},
		"altered":         {func(f *node.Facts) { d := *runsIt; d.Intact = false; f.DeepSpeed = &d }, deploy.PlanOptions{}, change.Install, ""},
		"managed":         {func(f *node.Facts) { f.ExternallyManaged = true }, deploy.PlanOptions{}, change.Refuse, "PEP 668"},
		"read-only":       {func(f *node.Facts) { f.Writable = false }, deploy.PlanOptions{}, change.Refuse, "no write permission for /v"},
		"no torch":        {func(f *node.Facts) { f.Torch = "" }, deploy.PlanOptions{}, change.Refuse, "no torch"},
		"other torch":     {func(f *node.Facts) { f.Torch = "2.14.0" }, deploy.PlanOptions{}, change.Refuse, "node has 2.14"},
		"old CPU":         {func(f *node.Facts) { f.CPU = "x86-64-v2" }, deploy.PlanOptions{}, change.Refuse, "x86-64-v3"},
		"full":            {func(f *node.Facts) { f.FreeBytes = 1 << 20 }, deploy.PlanOptions{}, change.Refuse, " needed"},
		"no requirement":  {func(f *node.Facts) { delete(f.Dists, "torch") }, deploy.PlanOptions{}, change.Refuse, "missing requirements: torch"},
		"no pip":          {func(f *node.Facts) { f.Pip = "" }, deploy.PlanOptions{NoPip: map[string]error{"3.11": errors.New("offline")}}, change.Refuse, "and cannot get one to send: offline"},
		"pip on node":     {func(f *node.Facts) { f.Pip, f.PipWheel = "", "/usr/pip.whl" }, deploy.PlanOptions{NoPip: map[string]error{"3.11": errors.New("offline")}}, change.Install, ""},
		"no RECORD":       {func(f *node.Facts) { f.NoRecord = []string{"/v/lib/deepspeed.egg-link"} }, deploy.PlanOptions{}, change.Refuse, "no RECORD"},
		"torn RECORD":     {func(f *node.Facts) { f.DeepSpeed, f.Unfinished = &node.Installed{}, true }, deploy.PlanOptions{}, change.Install, ""},
		"another's home":  {func(f *node.Facts) { f.Writable, f.HomeOwner = false, "root" }, deploy.PlanOptions{}, change.Refuse, "/v/lib/.dsbuild, owned by root"},
		"root":            {func(f *node.Facts) { f.ForeignOwner = "alice" }, deploy.PlanOptions{}, change.Refuse, "alice owns a directory on its path"},
		"taken":           {func(f *node.Facts) { f.Taken = nobodys }, deploy.PlanOptions{}, change.Refuse, "belongs to no package"},
		"torn, taken":     {func(f *node.Facts) { f.Taken, f.Unfinished = nobodys, true }, deploy.PlanOptions{}, change.Install, ""},
		"torn, another's": {func(f *node.Facts) { f.Taken, f.Unfinished = anothers, true }, deploy.PlanOptions{}, change.Refuse, "belongs to other"},
		"no interpreter":  {func(f *node.Facts) { *f = node.Facts{Missing: []string{"python"}} }, deploy.PlanOptions{}, change.Refuse, "no usable Python"},
	} {
		plan, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: facts(c.change)}}, w, c.opt)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := plan.Nodes[0]
		exit := map[change.Action]int{change.Refuse: 3}[c.want]
		if name == "other torch" || name == "old CPU" {
			exit = 4 // the wheel was built for something else
		}
		if code(plan.Err()) != exit || p.Unfit != (exit == 4) {
			t.Errorf("%s: exit code %d, want %d", name, code(plan.Err()), exit)
		}
		if p.Action != c.want || !strings.Contains(strings.Join(p.Reasons, "; "), c.why) ||
			c.want == change.Refuse && p.Hint == "" {
			t.Errorf("%s: %s, %q, hint %q; want %s, %q", name, p.Action, p.Reasons, p.Hint, c.want, c.why)
		}
	}
}

func TestExitCodeOfAPlan(t *testing.T) {
	t.Parallel()
	w := []wheel.Loaded{planWheel("a.whl", nil)}
	fits := deploy.ProbeResult{Name: "a", Facts: facts(nil)}
	absent := deploy.ProbeResult{Name: "b", Err: errors.New("no route")}
	old := deploy.ProbeResult{Name: "c", Facts: facts(func(f *node.Facts) { f.CPU = "x86-64-v2" })}
	managed := deploy.ProbeResult{Name: "d", Facts: facts(func(f *node.Facts) { f.ExternallyManaged = true })}
	for want, nodes := range map[int][][]deploy.ProbeResult{
		0: {{fits}},
		3: {{fits, absent}, {fits, old}, {old, absent}, {old, managed}, {managed}},
		4: {{old}, {old, old}},
	} {
		for _, n := range nodes {
			plan, err := deploy.NewPlan(n, w, deploy.PlanOptions{})
			if err != nil || code(plan.Err()) != want {
				t.Errorf("%v: %v, want exit code %d", plan.Nodes, plan.Err(), want)
			}
		}
	}
	bare := facts(func(f *node.Facts) {
		f.Torch, f.Previous = "", &node.Previous{Version: "0.19.7", LastChange: node.LastChange{Runs: []node.Run{{ID: "r"}}}}
	})
	plan, err := deploy.NewRollbackPlan([]deploy.ProbeResult{{Name: "n", Facts: bare}}, "")
	if err != nil || plan.Nodes[0].Action != change.Rollback || plan.Err() != nil {
		t.Errorf("a rollback needs no torch: %+v", plan.Nodes[0])
	}
	if plan, err = deploy.NewRollbackPlan([]deploy.ProbeResult{managed}, ""); err != nil || code(plan.Err()) != 3 {
		t.Errorf("no wheel plays a part in a rollback: %v, %v", plan.Err(), err)
	}
}

// A note for users has why processes may be hidden, and no name of a field in JSON.
func TestNoteOfHiddenProcesses(t *testing.T) {
	t.Parallel()
	hidden := []deploy.ProbeResult{{Name: "gpu1", Facts: facts(func(f *node.Facts) { f.Missing = []string{"pip", "in_use (no /proc)"} })}}
	plan, err := deploy.NewPlan(hidden, []wheel.Loaded{planWheel("a.whl", nil)}, deploy.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	plan.ApplyInUse(hidden, change.InUse{})
	if want := "cannot determine whether the environment is in use: no /proc"; !slices.Contains(plan.Nodes[0].Notes, want) {
		t.Errorf("notes %q, want %q", plan.Nodes[0].Notes, want)
	}
}

func TestPlanChoosesAmongWheels(t *testing.T) {
	t.Parallel()
	v3, v4 := planWheel("v3.whl", nil), planWheel("v4.whl", func(m *wheel.Manifest) { m.CPU = "x86-64-v4" })
	other := planWheel("other.whl", func(m *wheel.Manifest) { m.Source.Ref = "0.19.7" })
	plan, err := deploy.NewPlan([]deploy.ProbeResult{
		{Name: "new", Facts: facts(nil)},
		{Name: "old", Facts: facts(func(f *node.Facts) { f.CPU = "x86-64-v3" })},
	}, []wheel.Loaded{v3, v4}, deploy.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := plan.Nodes[0].Wheel.Manifest.Name, plan.Nodes[1].Wheel.Manifest.Name; a != "v4.whl" || b != "v3.whl" {
		t.Errorf("new gets %s, old gets %s", a, b)
	}
	var usage interface{ ExitCode() int }
	_, err = deploy.NewPlan([]deploy.ProbeResult{{Name: "new", Facts: facts(nil)}}, []wheel.Loaded{v3, other, v4},
		deploy.PlanOptions{})
	if !errors.As(err, &usage) || usage.ExitCode() != 2 ||
		!strings.Contains(err.Error(), "equally suitable wheels: other.whl, v4.whl") {
		t.Errorf("two that fit equally: %v", err)
	}
	// A node that none fits is refused, and the others go on.
	plan, err = deploy.NewPlan([]deploy.ProbeResult{
		{Name: "new", Facts: facts(func(f *node.Facts) { f.Torch = "2.14.0" })}, {Name: "old", Facts: facts(nil)},
	}, []wheel.Loaded{v3, v4}, deploy.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	none, fits := plan.Nodes[0], plan.Nodes[1]
	if none.Action != change.Refuse || !none.Unfit || len(none.Reasons) != 2 ||
		!strings.Contains(none.Reasons[0], "v3.whl is incompatible: built against torch 2.15, but this node has 2.14") ||
		none.Hint == "" {
		t.Errorf("none that fits: %+v, want a refusal with the reason of each wheel", none)
	}
	if fits.Action != change.Install {
		t.Errorf("the other node: %s, want install", fits.Action)
	}
}

// Each node of a fleet with both CPUs gets the wheel of its own. With one wheel, the other nodes are refused in one
// line.
func TestPlanOfBothMachines(t *testing.T) {
	t.Parallel()
	const stem = "deepspeed-0.19.8-1_3fa94c0d-"
	x86 := planWheel(stem+"py3-none-manylinux_2_28_x86_64.whl", nil)
	arm := planWheel(stem+"py3-none-manylinux_2_28_aarch64.whl",
		func(m *wheel.Manifest) { m.CPU = string(wheel.CPUArm) })
	gh200 := func(f *node.Facts) {
		f.Platform, f.CPU = "linux_aarch64", string(wheel.CPUArm)
		f.GPUs = []node.GPU{{Name: "NVIDIA GH200 480GB", Arch: "9.0"}}
	}
	a100 := func(f *node.Facts) { f.GPUs = []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}} }
	nodes := []deploy.ProbeResult{
		{Name: "gh1", Facts: facts(gh200)},
		{Name: "a1", Facts: facts(a100)},
		{Name: "gh2", Facts: facts(gh200)},
		{Name: "a2", Facts: facts(a100)},
	}
	plan, err := deploy.NewPlan(nodes, []wheel.Loaded{x86, arm}, deploy.PlanOptions{})
	if err != nil || plan.Err() != nil {
		t.Fatal(err, plan.Err())
	}
	for i, want := range []wheel.Loaded{arm, x86, arm, x86} {
		if n := plan.Nodes[i]; n.Action != change.Install || n.Wheel.Manifest.Name != want.Manifest.Name {
			t.Errorf("%s: %s %s", n.Name, n.Action, n.Wheel.Manifest.Name)
		}
	}
	for _, one := range []struct {
		wheel wheel.Loaded
		no    int
		why   string
	}{{x86, 0, "built for x86_64, but this node is aarch64"}, {arm, 1, "built for aarch64, but this node is x86_64"}} {
		plan, err := deploy.NewPlan(nodes, []wheel.Loaded{one.wheel}, deploy.PlanOptions{})
		if err != nil || code(plan.Err()) != 3 {
			t.Fatal(err, plan.Err())
		}
		for i, n := range plan.Nodes {
			if refused := i%2 == one.no; refused &&
				(n.Action != change.Refuse || !n.Unfit || len(n.Reasons) != 1 || n.Reasons[0] != one.why || n.Hint == "") ||
				!refused && n.Action != change.Install {
				t.Errorf("%s: %s %q (hint %s)", n.Name, n.Action, n.Reasons, n.Hint)
			}
		}
	}
}

func TestPlanOfSharedEnvironments(t *testing.T) {
	t.Parallel()
	w := []wheel.Loaded{planWheel("a.whl", nil)}
	shared := func(cpu string) node.Facts { return facts(func(f *node.Facts) { f.CPU = cpu }) }
	nodes := []deploy.ProbeResult{
		{Name: "gone", Err: errors.New("no route")},
		{Name: "a", Facts: shared("x86-64-v3"), Shares: "a word"},
		{Name: "alone", Facts: facts(nil)},
		{Name: "b", Facts: shared("x86-64-v3"), Shares: "a word"},
	}
	actions := func() []change.Action {
		plan, err := deploy.NewPlan(nodes, w, deploy.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []change.Action
		for _, p := range plan.Nodes {
			got = append(got, p.Action)
		}
		return got
	}
	want := []change.Action{change.Absent, change.Install, change.Install, change.Shared}
	if got := actions(); !slices.Equal(got, want) {
		t.Errorf("shared: %v", got)
	}
	nodes[3].Facts = shared("x86-64-v2")
	if got := actions(); !slices.Equal(got, []change.Action{change.Absent, change.Refuse, change.Install, change.Refuse}) {
		t.Errorf("one of those that share does not fit: %v", got)
	}
	// Those that need different wheels name each other.
	other := planWheel("b.whl", func(m *wheel.Manifest) { m.CPU, m.Torch = "x86-64-v2", "2.14.0" })
	nodes[3].Facts.Torch, nodes[3].Facts.Dists = "2.14.0", map[string]string{"torch": "2.14.0"}
	plan, err := deploy.NewPlan(nodes, append(w, other), deploy.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, with := range map[int]string{
		1: "shares an environment with b: nodes need different wheels",
		3: "shares an environment with a: ",
	} {
		if why := strings.Join(plan.Nodes[i].Reasons, "; "); !strings.HasPrefix(why, with) {
			t.Errorf("%s: %q, want %q", plan.Nodes[i].Name, why, with)
		}
	}
}

// TestOpenChoicesAreFolded: for 300 nodes the same question is asked once.
func TestOpenChoicesAreFolded(t *testing.T) {
	t.Parallel()
	wheels := []wheel.Loaded{planWheel("a.whl", nil), planWheel("b.whl", nil)}
	var known []deploy.ProbeResult
	for i := range 300 {
		known = append(known, deploy.ProbeResult{Name: fmt.Sprintf("gpu%03d", i+1), Facts: facts(nil)})
	}
	_, err := deploy.NewPlan(known, wheels, deploy.PlanOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	if !strings.HasSuffix(text, "gpu[001-300] (300 nodes): equally suitable wheels: a.whl, b.whl") {
		t.Error(text)
	}
}
