package report_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// unwell are nodes that are not ok for three reasons, each of which they say in
// words of their own; their order is that of an inventory.
func unwell(total int) []report.Node {
	var nodes []report.Node
	for i := range total {
		n := report.Node{Name: fmt.Sprintf("gpu%03d", i+1), Seconds: map[string]float64{"connect": float64(i)}}
		switch {
		case i%20 == 0:
			n.Status, n.Step = report.Unreachable, "connect"
			address := &net.TCPAddr{IP: net.IPv4(10, 0, byte(i/250), byte(i%250)), Port: 22}
			n = withError(n, fmt.Errorf("no connection: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: address, Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}))
			n.Hint = "is the node switched on?"
		case i%20 == 1:
			n.Status, n.Step = report.Refused, "fit"
			n = withError(n, nodeerr.Errorf("/opt/venv needs 180.2 MiB, %s are free", nodeerr.Own(fmt.Sprintf("%d.%d MiB", i, i%10))))
			n.Hint = fmt.Sprintf("make room on gpu%03d: df -h /opt/venv", i+1)
		default:
			n.Status, n.Step = report.Failed, "install"
			detail := fmt.Sprintf("ERROR: [Errno 28] /opt/venv/.dsbuild/run-20261122T0930-ab12cd/pip-%d", 4000+i) + strings.Repeat(" and much more of the kind", 20)
			n = withError(n, nodeerr.Errorf("pip exited with status 1: no space left on device (%s)", nodeerr.Own(detail)))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func TestCausesAreFew(t *testing.T) {
	t.Parallel()
	nodes := append(unwell(200),
		report.Node{Name: "cpu1", Status: report.OK},
		report.Node{Name: "cpu2", Status: report.Failed, Step: "verify", Error: "pip exited with status 1: ERROR: [Errno 5] x"},
		report.Node{Name: "cpu3", Status: report.Skipped, Step: "fit", Error: "skipped: too many failed nodes"},
		report.Node{Name: "cpu4", Status: report.Skipped, Error: "skipped: too many failed nodes"},
		report.Node{Name: "cpu5", Status: report.Differs, Step: "verify", Error: "torch 2.14.0; no einops", Differs: []string{"torch 2.14.0", "no einops"}},
	)
	causes := report.Causes(nodes)
	var got []string
	for _, c := range causes {
		got = append(got, fmt.Sprintf("%d %s at %q, first %s, alike %v", len(c.Nodes), c.Status, c.Step, c.Node, c.Alike))
	}
	want := []string{
		`180 failed at "install", first gpu003, alike false`,
		`10 unreachable at "connect", first gpu001, alike false`,
		`10 refused at "fit", first gpu002, alike false`,
		`1 failed at "verify", first cpu2, alike true`,
		`1 differs at "verify", first cpu5, alike true`,
		`2 skipped at "", first cpu3, alike true`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c := causes[0]; c.Error != nodes[2].Error || c.Nodes[0] != "gpu003" || c.Nodes[179] != "gpu200" {
		t.Errorf("the example is not verbatim: %+v", c)
	}
}

// TestFailuresOfManyNodesFitAScreen: 200 nodes that fail for three reasons.
func TestFailuresOfManyNodesFitAScreen(t *testing.T) {
	t.Parallel()
	r := &report.Report{Nodes: unwell(200), Summary: report.Summary{Failed: 180, Unreachable: 10, Refused: 10}}
	out := printed(t, r)
	lines := 0
	for line := range strings.Lines(out) {
		lines += len(line)/80 + 1
	}
	if lines > 36 {
		t.Errorf("%d lines of 80 characters", lines)
	}
	for _, want := range []string{
		"143-160,163-180,183-200] (180 nodes), e.g. gpu003: install: pip exited with status 1: no space left on device (ERROR: [Errno 28]",
		"(10 nodes), e.g. gpu001: connect: no connection: dial tcp 10.0.0.0:22", "\n  hint: make room on gpu002: df -h /opt/venv\n",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("%d times %q", strings.Count(out, want), want)
		}
	}
}

// TestPreviousVersionsAreNoCause: nodes that failed for one reason are one group,
// whatever was put back; one whose state is not known is not among them.
func TestPreviousVersionsAreNoCause(t *testing.T) {
	t.Parallel()
	backTo := func(version string) error {
		return nodeerr.Errorf("rolled back to DeepSpeed %s", nodeerr.Own(version))
	}
	failed := func(name, before string, after error) report.Node {
		n := report.Node{Name: name, Status: report.Failed, Step: "verify", Before: &report.Version{Version: before}}
		return withError(n, fmt.Errorf("cannot load op cpu_adam; %w", after))
	}
	causes := report.Causes([]report.Node{
		failed("gpu1", "0.19.7", backTo("0.19.7")),
		failed("gpu2", "0.18.2", backTo("0.18.2")),
		failed("gpu3", "0.18.2", errors.New("the node rolls back on its own, but this could not be confirmed")),
	})
	if len(causes) != 2 || len(causes[0].Nodes) != 2 || causes[1].Node != "gpu3" {
		t.Errorf("%+v", causes)
	}
}

// TestNoScreenIsFlooded: where every node fails in its own way, not all are told.
func TestNoScreenIsFlooded(t *testing.T) {
	t.Parallel()
	r := &report.Report{Summary: report.Summary{Failed: 2000}}
	for i := range 2000 {
		own := strings.Repeat(string(rune('a'+i%26)), i/26+1)
		r.Nodes = append(r.Nodes, report.Node{Name: fmt.Sprintf("rack%02d-gpu%03d", i/40, i%40), Status: report.Failed, Step: "verify", Error: "it says " + own})
	}
	out := printed(t, r)
	if n := strings.Count(out, "\n"); n > 30 || !strings.Contains(out, "… and 1980 more causes, on 1980 nodes: --report FILE.html lists all\n") {
		t.Errorf("%d lines:\n%.2000s", n, out)
	}
}

// withError is a node with an error.
func withError(n report.Node, err error) report.Node {
	n.Error, n.CauseText = err.Error(), nodeerr.Common(err)
	return n
}

func printed(t *testing.T, r *report.Report) string {
	t.Helper()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	return out.String()
}
