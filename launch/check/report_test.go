package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// judged are five nodes in every status, with findings that several share.
func judged() *run {
	r := ready(5)
	for i, m := range r.members {
		m.Seconds = map[string]float64{"connect": 0.5, "probe": float64(i)}
		m.facts.GPUs = make([]node.GPU, 8)
	}
	for _, i := range []int{1, 2} {
		m := r.members[i]
		m.addFinding(Versions, Error, "install one torch", "torch 2.14.0, but 3 of 5 nodes have 2.15.0")
		m.addFinding(Disk, Warning, "", "/tmp has little room on %s", m.Host.Name)
	}
	r.members[1].addFinding(Disk, Warning, "free it", "the disk is \x1b[31mslow")
	r.members[3].Status, r.members[3].facts, r.members[3].route = report.Unreachable, nil, nil
	r.members[3].addFinding(Connect, Error, "is it on?", "no route to host")
	r.members[4].Status = report.Skipped
	r.pairs = Pairs{Tried: 20, Failed: 2}
	r.sums = []Sum{
		{Backend: "gloo", OK: true, Nodes: []string{"n1", "n2"}, Without: []string{"n3", "n4"}, Processes: 2, Bytes: 16 << 20, Seconds: 0.25, Latency: 0.0002, Bandwidth: 1 << 30},
		{Backend: "nccl", Nodes: []string{"n1"}, Processes: 1, Error: "waiting for \x1b[1mn1"},
	}
	r.addNotChecked(Network, "no shell on %d nodes", 2)
	return r
}

func TestReportCountsAndGroups(t *testing.T) {
	rep := judged().buildReport()
	if rep.Summary != (Summary{OK: 1, Failed: 2, Unreachable: 1, Skipped: 1}) || rep.Ready {
		t.Errorf("%+v, ready %v", rep.Summary, rep.Ready)
	}
	var got []string
	for _, c := range rep.Causes {
		got = append(got, c.String())
	}
	want := []string{
		"n4: connect: no route to host\n  hint: is it on?",
		"n[2-3] (2 nodes): versions: torch 2.14.0, but 3 of 5 nodes have 2.15.0\n  hint: install one torch",
		"n2: disk (warning): /tmp has little room on n2",
		"n2: disk (warning): the disk is slow\n  hint: free it",
		"n3: disk (warning): /tmp has little room on n3",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("causes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	err := rep.Err()
	var code interface{ ExitCode() int }
	if !errors.As(err, &code) || code.ExitCode() != 3 || err.Error() != "4 of 5 nodes not ready" {
		t.Errorf("%v", err)
	}
	if n := rep.Nodes[3]; n.Facts != nil || n.Address != "" {
		t.Errorf("a node without an answer has facts: %+v", n)
	}
	if n := rep.Nodes[2]; n.Seconds != 2.5 || n.Address != "10.0.0.3" || n.Interface != "eth0" {
		t.Errorf("%+v", n)
	}
	all := ready(2)
	all.members[0].addFinding(Disk, Warning, "", "little room")
	if rep := all.buildReport(); rep.Err() != nil || rep.Verdict() != "2 nodes ready for a job, 1 warning" {
		t.Errorf("%v, %s", rep.Err(), rep.Verdict())
	}
}

func TestReportForPeople(t *testing.T) {
	var out bytes.Buffer
	if err := judged().buildReport().Print(&out); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"NODES  STATUS       GPUS  TORCH   INTERFACE  SECONDS",
		"n1     ok           8     2.15.0  eth0       0.5",
		"n[2-3]  failed       8     2.15.0  eth0       2.5",
		"n4     unreachable  -     -       -          3.5",
		"n5     skipped      8     2.15.0  eth0       4.5",
		"n4: connect: no route to host",
		"the disk is slow",
		"connections between nodes: 18 of 20",
		"all-reduce with gloo: 2 processes on 2 nodes (without n[3-4]): all results correct; 16.0 MiB in 250.0 ms, 1.0 GiB/s bus bandwidth; latency 200 µs",
		"all-reduce with nccl: 1 process on 1 node: waiting for n1",
		"not checked: network: no shell on 2 nodes",
		"1 of 5 nodes ready, 2 failed, 1 unreachable, 1 skipped",
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, line := range want {
		if line = strings.Join(strings.Fields(line), " "); !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("a node's control characters are printed")
	}
}

// More findings than a person reads are counted; the JSON has all of them.
func TestReportWithManyFindings(t *testing.T) {
	r := ready(2)
	for i := range maxCauses + 5 {
		r.members[0].addFinding(Disk, Warning, "", "finding %d", i)
	}
	rep := r.buildReport()
	lines := rep.findingLines()
	if len(rep.Causes) != maxCauses+5 || len(lines) != maxCauses+1 || lines[maxCauses] != "… and 5 more findings; for all of them, use --report FILE.json" {
		t.Errorf("%d causes, %q", len(rep.Causes), lines[len(lines)-1])
	}
}

// A node may send any number as a time. The report is written nevertheless, and its text stays short.
func TestNodeSendsAbsurdNumbers(t *testing.T) {
	for _, seconds := range []float64{0, -1, math.SmallestNonzeroFloat64, 1e-300, 1e300, math.MaxFloat64, -math.MaxFloat64} {
		w := team()
		for rank := range w.world {
			w.handleEvent(event{from: w.team[rank], Rank: rank, Stage: "summed", Seconds: seconds, Latency: seconds})
		}
		s := Sum{Backend: "gloo", OK: true, Processes: w.world, Bytes: glooBytes}
		w.measure(&s)
		w.sums = []Sum{s}
		rep := w.buildReport()
		if _, err := json.Marshal(rep); err != nil {
			t.Errorf("%g: %v", seconds, err)
		}
		var out bytes.Buffer
		if err := rep.Print(&out); err != nil {
			t.Errorf("%g: %v", seconds, err)
		}
		for line := range strings.SplitSeq(out.String(), "\n") {
			if len(line) > 200 || strings.Contains(line, strconv.Itoa(math.MinInt)) || strings.Contains(line, "Inf") || strings.Contains(line, "-9223372036854775808") {
				t.Errorf("%g: %.300s", seconds, line)
			}
		}
	}
}

// The processes' slowest times count; a team of one has no bandwidth.
func TestCollectiveMeasure(t *testing.T) {
	w := team()
	for rank, seconds := range []float64{0.5, 2, 1} {
		w.handleEvent(event{from: w.team[rank], Rank: rank, Stage: "summed", Seconds: seconds, Latency: seconds / 100})
	}
	s := Sum{Bytes: 3 << 20}
	w.measure(&s)
	if s.Seconds != 2 || s.Latency != 0.02 || s.Bandwidth != 2<<20 {
		t.Errorf("%+v", s)
	}
	w.world = 1
	s = Sum{Bytes: 3 << 20}
	if w.measure(&s); s.Bandwidth != 0 {
		t.Errorf("one process has a bandwidth: %+v", s)
	}
}

func TestShortTime(t *testing.T) {
	for seconds, want := range map[float64]string{0: "0 µs", 0.0000125: "12 µs", 0.0015: "1.5 ms", 0.9994: "999.4 ms", 1: "1.0 s", 75: "75.0 s"} {
		if got := shortTime(seconds); got != want {
			t.Errorf("%g: %s, want %s", seconds, got, want)
		}
	}
}

// A node answers each question with a value, an error or nothing, and with pairs of two values.
func TestSurveyAnswers(t *testing.T) {
	for text, want := range map[string]string{
		`{"ok": {"name": "a", "addresses": []}}`: "",
		`{"error": "no \u001b[1mname"}`:          "node reported: no name",
		`{"hung": true}`:                         "timed out after 20s",
		`{}`:                                     "no answer",
		`null`:                                   "no answer",
	} {
		var p part[resolved]
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.failureReason() != want {
			t.Errorf("%s: %q %v, want %q", text, p.failureReason(), err, want)
		}
	}
	var a int
	var b string
	for text, want := range map[string]string{
		`[1, "x"]`: "", `[1]`: "got 1 values, want 2", `[1, "x", 2]`: "got 3 values, want 2", `{}`: "cannot unmarshal object", `["x", 1]`: "cannot unmarshal",
	} {
		if err := unmarshalPair([]byte(text), &a, &b); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A node that was lost holds up the others, whoever has come furthest.
func TestLostNodeHoldsUpCollective(t *testing.T) {
	w := team()
	w.team[1].Status = report.Failed
	err := w.findCulprits(2, stages(true, false)[1], time.Second)
	if err == nil || err.Error() != "waiting for n2" || w.said() != "" {
		t.Errorf("%v\n%s", err, w.said())
	}
	w = team()
	w.team[0].addFinding(Collective, Error, "", "its process hangs")
	if err := w.findCulprits(2, stages(true, false)[1], time.Second); err == nil || err.Error() != "waiting for n1" {
		t.Errorf("%v", err)
	}
}
