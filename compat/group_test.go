package compat

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/wheel"
)

// fleet is a part of testdata/group.golden.
type fleet struct {
	head  string // up to and with "=>"
	nodes []Member
	want  wheel.Request
}

func fleets(t *testing.T, tt *Tables) (preface string, out []fleet) {
	t.Helper()
	text, err := os.ReadFile("testdata/group.golden")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "== ")
	for _, part := range parts[1:] {
		head, _, ok := strings.Cut(part, "=>\n")
		if !ok {
			t.Fatalf("no => in %s", part)
		}
		f := fleet{head: "== " + head + "=>\n"}
		for i, line := range strings.Split(strings.TrimSpace(head), "\n")[1:] {
			name, what, _ := strings.Cut(line, ": ")
			if name == "want" {
				f.want = parse(t, tt, what).request
				continue
			}
			c := fitCase{facts: baseNode()}
			settings(t, i, what, c.setNode)
			for _, n := range strings.Fields(strings.NewReplacer("a[1-2]", "a1 a2").Replace(name)) {
				f.nodes = append(f.nodes, Member{n, c.facts})
			}
		}
		out = append(out, f)
	}
	return parts[0], out
}

func show(nodes []Member, g Grouping) string {
	var b strings.Builder
	for _, group := range g.Groups {
		var names []string
		for _, i := range group.Nodes {
			names = append(names, nodes[i].Name)
		}
		fmt.Fprintf(&b, "  %s: %s\n", strings.Join(names, " "), strings.Join(flagsOf(group.Request), " "))
		for _, r := range group.Reasons {
			fmt.Fprintf(&b, "    - %s\n", r)
		}
	}
	for _, l := range g.Unserved {
		fmt.Fprintf(&b, "  %s: none\n", nodes[l.Node].Name)
		for _, r := range l.Reasons {
			fmt.Fprintf(&b, "    - %s\n", r)
		}
		fmt.Fprintf(&b, "    hint: %s\n", fault.Expand(l.Hint,
			func(c fault.Command) string { return "dsbuild " + c.Do },
			func(s fault.Setting) string { return "set " + s.Key + " to " + s.To }))
	}
	return b.String() + "\n"
}

func TestGroup(t *testing.T) {
	tt := tables(t)
	got, all := fleets(t, tt)
	for _, f := range all {
		g := tt.Group(f.nodes, f.want)
		got += f.head + show(f.nodes, g)
		complete(t, tt, f.nodes, f.want, g)
	}
	const path = "testdata/group.golden"
	if *update {
		if err := os.WriteFile(path, []byte(strings.TrimSuffix(got, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got = strings.TrimSuffix(got, "\n"); got != string(want) {
		t.Errorf("differs from %s (go test ./compat -run TestGroup -update writes it):\n%s", path, got)
	}
}

// complete checks what holds of every grouping: each node is in it once, each
// wheel can be built and runs on its nodes, and all that is said has words.
func complete(t *testing.T, tt *Tables, nodes []Member, want wheel.Request, g Grouping) {
	t.Helper()
	seen := map[int]int{}
	for _, group := range g.Groups {
		m, err := built(tt, group.Request)
		if err != nil {
			t.Errorf("%v: %v", flagsOf(group.Request), err)
			continue
		}
		for _, i := range group.Nodes {
			seen[i]++
			if v := tt.Fit(m, nodes[i].Facts); !v.OK() {
				t.Errorf("%s with %v does not run on %s: %q", m.Name, flagsOf(group.Request), nodes[i].Name, v.Reasons)
			}
		}
		if len(group.Reasons) < 3 || !slices.IsSorted(group.Nodes) {
			t.Errorf("%v: nodes %v, reasons %q", flagsOf(group.Request), group.Nodes, group.Reasons)
		}
		if want.CPU == "" && group.Request.CPU.Machine() == wheel.X86 && wheel.CPUv3 != group.Request.CPU && wheel.CPUv3.Includes(group.Request.CPU) == (group.Request.CPU == wheel.CPUv4) {
			t.Errorf("nobody asked for %s", group.Request.CPU)
		}
	}
	for _, l := range g.Unserved {
		seen[l.Node]++
		if len(l.Reasons) == 0 || l.Hint == "" {
			t.Errorf("%s: reasons %q, hint %q", nodes[l.Node].Name, l.Reasons, l.Hint)
		}
		a := ask{request: want}
		if m := a.change(t, tt, l.Hint); m != nil {
			e := tt.serve(nodes[l.Node].Facts, attempt{a.request, a.hosts})
			if e == nil || e.torch.Version != m[9] || e.torch.CUDA != m[10] || e.python != m[11] {
				t.Errorf("%s: hint %q does not give that", nodes[l.Node].Name, l.Hint)
			}
		}
	}
	for i, n := range nodes {
		if seen[i] != 1 {
			t.Errorf("%s is in %d places", n.Name, seen[i])
		}
	}
}

// built is the manifest of the wheel that a request gives.
func built(tt *Tables, request wheel.Request) (wheel.Manifest, error) {
	a := tt.find(attempt{Request: request})
	if a == nil {
		return wheel.Manifest{}, errors.New("cannot be built")
	}
	return a.manifest(), nil
}

// divided are tables in which several toolkits for one torch compile for different
// archs, so that a fleet can need more wheels than it has torches.
func divided(t *testing.T, archs map[string][]string) *Tables {
	t.Helper()
	tt := tables(t)
	for i := range tt.CUDASources {
		tt.CUDASources[i].MoreArchs = nil
	}
	for i, c := range tt.CUDAs {
		list, ok := archs[c.Version]
		if !ok {
			continue
		}
		tt.CUDAs[i].Archs = list
		if c.Version != "12.4" { // that is nvcc12's
			tt.CUDASources = append(tt.CUDASources, CUDASourceInfo{Source: CUDASource("cuda" + c.Version), Title: "CUDA " + c.Version, Nvcc: true, TorchCUDA: "12", CUDA: c.Version, GCC: "13", Suite: "trixie"})
		}
	}
	return tt
}

// halves are two toolkits that have 8.0 in common.
func halves() map[string][]string {
	return map[string][]string{"12.4": {"6.0", "7.0", "7.5", "8.0"}, "12.9": {"8.0", "9.0", "10.0", "12.0"}}
}

// fleetOf has nodes of one torch and Python, one for each list of archs.
func fleetOf(archs ...string) []Member {
	var nodes []Member
	for i, list := range archs {
		f := baseNode()
		f.Python, f.Tag, f.Torch, f.TorchCUDA, f.Glibc, f.Libstdcxx, f.GPUs = "3.13.1", "cp313", "2.10.0", "12.8", "2.41", "3.4.33", nil
		for _, a := range strings.Fields(list) {
			f.GPUs = append(f.GPUs, node.GPU{Name: "GPU " + a, Arch: a})
		}
		nodes = append(nodes, Member{fmt.Sprintf("n%d", i), f})
	}
	return nodes
}

func TestGroupSplits(t *testing.T) {
	tt := divided(t, halves())
	for want, archs := range map[string][]string{
		"[0 1]":          {"7.0", "8.0"},
		"[0 2] [1]":      {"7.0", "10.0", "8.0"},
		"[0 2 3] [1 4]":  {"7.0", "9.0", "7.5", "8.0", "12.0"},
		"[0 2] [1 3]":    {"12.0", "7.0", "", "6.0"},
		"[0] [1] left 2": {"10.0", "7.0", "7.0 10.0"},
		"left 0 1":       {"7.2", "5.0 12.0"},
	} {
		nodes := fleetOf(archs...)
		g := tt.Group(nodes, wheel.Request{ABI: wheel.TorchMinor})
		complete(t, tt, nodes, wheel.Request{ABI: wheel.TorchMinor}, g)
		if got := shape(g); got != want {
			t.Errorf("%q: %s, want %s", archs, got, want)
		}
		for _, group := range g.Groups {
			apart := strings.Contains(strings.Join(group.Reasons, "; "), "a separate wheel: no toolchain")
			if apart != (len(g.Groups) > 1) {
				t.Errorf("%q: %q", archs, group.Reasons)
			}
		}
	}
}

// shape writes down who is with whom.
func shape(g Grouping) string {
	var out []string
	for _, group := range g.Groups {
		out = append(out, fmt.Sprint(group.Nodes))
	}
	for i, l := range g.Unserved {
		if i == 0 {
			out = append(out, "left")
		}
		out = append(out, fmt.Sprint(l.Node))
	}
	return strings.Join(out, " ")
}

// TestGroupManyKinds: many kinds of nodes for which two toolkits are enough.
func TestGroupManyKinds(t *testing.T) {
	tt := divided(t, halves())
	all := []string{"6.0", "7.0", "7.5", "8.0", "9.0", "10.0", "12.0"}
	var archs []string
	for i, a := range all {
		archs = append(archs, a)
		for _, b := range all[i+1:] {
			archs = append(archs, a+" "+b)
		}
	}
	nodes := fleetOf(archs...)
	g := tt.Group(nodes, wheel.Request{ABI: wheel.TorchMinor})
	complete(t, tt, nodes, wheel.Request{ABI: wheel.TorchMinor}, g)
	if len(g.Groups) != 2 {
		t.Errorf("%s: %q", shape(g), g.Groups[0].Reasons)
	}
}

// randomFleet draws nodes whose properties lie close together, so that some can
// share a wheel and some cannot.
func randomFleet(r *rand.Rand, n int) []Member {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var nodes []Member
	for i := range n {
		f := baseNode()
		f.Python = pick("3.9.2", "3.10.4", "3.11.7", "3.12.3", "3.13.1", "3.13.1", "3.13.1")
		f.Tag = cpythonTag(firstTwo(f.Python))
		f.Torch = pick("2.15.0", "2.14.0", "2.14.1", "2.10.0", "2.10.0", "2.10.0", "2.8.0", "2.5.1")
		f.TorchCUDA = map[string]string{"2.15.0": "13.2", "2.14.0": "13.0", "2.14.1": "13.0", "2.10.0": "12.8", "2.8.0": "12.8", "2.5.1": "12.4"}[f.Torch]
		f.CXX11ABI = nil
		f.CPU = level(pick("v2", "v3", "v4", ""))
		f.Glibc, f.Libstdcxx = pick("2.31", "2.34", "2.35", "2.36", "2.41", "2.41", ""), pick("", "", "3.4.30", "3.4.33")
		f.GPUs = nil
		for range r.IntN(3) {
			arch := pick("7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
			f.GPUs = append(f.GPUs, node.GPU{Name: "GPU " + arch, Arch: arch})
		}
		nodes = append(nodes, Member{fmt.Sprintf("n%d", i), f})
	}
	return nodes
}

// wheelsFor counts by brute force the fewest wheels for the nodes, and those that
// none serves: every way to divide them, every request that their properties suggest.
func wheelsFor(t *testing.T, tt *Tables, nodes []Member, abi wheel.ABI) (wheels, left int) {
	t.Helper()
	one := make([]bool, 1<<len(nodes))
	for mask := 1; mask < len(one); mask++ {
		one[mask] = anyRequest(tt, nodes, mask, abi)
	}
	served := 0
	for i := range nodes {
		if one[1<<i] {
			served |= 1 << i
		}
	}
	best := make([]int, len(one))
	for mask := 1; mask < len(one); mask++ {
		best[mask] = len(nodes) + 1
		for part := mask; part > 0; part = (part - 1) & mask {
			if one[part] {
				best[mask] = min(best[mask], best[mask&^part]+1)
			}
		}
	}
	return best[served], len(nodes) - bits.OnesCount(uint(served))
}

func anyRequest(tt *Tables, nodes []Member, mask int, abi wheel.ABI) bool {
	var set []Member
	var archs []wheel.Arch
	for i, n := range nodes {
		if mask&(1<<i) == 0 {
			continue
		}
		set = append(set, n)
		for _, g := range n.Facts.GPUs {
			archs = addArch(archs, archOf(g.Arch))
		}
	}
	f := set[0].Facts
	var requests []wheel.Request
	if abi != wheel.TorchMinor {
		requests = append(requests, wheel.Request{ABI: wheel.StableABI}, wheel.Request{ABI: wheel.StableABI, Archs: archs})
	}
	if abi != wheel.StableABI {
		requests = append(requests, wheel.Request{ABI: wheel.TorchMinor, Python: firstTwo(f.Python), Torch: firstTwo(f.Torch), Archs: archs, CPU: wheel.CPUv2})
	}
	return slices.ContainsFunc(requests, func(s wheel.Request) bool {
		m, err := built(tt, s)
		return err == nil && !slices.ContainsFunc(set, func(n Member) bool { return !tt.Fit(m, n.Facts).OK() })
	})
}

// TestGroupIsFewest holds Group against brute force on small fleets, and on larger
// ones sees that no two of its wheels could be one.
func TestGroupIsFewest(t *testing.T) {
	needs.Time(t)
	r := rand.New(rand.NewPCG(7, 2026))
	several, lefts := 0, 0
	tt := divided(t, halves())
	for i := range 90 {
		if i == 40 { // and with the tables as they are
			tt = tables(t)
		}
		want := wheel.Request{ABI: wheel.TorchMinor}
		if i >= 40 {
			want.ABI = []wheel.ABI{"", wheel.StableABI}[i/60]
		}
		nodes := randomFleet(r, 1+r.IntN(5))
		g := tt.Group(nodes, want)
		complete(t, tt, nodes, want, g)
		wheels, left := wheelsFor(t, tt, nodes, want.ABI)
		if len(g.Groups) != wheels || len(g.Unserved) != left {
			t.Errorf("%d wheels and %d left, brute force finds %d and %d:\n%s", len(g.Groups), len(g.Unserved), wheels, left, show(nodes, g))
		}
		if wheels > 1 {
			several++
		}
		lefts += left
	}
	if several < 10 || lefts < 10 {
		t.Errorf("%d fleets took several wheels, %d nodes had none: the fleets show nothing", several, lefts)
	}
	for range 10 {
		nodes := randomFleet(r, 60)
		g := tt.Group(nodes, wheel.Request{})
		complete(t, tt, nodes, wheel.Request{}, g)
		for i := range g.Groups {
			for j := range i {
				var both []Member
				for _, k := range slices.Concat(g.Groups[i].Nodes, g.Groups[j].Nodes) {
					both = append(both, nodes[k])
				}
				if merged := tt.Group(both, wheel.Request{}); len(merged.Groups) < 2 {
					t.Errorf("wheels %d and %d could be one:\n%s", i, j, show(nodes, g))
				}
			}
		}
	}
}

// manyNodes is a fleet as large ones are: a few kinds of nodes, many of each.
func manyNodes(n int) []Member {
	r := rand.New(rand.NewPCG(1, 2))
	kinds := randomFleet(r, 24)
	var nodes []Member
	for i := range n {
		m := kinds[i%len(kinds)]
		m.Name = fmt.Sprintf("gpu%04d", i)
		nodes = append(nodes, m)
	}
	return nodes
}

func BenchmarkGroup2000(b *testing.B) {
	tt, err := NewTables()
	if err != nil {
		b.Fatal(err)
	}
	nodes := manyNodes(2000)
	for b.Loop() {
		tt.Group(nodes, wheel.Request{})
	}
}

func BenchmarkFit2000(b *testing.B) {
	tt, err := NewTables()
	if err != nil {
		b.Fatal(err)
	}
	nodes := manyNodes(2000)
	c := fitCase{manifest: baseWheel()}
	for b.Loop() {
		for _, n := range nodes {
			tt.Fit(c.manifest, n.Facts)
		}
	}
}

// A node with a torch of torch's own index gets a wheel for that one's CUDA and ABI,
// where the index was found to have it.
func TestGroupByTorchIndex(t *testing.T) {
	abi := true
	n := Member{"n", baseNode()}
	n.Facts.Torch, n.Facts.TorchCUDA, n.Facts.Driver, n.Facts.CXX11ABI = "2.6.0", "12.6", "550.54.15", &abi
	tt := tables(t)
	if g := tt.Group([]Member{n}, wheel.Request{}); len(g.Groups) != 0 {
		t.Errorf("%+v", g.Groups)
	}
	more := tt.AddTorch(Torch{Version: "2.6.0", CUDA: "12.6", Pythons: []string{"3.11"}, Index: "cu126", SHA256: map[string]string{"3.11": "ab"}})
	g := more.Group([]Member{n}, wheel.Request{})
	if len(g.Groups) != 1 {
		t.Fatalf("%+v", g.Unserved)
	}
	tc, err := more.Resolve(g.Groups[0].Request)
	if err != nil || tc.Torch != "2.6.0" || tc.CUDA != "12.6" || tc.Index != "cu126" || tc.TorchHash != "ab" {
		t.Errorf("%+v, %v", tc, err)
	}
	if tc, err := more.Resolve(wheel.Request{GPUs: []string{"A100"}, Torch: "2.6"}); err != nil || tc.Index != "" {
		t.Errorf("the package index goes first: %+v, %v", tc, err)
	}
}

// With --abi stable each wheel serves all that it can.
func TestGroupByABI(t *testing.T) {
	needs.Time(t)
	r := rand.New(rand.NewPCG(3, 2026))
	tt := tables(t)
	stable := 0
	for range 40 {
		nodes := randomFleet(r, 12)
		for _, ops := range [][]string{nil, {"cpu_adam", "utils"}} {
			want := wheel.Request{Ops: ops, ABI: wheel.StableABI}
			g := tt.Group(nodes, want)
			complete(t, tt, nodes, want, g)
			for _, group := range g.Groups {
				if group.Request.ABI != wheel.StableABI {
					t.Errorf("not of the stable ABI: %v", flagsOf(group.Request))
				}
			}
			if len(ops) > 0 && len(g.Groups) > 1 {
				t.Errorf("%d wheels without device code:\n%s", len(g.Groups), show(nodes, g))
			}
			stable += len(g.Groups)
		}
	}
	if stable < 40 {
		t.Errorf("%d wheels were of the stable ABI: the fleets show nothing", stable)
	}
}
