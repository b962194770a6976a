package ui_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// said is a text of a node.
type said struct{ node, text string }

func TestTextsThatMeanTheSame(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][]said{
		"addresses":  {{"gpu1", "dial tcp 10.0.0.15:22: connect: no route to host"}, {"gpu2", "dial tcp 10.0.1.7:2222: connect: no route to host"}},
		"IPv6":       {{"gpu1", "dial tcp [fd00:12::a]:22: refused"}, {"gpu2", "dial tcp [fd00:12:0:3::b]:22: refused"}},
		"own name":   {{"gpu1", "gpu1.cluster.local: no such host"}, {"gpu2", "gpu2.cluster.local: no such host"}},
		"other node": {{"gpu1", "shares its environment with gpu07, where"}, {"gpu2", "shares its environment with gpu08, where"}},
		"process":    {{"gpu1", "used by pid 71 (alice, Slurm job 12): python train.py"}, {"gpu2", "used by pid 4711 (alice, Slurm job 9): python train.py"}},
		"size":       {{"gpu1", "needs 42.1 MiB, 512 bytes are free"}, {"gpu2", "needs 42.1 MiB, 1.5 GiB are free"}},
		"time":       {{"gpu1", "no answer for 59.9s"}, {"gpu2", "no answer for 1m03s"}},
		"clock":      {{"gpu1", "[2026-11-22T09:30:11.5Z] killed"}, {"gpu2", "[2026-11-23T00:00:02Z] killed"}},
		"digest":     {{"gpu1", "has sha256 9e7860b7c091b6fd, not 44"}, {"gpu2", "has sha256 0123456789abcdef, not 44"}},
		"pointer":    {{"gpu1", "<Thing at 0x7f11>"}, {"gpu2", "<Thing at 0x7f1234567890>"}},
		"temporary":  {{"gpu1", "/v/.dsbuild-ABCDEFGHIJKLMNOP.part is full, /tmp/tmpab12cd_x"}, {"gpu2", "/v/.dsbuild-QRSTUVWXYZ234567.part is full, /tmp/tmpzz98cd_y"}},
		"share":      {{"gpu1", "the disk is 98% full"}, {"gpu2", "the disk is 100 % full"}},
		"run folder": {{"gpu1", "/v/.dsbuild/run-20261122T103000-ab12cd-gpu1/x.whl"}, {"gpu2", "/v/.dsbuild/run-20261122T103000-ab12cd-gpu2/x.whl"}},
	} {
		like := ui.NewLikeness([]string{"gpu1", "gpu2", "gpu07", "gpu08"})
		first := like.Key(c[0].text, c[0].node)
		for _, s := range c[1:] {
			if key := like.Key(s.text, s.node); key != first {
				t.Errorf("%s: %q and %q", name, first, key)
			}
		}
	}
}

func TestTextsThatDoNotMeanTheSame(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string][2]string{
		"versions":    {"node has torch 2.14", "node has torch 2.13"},
		"patch level": {"torch 2.15.0", "torch 2.15.1"},
		"archs":       {"this node has RTX 2080 Ti (7.5)", "this node has RTX 2080 Ti (8.6)"},
		"SASS":        {"built for sm_80", "built for sm_90"},
		"status":      {"pip ended with status 1", "pip ended with status 2"},
		"signal":      {"killed by signal 9", "killed by signal 11"},
		"errno":       {"[Errno 28] write", "[Errno 122] write"},
		"words":       {"no space left", "no route to host"},
		"packages":    {"deepspeed needs hjson", "deepspeed needs ninja"},
		"level":       {"x86-64-v3", "x86-64-v4"},
	} {
		like := ui.NewLikeness([]string{"gpu1"})
		if like.Key(pair[0], "gpu1") == like.Key(pair[1], "gpu1") {
			t.Errorf("%s: %q and %q are one", name, pair[0], pair[1])
		}
	}
}

// A node's name may be anything that an inventory takes.
func TestLikenessOfOddNames(t *testing.T) {
	t.Parallel()
	for _, own := range [][]string{{""}, {"1"}, {"1.5"}, {"a"}, {"x", "x"}, {strings.Repeat("n", 300)}, {"10.0.0.1"}, {"gpu1/train", "gpu1"}} {
		like := ui.NewLikeness(own)
		if got := like.Key("torch 1.5 on it, not axa", own...); got != "torch 1.5 on it, not axa" {
			t.Errorf("%q: %q", own, got)
		}
	}
	like := ui.NewLikeness([]string{"gpu1/train", "gpu2/train"})
	if a, b := like.Key("no Python on gpu1", "gpu1/train", "gpu1"), like.Key("no Python on gpu2", "gpu2/train", "gpu2"); a != b {
		t.Errorf("%q and %q", a, b)
	}
}

func TestFoldAlike(t *testing.T) {
	t.Parallel()
	var all []ui.Named
	for i := range 800 {
		all = append(all, ui.Named{Name: fmt.Sprintf("gpu%03d", i), Text: fmt.Sprintf("dial tcp 10.0.%d.%d:22: i/o timeout after %d.5s", i/200, i%200, i%7+1)})
	}
	all = append(all, ui.Named{Name: "cpu1", Text: "no pip"}, ui.Named{Name: "cpu2", Text: "no pip"})
	got := ui.FoldAlike(all)
	want := []ui.Folded{
		{Names: "gpu[000-799]", Count: 800, Text: "dial tcp 10.0.0.0:22: i/o timeout after 1.5s", Example: "gpu000"},
		{Names: "cpu[1-2]", Count: 2, Text: "no pip"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestFoldWithin(t *testing.T) {
	t.Parallel()
	names := []string{"gpu1", "gpu3", "gpu5", "gpu7", "cpu1"}
	for width, want := range map[int]string{40: "gpu[1,3,5,7],cpu1", 14: "gpu[1,3,5,7],…", 12: "gpu[1,3,5,…]", 4: ""} {
		if got, whole := ui.FoldWithin(names, width); got != want || whole != (width == 40) {
			t.Errorf("%d: %q, %v", width, got, whole)
		}
	}
}

func FuzzLikeness(f *testing.F) {
	f.Add("dial tcp 10.0.0.15:22 on gpu1: 1.5 GiB at 2026-11-22T09:30:00Z", "gpu1")
	f.Add("1.1.1 11.", "1")
	f.Fuzz(func(t *testing.T, text, name string) {
		like := ui.NewLikeness([]string{name})
		if once, twice := like.Key(text, name), like.Key(text, name); once != twice {
			t.Fatalf("%q: %q and %q", text, once, twice)
		}
		ui.FoldAlike([]ui.Named{{Name: name, Text: text}})
	})
}
