package report_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
)

// The table is followed by who sent how much, where nodes passed files on.
func TestPrintTellsWhoSent(t *testing.T) {
	t.Parallel()
	for want, from := range map[string][]report.Source{
		"transfers: 1.0 MiB from dsbuild, 2.0 MiB between nodes\n": {{Node: "", Bytes: 1 << 20}, {Node: "gpu1", Bytes: 2 << 20}},
		"": {{Node: "", Bytes: 1 << 20}},
	} {
		r := report.Empty("deploy")
		r.Add(report.Node{Name: "gpu2", Status: report.OK, From: from}, nil)
		r.Complete()
		var out bytes.Buffer
		if err := r.Print(&out); err != nil {
			t.Fatal(err)
		}
		line := ""
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(l, "transfers:") {
				line = l
			}
		}
		if line != want {
			t.Errorf("%q, not %q", line, want)
		}
	}
}
