package report_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/inventory"
)

// hostsNamed are nodes of an inventory.
func hostsNamed(names string) []inventory.Host {
	var hosts []inventory.Host
	for name := range strings.FieldsSeq(names) {
		hosts = append(hosts, inventory.Host{Name: name})
	}
	return hosts
}

// past writes a report and reads it again.
func past(t *testing.T, text, command string) (*report.PastReport, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return report.LoadPast(file, command)
}

func TestRetry(t *testing.T) {
	t.Parallel()
	report := report.Report{Command: "deploy", Nodes: []report.Node{
		{Name: "gpu1", Status: report.OK},
		{Name: "gpu2", Status: report.Failed},
		{Name: "gpu3", Status: report.Unreachable},
		{Name: "gpu4", Status: report.Refused},
		{Name: "gpu5", Status: report.Skipped},
		{Name: "gpu6", Status: report.Differs},
	}}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	p, err := past(t, string(text), "deploy")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ selected, all, want, remark string }{
		{"gpu6 gpu5 gpu4 gpu3 gpu2 gpu1 gpu0", "", "gpu6 gpu5 gpu4 gpu3 gpu2", ""},
		{"gpu1 gpu2 gpu3", "", "gpu2 gpu3", "gpu[4-6]: not ok in "},
		{"gpu2", "gpu1 gpu2 gpu3 gpu4 gpu5 gpu6", "gpu2", "left out by --limit"},
		{"gpu1", "", "", "no longer in the inventory"},
	} {
		if c.all == "" {
			c.all = c.selected
		}
		again, remarks, err := p.Retry(hostsNamed(c.selected), hostsNamed(c.all))
		var names []string
		for _, h := range again {
			names = append(names, h.Name)
		}
		if err != nil || strings.Join(names, " ") != c.want || !strings.Contains(strings.Join(remarks, "\n"), c.remark) || c.remark == "" && len(remarks) > 0 {
			t.Errorf("%+v: %q, %q, %v", c, names, remarks, err)
		}
	}
	if _, _, err := p.Retry(hostsNamed("cpu1"), hostsNamed("cpu1")); code(err) != 2 || !strings.Contains(err.Error(), "none of its nodes (gpu[1-6]) is in the inventory") {
		t.Errorf("another inventory: %v", err)
	}
}

// reports that are none; each names what is wrong with it.
func damagedReports() map[string]string {
	return map[string]string{
		"":                         "it is not a report (JSON, written by --report FILE.json)",
		"a: b":                     "it is not a report (JSON, written by --report FILE.json)",
		"{":                        "unexpected end of JSON input",
		"[]":                       "the document has the type array",
		"null":                     "it does not name its command",
		"{}":                       "it does not name its command",
		`{"command":"deploy"}`:     "it does not name its command",
		`{"nodes":[]}`:             "it does not name its command",
		`{"wheels":[]}{"nodes":1}`: "invalid character",
		`{"command":"deploy","nodes":[{"name":"gpu1","status":"fine"}]}`:                              `the status of node "gpu1" is "fine"`,
		`{"command":"deploy","nodes":[{"name":"","status":"ok"}]}`:                                    `the status of node "" is "ok"`,
		`{"command":"deploy","nodes":[{"name":"a","status":"ok"},{"name":"a","status":"failed"}]}`:    "twice",
		`{"command":"deploy","nodes":[{"name":7,"status":"ok"}]}`:                                     "nodes.name has the type number",
		`{"command":"verify","nodes":[]}`:                                                             "it is the report of dsbuild verify",
		`{"command":"` + strings.Repeat("x", 5000) + `","nodes":[]}`:                                  "xxx…",
		`{"command":"deploy","nodes":[{"name":"` + strings.Repeat("n", 5000) + `","status":"gone"}]}`: "nnn…",
		strings.Repeat(`{"command":`, 20000):                                                          "max depth",
	}
}

func TestRetryOfADamagedReport(t *testing.T) {
	t.Parallel()
	for text, want := range damagedReports() {
		_, err := past(t, text, "deploy")
		var wrong *diagnostic.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || len(err.Error()) > 800 || wrong.Hint() == "" {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	for _, file := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none.json")} {
		if _, err := report.LoadPast(file, "deploy"); code(err) != 2 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func FuzzPast(f *testing.F) {
	for text := range damagedReports() {
		f.Add(text)
	}
	f.Add(`{"command":"deploy","nodes":[{"name":"gpu1","status":"failed"},{"name":"gpu2","status":"ok"}]}`)
	file := filepath.Join(f.TempDir(), "r.json")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := report.LoadPast(file, "deploy")
		if err != nil {
			if code(err) != 2 {
				t.Fatal(err)
			}
			return
		}
		again, _, err := p.Retry(hostsNamed("gpu1 gpu2"), hostsNamed("gpu1 gpu2"))
		if err != nil && len(again) > 0 || len(again) > 2 {
			t.Fatal(fmt.Sprint(again), err)
		}
	})
}
