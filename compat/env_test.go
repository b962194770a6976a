package compat

import (
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// A torch that the tables lack borrows what is unknown from the nearest release, and refuses no arch;
// the tables of others stay as they are.
func TestTorchThatTablesLack(t *testing.T) {
	t.Parallel()
	all := tables(t)
	before := len(all.Torches)
	newest := all.Torches[0]
	if got := all.WithTorch(newest.Version, newest.CUDA, newest.Pythons[0]); got != all {
		t.Error("a torch of the tables makes other tables")
	}
	own := all.WithTorch("99.1.0", "13.2", "3.11")
	if len(own.Torches) != 1 || len(all.Torches) != before {
		t.Fatalf("%d torches, and %d in the tables", len(own.Torches), len(all.Torches))
	}
	got := own.Torches[0]
	if got.Version != "99.1.0" || got.CUDA != "13.2" || !slices.Equal(got.Pythons, []string{"3.11"}) || got.Archs != nil || got.OldestGCC != newest.OldestGCC || got.Standard != newest.Standard {
		t.Errorf("%+v", got)
	}
	added := all.AddTorch(Torch{Version: "99.1.0", CUDA: "13.2", Toolkit: "13.2.9", Pythons: []string{"3.12"}, Index: "cu132", SHA256: map[string]string{"3.12": "aa"}})
	if len(added.Torches) != before+1 || added.Torches[0].Version != "99.1.0" || added.Torches[0].Toolkit != "13.2.9" || added.Torches[0].SHA256["3.12"] != "aa" || len(all.Torches) != before {
		t.Errorf("%+v", added.Torches[0])
	}
	if !added.HasTorch("99.1.0", "13.2", "3.12") || added.HasTorch("99.1.0", "13.2", "3.11") || all.HasTorch("99.1.0", "13.2", "3.12") {
		t.Error("HasTorch")
	}
	oldest := all.AddTorch(Torch{Version: "0.1.0", CUDA: "13.2", Pythons: []string{"3.12"}})
	if last := oldest.Torches[before]; last.Version != "0.1.0" {
		t.Errorf("the oldest torch is not the last: %+v", last)
	}
	newestFirst(t, "torch", torchVersions(added.Torches))
}

func TestMoreReleasesOfDeepSpeed(t *testing.T) {
	t.Parallel()
	all := tables(t)
	more := all.AddDeepSpeeds([]DeepSpeed{{Version: "0.1.0"}, {Version: "99.0.0"}})
	if len(more.DeepSpeeds) != len(all.DeepSpeeds)+2 || more.DeepSpeeds[0].Version != "99.0.0" || more.DeepSpeeds[len(more.DeepSpeeds)-1].Version != "0.1.0" || all.DeepSpeeds[0].Version == "99.0.0" {
		t.Errorf("%+v", more.DeepSpeeds)
	}
}

// The CUDAs that a request allows: the one asked for, those of its major, or all that its driver runs.
func TestCUDAsOfRequest(t *testing.T) {
	t.Parallel()
	all := tables(t)
	every := all.CUDAsFor(wheel.Request{})
	if len(every) != len(all.CUDAs) || !slices.IsSortedFunc(every, func(a, b string) int { return compareVersions(b, a) }) {
		t.Errorf("%v", every)
	}
	newest := every[0]
	major := wheel.Major(newest)
	if got := all.CUDAsFor(wheel.Request{CUDA: newest}); !slices.Equal(got, []string{newest}) {
		t.Errorf("%s: %v", newest, got)
	}
	for _, cuda := range all.CUDAsFor(wheel.Request{CUDA: major}) {
		if wheel.Major(cuda) != major {
			t.Errorf("%s is of %s", cuda, major)
		}
	}
	if got := all.CUDAsFor(wheel.Request{CUDA: "1.0"}); len(got) != 0 {
		t.Errorf("1.0: %v", got)
	}
	old := all.CUDAsFor(wheel.Request{Driver: "525.60"})
	if len(old) == 0 || len(old) >= len(every) || slices.Contains(old, newest) {
		t.Errorf("with driver 525.60: %v", old)
	}
	torch := all.Torches[0]
	if !all.OffersTorch(wheel.Request{Torch: torch.Version, CUDA: torch.CUDA}) || all.OffersTorch(wheel.Request{Torch: "99.1"}) || all.OffersTorch(wheel.Request{Torch: torch.Version, CUDA: "1.0"}) {
		t.Error("OffersTorch")
	}
}

// A base offers the Pythons and compilers of its distribution beside its own, its own first.
func TestOfferedByDistribution(t *testing.T) {
	t.Parallel()
	all := tables(t)
	i := slices.IndexFunc(all.Bases, func(b Base) bool { return b.Suite != "" && len(b.Pythons) > 0 })
	base := all.Bases[i]
	got := all.Offered(BuildHost{Suite: base.Suite, Pythons: []string{"3.99", base.Pythons[0]}, GCCs: []string{"99"}})
	if got.Pythons[0] != "3.99" || len(got.Pythons) != len(base.Pythons)+1 || got.GCCs[0] != "99" || len(got.GCCs) != len(base.GCCs)+1 {
		t.Errorf("%+v", got)
	}
	for _, suite := range []string{"", "unknown"} {
		if got := all.Offered(BuildHost{Suite: suite, Pythons: []string{"3.99"}}); !slices.Equal(got.Pythons, []string{"3.99"}) {
			t.Errorf("%q: %+v", suite, got)
		}
	}
}

// What ops need and which patches they bring is told once, however many ops need it.
func TestNeedsOfOps(t *testing.T) {
	t.Parallel()
	tc := Toolchain{Ops: []Op{
		{Name: "a", DeviceCode: true, Patch: "p", Needs: Needs{Toolkit: []string{"cublas"}}},
		{Name: "b", Patch: "p", Needs: Needs{Python: []string{"numpy"}, Node: []string{"triton"}}},
		{Name: "c", DeviceCode: true, Patch: "q"},
	}}
	n := tc.Needs()
	if !slices.Equal(n.Python, []string{"numpy"}) || !slices.Equal(n.Node, []string{"triton"}) || !slices.Equal(n.Toolkit, []string{"cublas"}) {
		t.Errorf("%+v", n)
	}
	if got := tc.Patches(); !slices.Equal(got, []string{"p", "q"}) {
		t.Error(got)
	}
	if !slices.Equal(tc.OpNames(false), []string{"a", "b", "c"}) || !slices.Equal(tc.OpNames(true), []string{"a", "c"}) {
		t.Error(tc.OpNames(true))
	}
	stable := Toolchain{ABI: wheel.StableABI, Torch: "2.15.0", CUDA: "13.2", Python: "3.11", PythonFrom: "3.10"}
	for want, ops := range map[string][]Op{"": {{Name: "a"}}, "13": {{Name: "a"}, {Name: "b", DeviceCode: true}}} {
		stable.Ops = ops
		if torch, cuda, python := stable.Serves(); torch != StableTorch || cuda != want || python != "3.10+" {
			t.Errorf("%s %s %s, want CUDA %q", torch, cuda, python, want)
		}
	}
}

// An environment with an older torch than the stable ABI needs is a conflict, also if the tables have
// no other torch.
func TestStableABIOfAnOldTorch(t *testing.T) {
	t.Parallel()
	own := tables(t).WithTorch("2.5.1", "12.1", "3.11")
	_, err := own.Resolve(wheel.Request{Archs: archs(t, "8.0"), Torch: "2.5.1", Python: "3.11", ABI: wheel.StableABI})
	if err == nil || !strings.Contains(err.Error(), "torch 2.5.1 is older than "+StableTorch) {
		t.Error(err)
	}
}
