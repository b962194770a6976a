package compat

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// fleet is a part of testdata/group.golden.
type fleet struct {
	head  string // up to and with "=>"
	nodes []Member
	want  wheel.Spec
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
				f.want = parse(t, tt, what).spec
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
		fmt.Fprintf(&b, "  %s: %s\n", strings.Join(names, " "), strings.Join(flags(group.Spec), " "))
		for _, r := range group.Reasons {
			fmt.Fprintf(&b, "    - %s\n", r)
		}
	}
	for _, l := range g.Left {
		fmt.Fprintf(&b, "  %s: none\n", nodes[l.Node].Name)
		for _, r := range l.Reasons {
			fmt.Fprintf(&b, "    - %s\n", r)
		}
		fmt.Fprintf(&b, "    hint: %s\n", l.Hint)
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
func complete(t *testing.T, tt *Tables, nodes []Member, want wheel.Spec, g Grouping) {
	t.Helper()
	seen := map[int]int{}
	for _, group := range g.Groups {
		m, err := built(tt, group.Spec)
		if err != nil {
			t.Errorf("%v: %v", flags(group.Spec), err)
			continue
		}
		for _, i := range group.Nodes {
			seen[i]++
			if v := tt.Fit(m, nodes[i].Facts); !v.OK() {
				t.Errorf("%s with %v does not run on %s: %q", m.Name, flags(group.Spec), nodes[i].Name, v.Reasons)
			}
		}
		if len(group.Reasons) < 3 || !slices.IsSorted(group.Nodes) {
			t.Errorf("%v: nodes %v, reasons %q", flags(group.Spec), group.Nodes, group.Reasons)
		}
		if want.CPU == "" && wheel.CPUv3 != group.Spec.CPU && wheel.CPUv3.Includes(group.Spec.CPU) == (group.Spec.CPU == wheel.CPUv4) {
			t.Errorf("nobody asked for %s", group.Spec.CPU)
		}
	}
	for _, l := range g.Left {
		seen[l.Node]++
		if len(l.Reasons) == 0 || l.Hint == "" {
			t.Errorf("%s: reasons %q, hint %q", nodes[l.Node].Name, l.Reasons, l.Hint)
		}
	}
	for i, n := range nodes {
		if seen[i] != 1 {
			t.Errorf("%s is in %d places", n.Name, seen[i])
		}
	}
}

// built is the manifest of the wheel that a Spec gives, whose code needs of the
// base all that there is.
func built(tt *Tables, spec wheel.Spec) (wheel.Manifest, error) {
	tc, err := tt.Resolve(spec)
	if err != nil {
		return wheel.Manifest{}, err
	}
	glibcxx := map[string]string{"2.31": "3.4.28", "2.35": "3.4.30", "2.36": "3.4.30", "2.39": "3.4.33", "2.41": "3.4.33"}[tc.Ground.Glibc]
	platform, err := wheel.Platform(wheel.Floors{Glibc: tc.Ground.Glibc, GLIBCXX: glibcxx})
	if err != nil {
		return wheel.Manifest{}, err
	}
	tag := cpython(tc.Python)
	release := tt.torchNamed(tc.Torch)
	return wheel.Manifest{
		Name: fmt.Sprintf("deepspeed-%s-%s-%s-%s.whl", tc.DeepSpeed, tag, tag, platform), Version: tc.DeepSpeed,
		Ops: tc.OpNames(false), Archs: wheel.Capabilities(tc.Archs, false), PTX: wheel.Capabilities(tc.Archs, true), CPU: string(tc.CPU),
		Python: tc.Python, Torch: tc.Torch, CUDA: tc.CUDA, Toolchain: wheel.Toolchain{Toolkit: tc.Toolkit},
		Glibc: tc.Ground.Glibc, GLIBCXX: glibcxx, CXX11ABI: !release.OldABI,
	}, nil
}
