package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

func TestReportThatCannotBeWrittenHidesNothing(t *testing.T) {
	t.Parallel()
	r := &report.Report{Summary: report.Summary{Failed: 1}, Nodes: []report.Node{{Name: "gpu1", Status: report.Failed}}}
	var out bytes.Buffer
	good := filepath.Join(t.TempDir(), "r.json")
	nodes := nodeFlags{reports: []string{filepath.Join(t.TempDir(), "gone", "r.json"), good}}
	err := reportOutcome(context.Background(), &app{stdout: &out}, nodes, r)
	if code := exitCode(context.Background(), err); code != exitNodes || !strings.Contains(err.Error(), "cannot write the report") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if !strings.Contains(out.String(), "0 of 1 nodes ok, 1 failed") {
		t.Errorf("not printed: %s", out.String())
	}
	if _, err := os.Stat(good); err != nil {
		t.Error(err)
	}
}

func TestReportIsWrittenInTheFormatOfItsName(t *testing.T) {
	t.Parallel()
	r := &report.Report{Summary: report.Summary{Failed: 1}, Nodes: []report.Node{{Name: "gpu1", Status: report.Failed, Step: "verify", Error: "cannot load op cpu_adam"}}}
	dir := t.TempDir()
	nodes := nodeFlags{command: "dsbuild deploy", inventory: "fleet.yaml"}
	begins := map[string]string{"r.json": "{\n", "r.html": "<!doctype html>"}
	for name := range begins {
		nodes.reports = append(nodes.reports, filepath.Join(dir, name))
	}
	if err := printReport(&app{stdout: io.Discard}, nodes, r); err != nil {
		t.Fatal(err)
	}
	for name, begin := range begins {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.HasPrefix(string(text), begin) {
			t.Errorf("%s: %v: %.60s", name, err, text)
		}
		for _, want := range []string{"cannot load op cpu_adam", "dsbuild deploy", "fleet.yaml", localUser()} {
			if !strings.Contains(string(text), want) && (name != "r.json" || want == "cannot load op cpu_adam") {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

func TestInterruptedSurveyPrintsAndWritesTheReport(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(context.Background())
	d := deploy.New(deploy.Options{Options: fleet.Options{Hosts: []inventory.Host{{Name: "gpu1"}, {Name: "gpu2"}}, Reporter: ui.New(io.Discard, ui.Options{})}})
	defer d.Close()
	cancel(&interruptError{syscall.SIGINT})
	if _, err := d.Survey(ctx); err == nil {
		t.Error("the survey says nothing of the interruption")
	}
	var out bytes.Buffer
	nodes := nodeFlags{reports: []string{filepath.Join(t.TempDir(), "r.json")}, json: true}
	err := reportOutcome(ctx, &app{stdout: &out}, nodes, d.Apply(ctx))
	if code := exitCode(ctx, err); code != exitInterrupted {
		t.Errorf("exit code %d, %v", code, err)
	}
	written, err := os.ReadFile(nodes.reports[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{out.Bytes(), written} {
		var r report.Report
		if err := json.Unmarshal(data, &r); err != nil || r.Summary.Skipped != 2 || r.Nodes[1].Error != "interrupted (SIGINT)" {
			t.Errorf("%v: %s", err, data)
		}
	}
}

func TestMaxFailFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag       string
		failed, of int
		want       bool
	}{{"0", 1, 2000, true}, {"2", 2, 2, false}, {"2", 3, 3, true}, {"5%", 100, 2000, false}, {"5%", 101, 2000, true}, {"5%", 1, 1, true}, {"100%", 9, 9, false}} {
		tooMany, err := parseMaxFail(c.flag)
		if err != nil || tooMany(c.failed, c.of) != c.want {
			t.Errorf("--max-fail %s: %d of %d: %v, %v", c.flag, c.failed, c.of, !c.want, err)
		}
	}
}

func TestBandwidthFlag(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"100MB": 1e8, "1GB": 1e9, "500KB/s": 5e5, "40000": 4e4} {
		limit, err := parseBandwidth(text)
		if err != nil || float64(limit.Limit()) != want || limit.Burst() < remote.LimitBurst {
			t.Errorf("%s: %v, %v", text, limit, err)
		}
	}
	for _, text := range []string{"fast", "-1MB", "0", "1KB", "1MB/h", "10 parrots"} {
		var stderr strings.Builder
		args := []string{"deploy", "inventory.yaml", "--bwlimit", text}
		code := run(t.Context(), args, strings.NewReader(""), io.Discard, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), "for --bwlimit: want bytes per second such as 500KB") {
			t.Errorf("%s: exit %d, %s", text, code, stderr.String())
		}
	}
	var f sendFlags
	f.add(&cobra.Command{})
	if limit, way := f.options(); limit != nil || way.Off || way.Limit != 0 {
		t.Errorf("without the flag: %v, %+v", limit, way)
	}
	if limit, way := (sendFlags{}).options(); limit != nil || !way.Off {
		t.Errorf("of a command that sends nothing: %v, %+v", limit, way)
	}
}

// A plan that lists nothing has empty lists in its JSON, which programs can go through.
func TestEmptyListsOfAPlan(t *testing.T) {
	text, err := json.Marshal(newDeployPlan(deploy.Plan{Nodes: []deploy.NodePlan{{Decision: change.Decision{Name: "gpu1", Action: change.Install}}}}, hints{}))
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%s, %v; want no null", text, err)
	}
}
