package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/node"
)

// junitElement is an element of JUnit's format, read without the types that
// wrote it.
type junitElement struct {
	name     string
	attr     map[string]string
	text     string
	children []*junitElement
}

func parseJUnit(t *testing.T, r *report.Report) *junitElement {
	t.Helper()
	var out bytes.Buffer
	about := report.About{Command: "dsbuild deploy", Inventory: "inventory.yaml", By: "train@head", At: time.Date(2026, 11, 22, 10, 30, 0, 0, time.FixedZone("CET", 3600))}
	if err := r.JUnit(&out, about); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), `<?xml version="1.0" encoding="UTF-8"?>`) {
		t.Errorf("begins with %.60s", out.String())
	}
	root := &junitElement{}
	open := []*junitElement{root}
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return root.children[0]
		}
		if err != nil {
			t.Fatal(err)
		}
		last := open[len(open)-1]
		switch e := token.(type) {
		case xml.StartElement:
			child := &junitElement{name: e.Name.Local, attr: map[string]string{}}
			for _, a := range e.Attr {
				child.attr[a.Name.Local] = a.Value
			}
			last.children, open = append(last.children, child), append(open, child)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			last.text += string(e)
		}
	}
}

func (e *junitElement) all(name string) []*junitElement {
	return slices.DeleteFunc(slices.Clone(e.children), func(c *junitElement) bool { return c.name != name })
}

// checkJUnit holds a document to what the schemas of Jenkins, surefire and Ant
// have in common: which elements there are, in what order, the attributes that
// must be there, and counts that are right.
func checkJUnit(t *testing.T, suites *junitElement) {
	t.Helper()
	needs := map[string][]string{
		"testsuites": {"name", "tests", "failures", "errors", "time"},
		"testsuite":  {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
		"property":   {"name", "value"}, "testcase": {"name", "classname", "time"},
		"failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"},
		"properties": nil, "system-out": nil,
	}
	order := map[string][]string{
		"testsuites": {"testsuite"}, "testsuite": {"properties", "testcase"}, "properties": {"property"},
		"testcase": {"skipped", "error", "failure", "system-out"},
	}
	var check func(e *junitElement)
	check = func(e *junitElement) {
		attributes, known := needs[e.name]
		if !known {
			t.Errorf("element <%s>", e.name)
		}
		for _, a := range attributes {
			if _, there := e.attr[a]; !there {
				t.Errorf("<%s> has no %s", e.name, a)
			}
		}
		last := 0
		for _, c := range e.children {
			at := slices.Index(order[e.name], c.name)
			if at < last {
				t.Errorf("<%s> in <%s>, or too late there", c.name, e.name)
			}
			last = at
			check(c)
		}
	}
	check(suites)
	suite := suites.all("testsuite")[0]
	count := map[string]int{"tests": len(suite.all("testcase"))}
	for _, c := range suite.all("testcase") {
		count["failures"] += len(c.all("failure"))
		count["errors"] += len(c.all("error"))
		count["skipped"] += len(c.all("skipped"))
		if _, err := strconv.ParseFloat(c.attr["time"], 64); err != nil {
			t.Error(err)
		}
	}
	for name, n := range count {
		if suite.attr[name] != strconv.Itoa(n) || name != "skipped" && suites.attr[name] != strconv.Itoa(n) {
			t.Errorf("%s: %q and %q, there are %d", name, suite.attr[name], suites.attr[name], n)
		}
	}
}

func TestJUnitSaysWhatBecameOfEachNode(t *testing.T) {
	t.Parallel()
	r := &report.Report{
		Wheels:  []report.Wheel{{Name: "deepspeed.whl", SHA256: "ab", Version: "0.19.8"}},
		Summary: report.Summary{OK: 1, Failed: 1, Unreachable: 1, Refused: 1, Differs: 1, Skipped: 1},
		Nodes: []report.Node{
			{Name: "gpu1", Status: report.OK, Step: "record", Changed: true, After: &report.Version{Version: "0.19.8"}, Facts: &node.Facts{Torch: "2.15.0"}, Seconds: map[string]float64{"put": 1.25, "verify": 2}},
			{Name: "gpu2", Status: report.Failed, Step: "verify", Error: "op <cpu_adam> does not load]]>\x1b[31m\x00", Hint: "try again"},
			{Name: "gpu3", Status: report.Unreachable, Step: "connect", Error: "no route"},
			{Name: "gpu4", Status: report.Refused, Step: "fit", Error: "needs hjson"},
			{Name: "gpu5", Status: report.Differs, Step: "verify", Error: "torch 2.14.0"},
			{Name: "gpu6", Status: report.Skipped, Error: "interrupted"},
		},
	}
	suites := parseJUnit(t, r)
	checkJUnit(t, suites)
	suite := suites.all("testsuite")[0]
	if suite.attr["name"] != "dsbuild deploy" || suite.attr["timestamp"] != "2026-11-22T09:30:00" || suite.attr["hostname"] != "head" || suite.attr["time"] != "3.250" {
		t.Errorf("suite: %v", suite.attr)
	}
	causes := 0
	for _, p := range suite.all("properties")[0].all("property") {
		if p.attr["name"] == "cause" {
			causes++
		}
	}
	if causes != 5 {
		t.Errorf("%d causes", causes)
	}
	want := []struct{ name, outcome, message, text string }{
		{"gpu1", "", "", ""},
		{"gpu2", "failure", "op <cpu_adam> does not load]]>", "verify: op <cpu_adam> does not load]]>\nhint: try again"},
		{"gpu3", "error", "no route", "connect: no route"},
		{"gpu4", "failure", "needs hjson", "fit: needs hjson"},
		{"gpu5", "failure", "torch 2.14.0", "verify: torch 2.14.0"},
		{"gpu6", "skipped", "interrupted", "interrupted"},
	}
	cases := suite.all("testcase")
	if len(cases) != len(want) {
		t.Fatalf("%d cases", len(cases))
	}
	for i, c := range cases {
		w := want[i]
		if c.attr["name"] != w.name || c.attr["classname"] != "dsbuild deploy" {
			t.Errorf("case %d: %v", i, c.attr)
		}
		if said := c.all(w.outcome); w.outcome != "" && (len(said) != 1 || said[0].attr["message"] != w.message || said[0].text != w.text) {
			t.Errorf("%s: %+v", w.name, c.children)
		}
	}
	if out := cases[0].all("system-out"); cases[0].attr["time"] != "3.250" || len(out) != 1 || !strings.Contains(out[0].text, "DeepSpeed: 0.19.8\ntorch: 2.15.0\nput: 1.2 s\nverify: 2.0 s") {
		t.Errorf("gpu1: %v %+v", cases[0].attr, out)
	}
}

// The end of a log is there for those that have none of the machine's files.
func TestJUnitHasTheEndOfLogs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gpu1.log")
	var text strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&text, "line %d \x1b[31m\n", i)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &report.Report{Summary: report.Summary{OK: 1, Failed: 2}, Nodes: []report.Node{
		{Name: "gpu1", Status: report.Failed, Error: "no", Log: file},
		{Name: "gpu2", Status: report.Failed, Error: "no", Log: file + ".gone"},
		{Name: "gpu3", Status: report.OK, Log: file},
	}}
	suites := parseJUnit(t, r)
	checkJUnit(t, suites)
	var out []string
	for _, c := range suites.all("testsuite")[0].all("testcase") {
		out = append(out, c.all("system-out")[0].text)
	}
	if !strings.HasPrefix(out[0], "status: failed\nlog: "+file+"\n[…]\nline ") || !strings.HasSuffix(out[0], "\nline 8999 \n") || len(out[0]) > 10_000 || strings.Contains(out[0], "\x1b") {
		t.Errorf("gpu1: %d bytes: %.200s", len(out[0]), out[0])
	}
	if out[1] != "status: failed\nlog: "+file+".gone" || strings.Contains(out[2], "log") {
		t.Errorf("gpu2: %q, gpu3: %q", out[1], out[2])
	}
}

// What is red here is what ends with another code than 0.
func TestJUnitFailsWithTheCommand(t *testing.T) {
	t.Parallel()
	ok := func(version string) report.Node {
		return report.Node{Name: "gpu" + version, Status: report.OK, After: &report.Version{Version: version}, Facts: &node.Facts{}}
	}
	for name, r := range map[string]*report.Report{
		"equal":     {Summary: report.Summary{OK: 2}, Consistent: true, Nodes: []report.Node{ok("1"), ok("1")}},
		"not equal": {Summary: report.Summary{OK: 2}, Nodes: []report.Node{ok("1"), ok("2")}},
	} {
		suites := parseJUnit(t, r)
		checkJUnit(t, suites)
		if red := suites.attr["failures"] != "0"; red != (r.Err() != nil) {
			t.Errorf("%s: %v, %v", name, suites.attr, r.Err())
		}
	}
}
