package report_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
)

// Of each op a report prints the comparison that is nearest to its tolerance, of all nodes.
func TestPrintComparisons(t *testing.T) {
	t.Parallel()
	r := report.Empty("verify")
	for i, worst := range []float64{4e-7, 1e-7} {
		r.Add(report.Node{Name: fmt.Sprint("node", i+1), Status: report.OK, Compared: []report.Comparison{
			{Op: "cpu_adam", Device: "CPU", Count: 1, Name: "AdamW", Worst: worst, Most: 1e-5, Why: "float32"},
			{Op: "utils", Device: "CPU", Count: 1, Name: "bytes", Why: "it copies"},
		}}, nil)
	}
	r.Complete()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\ncpu_adam computes the same as torch on node[1-2]: off by at most 4.0e-07, allowed 1.0e-05 (AdamW, CPU)\n",
		"\nutils computes the same as torch on node[1-2]: off by at most 0.0e+00, allowed 0.0e+00 (bytes, CPU)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("missing %q in\n%s", want, out.String())
		}
	}
}
