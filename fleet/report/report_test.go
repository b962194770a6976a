package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// sum is a sha256 of one digit.
func sum(digit string) string { return strings.Repeat(digit, 64) }

// well are nodes that run one wheel.
func well(names ...string) []report.Node {
	var all []report.Node
	for _, name := range names {
		all = append(all, report.Node{
			Name: name, Status: report.OK, Step: "record", Changed: true, Seconds: map[string]float64{"install": 2, "verify": 1.5},
			Before: &report.Version{Version: "0.19.7"}, After: &report.Version{Version: "0.19.8+torch2.15cu132", SHA256: sum("a")},
			Facts: &node.Facts{Python: "3.11.2", Executable: "/e/bin/python", Prefix: "/e", Tag: "cp311", SitePackages: "/e/lib", Torch: "2.15.0", TorchCUDA: "13.2", Dists: map[string]string{"numpy": "2.3.2"}},
		})
	}
	return all
}

// reported is the report of a command about nodes with the same wheel.
func reported(command string, mixed bool, nodes []report.Node) *report.Report {
	r := report.Empty(command)
	r.Mixed = mixed
	var seen []report.ProbedNode
	for _, n := range nodes {
		var w *report.Wheel
		if n.After != nil {
			w = &report.Wheel{Name: "deepspeed-" + n.After.Version + ".whl", SHA256: n.After.SHA256, Version: n.After.Version}
		}
		r.Add(n, w)
		if n.Facts != nil {
			seen = append(seen, report.ProbedNode{Name: n.Name, Facts: *n.Facts, Kind: n.Wheel})
		}
	}
	r.Differences = report.Compare(seen, mixed)
	r.Complete()
	return r
}

// screenOf is the report as people read it, without the table's widths.
func screenOf(t *testing.T, r *report.Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// The verdict and the exit code agree, for each way in which a run can end.
func TestVerdictAndExitCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		mixed   bool
		change  func(all []report.Node)
		verdict string
		code    int
	}{
		"all equal": {"deploy", false, func([]report.Node) {}, "3 nodes ok, all equal: deepspeed 0.19.8+torch2.15cu132 (sha256 aaaaaaaaaaaa), torch 2.15.0, CUDA 13.2", 0},
		"another torch": {
			"deploy", false, func(all []report.Node) { all[2].Facts.Torch = "2.14.0" },
			"3 nodes ok, but running different software", 3,
		},
		"another torch on purpose": {
			"verify", true, func(all []report.Node) { all[2].Facts.Torch = "2.14.0" },
			"3 nodes ok: deepspeed 0.19.8+torch2.15cu132 (sha256 aaaaaaaaaaaa), torch 2.15.0 and 2.14.0, CUDA 13.2; differences: torch", 0,
		},
		"two wheels": {"ship", true, func(all []report.Node) {
			all[2].After = &report.Version{Version: "0.19.8+torch2.15cu128", SHA256: sum("b")}
			all[2].Facts.TorchCUDA = "12.8"
		}, "3 nodes ok: deepspeed 0.19.8 in 2 wheels, torch 2.15.0, CUDA 13.2 and 12.8", 0},
		"two releases on purpose": {
			"ship", true, func(all []report.Node) { all[2].After = &report.Version{Version: "0.19.7", SHA256: sum("b")} },
			"3 nodes ok, but running different software", 3,
		},
		"one wheel in two versions": {
			"deploy", false, func(all []report.Node) {
				all[2].After = &report.Version{Version: all[0].After.Version, SHA256: sum("b")}
			},
			"3 nodes ok, but running different software", 3,
		},
		"back to none": {"rollback", false, func(all []report.Node) {
			for i := range all {
				all[i].After, all[i].Facts.Torch, all[i].Facts.TorchCUDA = nil, "", ""
			}
		}, "3 nodes ok, all equal: no deepspeed", 0},
		"some are not ok": {
			"deploy", false, func(all []report.Node) { all[0].Status, all[1].Status = report.Failed, report.Skipped },
			"1 of 3 nodes ok, 1 failed, 1 skipped", 3,
		},
		"they differ": {
			"verify", false, func(all []report.Node) {
				all[0].Status, all[1].Status, all[2].Status = report.Differs, report.Differs, report.Unreachable
			},
			"0 of 3 nodes ok, 1 unreachable, 2 differ", 3,
		},
		"the wheel fits none": {"deploy", false, func(all []report.Node) {
			for i := range all {
				all[i].Status, all[i].Unfit = report.Refused, true
			}
		}, "0 of 3 nodes ok, 3 refused", 4},
		"two do not fit, one is in use": {"deploy", false, func(all []report.Node) {
			for i := range all {
				all[i].Status, all[i].Unfit = report.Refused, i > 0
			}
		}, "0 of 3 nodes ok, 3 refused", 3},
		"an environment": {"env deploy", false, func(all []report.Node) {
			for i := range all {
				all[i].Environment = &report.Environment{Name: "train", Digest: sum("e")}
			}
		}, "3 nodes ok, all equal: deepspeed 0.19.8+torch2.15cu132 (sha256 aaaaaaaaaaaa), torch 2.15.0, CUDA 13.2, environment train eeeeeeeeeeee", 0},
		"found, not installed": {"verify", false, func(all []report.Node) {
			for i := range all {
				all[i].After, all[i].Proven = &report.Version{Version: "0.19.8"}, true
			}
		}, "3 nodes ok, all equal: deepspeed 0.19.8, torch 2.15.0, CUDA 13.2", 0},
	} {
		all := well("gpu01", "gpu02", "gpu03")
		c.change(all)
		r := reported(c.command, c.mixed, all)
		if got := r.Verdict(); got != c.verdict {
			t.Errorf("%s: %s\nwant %s", name, got, c.verdict)
		}
		if err := r.Err(); fault.ExitCode(err) != c.code || (err == nil) != (c.code == 0) || (err == nil) != (r.Consistent && r.Summary.OK == len(all)) {
			t.Errorf("%s: exit code %d (%v), want %d; consistent %v", name, fault.ExitCode(err), err, c.code, r.Consistent)
		}
	}
}

// Equal nodes share a row with the slowest's time, and a cause is told once.
func TestReportForPeople(t *testing.T) {
	t.Parallel()
	all := well("gpu01", "gpu02", "gpu03", "gpu04", "gpu05")
	all[1].Seconds = map[string]float64{"install": 9}
	all[2].Changed = false
	all[3].Status, all[3].Step, all[3].After, all[3].StateUnknown, all[3].Facts = report.Unreachable, "connect", nil, true, nil
	all[3].Error, all[3].Hint, all[3].Log = "no route\x1b[2J to host", "is it on?", "/logs/gpu04.log"
	all[4].Status, all[4].Error = report.Skipped, "an earlier group failed"
	want := strings.Join([]string{
		"NODES STATUS DEEPSPEED TORCH CUDA STEP SECONDS",
		"gpu[01-02] ok 0.19.8+torch2.15cu132 (aaaaaaaaaaaa) 2.15.0 13.2 record 9.0",
		"gpu03 ok, unchanged 0.19.8+torch2.15cu132 (aaaaaaaaaaaa) 2.15.0 13.2 record 3.5",
		"gpu04 unreachable ? - - connect 3.5",
		"gpu05 skipped 0.19.8+torch2.15cu132 (aaaaaaaaaaaa) 2.15.0 13.2 record 3.5",
		"gpu04: connect: no route to host",
		"hint: is it on?",
		"log: /logs/gpu04.log",
		"gpu05: an earlier group failed",
		"3 of 5 nodes ok, 1 unreachable, 1 skipped",
	}, "\n")
	if got := screenOf(t, reported("deploy", false, all)); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

// Nodes with two builds of one version do not share a row.
func TestReportTellsBuildsApart(t *testing.T) {
	t.Parallel()
	all := well("gpu01", "gpu02", "gpu03")
	for i, sha256 := range []string{sum("a"), sum("b"), ""} {
		all[i].After = &report.Version{Version: "0.19.8", SHA256: sha256}
	}
	got := screenOf(t, reported("rollback", false, all))
	for _, want := range []string{
		"gpu01 ok 0.19.8 (aaaaaaaaaaaa) 2.15.0", "gpu02 ok 0.19.8 (bbbbbbbbbbbb) 2.15.0", "gpu03 ok 0.19.8 2.15.0",
		"3 nodes ok, but running different software",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// verify tells in which properties nodes differ, which of these may, and each note once.
func TestVerifyTellsDifferences(t *testing.T) {
	t.Parallel()
	all := well("gpu01", "gpu02", "gpu03", "gpu04")
	for i := range all {
		all[i].Facts.Driver, all[i].Facts.Glibc = "580.1", fmt.Sprint("2.", i)
		all[i].Notes = []string{"a note"}
	}
	all[3].Facts.Torch, all[3].Facts.Driver = "2.14.0", ""
	all[3].Notes = append(all[3].Notes, "another\nnote")
	got := screenOf(t, reported("verify", false, all))
	for _, want := range []string{
		"NODES STATUS DEEPSPEED TORCH CUDA PYTHON SECONDS", "gpu[01-03] ok 0.19.8+torch2.15cu132 (aaaaaaaaaaaa) 2.15.0 13.2 3.11.2 3.5",
		"torch: 2.15.0 on gpu[01-03]; 2.14.0 on gpu04", "driver (may differ): 580.1 on gpu[01-03]; none on gpu04",
		"glibc (may differ): 2.0 on gpu01; 2.1 on gpu02; 2.2 on gpu03; 2.3 on gpu04",
		"gpu[01-04] (note): a note", "4 nodes ok, but running different software",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got := screenOf(t, reported("deploy", false, all)); strings.Contains(got, "driver") || strings.Contains(got, "note") || !strings.Contains(got, "torch: 2.15.0 on gpu[01-03]; 2.14.0 on gpu04") {
		t.Errorf("deploy tells of what may differ, or not of what must not:\n%s", got)
	}
}

// Many values and notes do not flood the screen.
func TestReportIsBounded(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("node-%c%d", 'a'+i%26, i*i))
	}
	all := well(names...)
	for i := range all {
		all[i].Notes = []string{fmt.Sprint("note ", i)}
		if i >= 20 {
			all[i].Facts.Driver = fmt.Sprint("580.", i)
		}
	}
	got := screenOf(t, reported("verify", false, all))
	if !strings.Contains(got, "driver (may differ): none on 20 nodes; ") || !strings.Contains(got, "; 15 more values") || !strings.Contains(got, "… and 28 more notes") {
		t.Error(got)
	}
	for line := range strings.SplitSeq(got, "\n") {
		if len(line) > 400 {
			t.Errorf("a line of %d characters: %.100s", len(line), line)
		}
	}
}

// Nodes of different kinds may differ where a fleet is mixed; those of one kind must not.
func TestCompareWithinKinds(t *testing.T) {
	t.Parallel()
	facts := func(torch string) node.Facts {
		f := *well("x")[0].Facts
		f.Torch = torch
		return f
	}
	must := func(mixed bool, all ...report.ProbedNode) map[string]bool {
		found := map[string]bool{}
		for _, d := range report.Compare(all, mixed) {
			found[d.What] = d.Must
		}
		return found
	}
	a, b, same := report.ProbedNode{Name: "a", Facts: facts("2.15.0"), Kind: "k1"}, report.ProbedNode{Name: "b", Facts: facts("2.14.0"), Kind: "k2"}, report.ProbedNode{Name: "c", Facts: facts("2.14.0"), Kind: "k1"}
	if got := must(false, a, b); !got["torch"] {
		t.Errorf("%v", got)
	}
	if got := must(true, a, b); got["torch"] || len(got) != 1 {
		t.Errorf("%v", got)
	}
	if got := must(true, a, b, same); !got["torch"] {
		t.Errorf("%v", got)
	}
	old, patched := report.ProbedNode{Name: "p", Facts: facts("2.15.0"), Kind: "k2"}, report.ProbedNode{Name: "q", Facts: facts("2.15.0"), Kind: "k1"}
	old.Facts.Python, patched.Facts.Python = "3.10.12", a.Facts.Python+"9"
	if got := must(true, a, old, patched); got["python"] || len(got) != 1 {
		t.Errorf("nodes of a kind whose Pythons differ in the patch level alone: %v", got)
	}
	lost := report.ProbedNode{Name: "d", Facts: node.Facts{Missing: []string{"python"}}}
	if got := must(false, a, lost); len(got) != 0 {
		t.Errorf("a node without Python differs in %v", got)
	}
	a.Facts.ExtraWheels = map[string]string{"numpy": sum("a"), "transformers": sum("b")}
	c := report.ProbedNode{Name: "e", Facts: facts("2.15.0"), Kind: "k1"}
	c.Facts.Dists = map[string]string{"numpy": "1.26.0"}
	if got := must(false, a, c); len(got) != 1 || got["numpy"] {
		t.Errorf("%v", got)
	}
}

// The JSON has lists in place of null, and no node's distributions.
func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*report.Report{"nothing": report.Empty("deploy"), "nodes": reported("deploy", false, well("gpu01"))} {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range []string{"wheels", "causes", "nodes", "differences"} {
			if strings.Contains(string(text), `"`+list+`":null`) {
				t.Errorf("%s: %s is null", name, list)
			}
		}
		if strings.Contains(string(text), "numpy") {
			t.Errorf("%s: the distributions of a node are in the report", name)
		}
	}
	if r := report.Empty("deploy"); r.Consistent {
		t.Error("no nodes are consistent")
	}
}

// Ship with nothing to do says so.
func TestShipWithNothingToDo(t *testing.T) {
	t.Parallel()
	all := well("gpu01", "gpu02")
	for i := range all {
		all[i].Changed = false
	}
	r := reported("ship", false, all)
	r.Groups = []report.Group{{State: report.GroupRunning}}
	if got := screenOf(t, r); !strings.HasSuffix(got, "\nnothing to do: 2 nodes already run their wheels") {
		t.Error(got)
	}
	one := reported("ship", false, all[:1])
	one.Groups = r.Groups
	if got := screenOf(t, one); !strings.HasSuffix(got, "\nnothing to do: 1 node already runs its wheel") {
		t.Error(got)
	}
	for name, change := range map[string]func(){
		"a wheel was built": func() { r.Groups = append(r.Groups, report.Group{State: "built"}) },
		"a node changed":    func() { r.Groups, r.Nodes[0].Changed = r.Groups[:1], true },
		"it is no ship":     func() { r.Groups, r.Nodes[0].Changed = nil, false },
	} {
		if change(); strings.Contains(screenOf(t, r), "nothing to do") {
			t.Errorf("%s, and there was nothing to do", name)
		}
	}
}

func TestVersionInReport(t *testing.T) {
	t.Parallel()
	var none *report.Version
	if none.String() != "no DeepSpeed" || none.Plain() != nil {
		t.Errorf("%s, %v", none, none.Plain())
	}
	hostile := &report.Version{Version: "0.19.8+x\x1b[2J\n; rm -rf /", SHA256: "aa\nbb"}
	if p := hostile.Plain(); strings.ContainsAny(p.Version+p.SHA256, "\x1b\n;/ ") || !strings.HasPrefix(p.Version, "0.19.8+x") {
		t.Errorf("%q", p)
	}
	if report.ShortSum("abc") != "abc" || report.ShortSum(sum("a")) != "aaaaaaaaaaaa" {
		t.Error(report.ShortSum(sum("a")))
	}
}
