package page_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/reporttest"
)

// document is what is in a page, as a browser reads it.
type document struct {
	elements []*html.Node
	text     string // of all but scripts and styles
}

func parse(t *testing.T, page []byte) document {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	var text strings.Builder
	for n := range root.Descendants() {
		switch {
		case n.Type == html.ElementNode:
			doc.elements = append(doc.elements, n)
		case n.Type == html.TextNode && n.Parent.Data != "script" && n.Parent.Data != "style":
			text.WriteString(n.Data)
		}
	}
	doc.text = text.String()
	return doc
}

// named are the elements of a name.
func (d document) named(name string) []*html.Node {
	return slices.DeleteFunc(slices.Clone(d.elements), func(n *html.Node) bool { return n.Data != name })
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func TestPageSaysWhatTheReportDoes(t *testing.T) {
	t.Parallel()
	r := reporttest.Mixed()
	doc := parse(t, write(t, r))
	for _, want := range []string{
		r.Verdict(), "dsbuild deploy", "inventory.yaml", "train@head", "2026-11-22 09:30:00 UTC",
		reporttest.TheWheel().Name, reporttest.TheWheel().SHA256,
		"cannot load op cpu_adam", "dsbuild wheel --torch 2.14.1 --python 3.11",
		"gpu[22-24]", "2 × GeForce RTX 2080 Ti (7.5)", "gpu[09-11]", "2.27.5",
		"All reachable nodes agree on Python, glibc.",
	} {
		if !strings.Contains(doc.text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	var counts []string
	for _, b := range doc.named("button") {
		if status := attribute(b, "data-status"); status != "" {
			counts = append(counts, b.FirstChild.FirstChild.Data+" "+status)
		}
	}
	if want := []string{"17 ok", "5 refused", "1 unreachable", "1 failed"}; !slices.Equal(counts, want) {
		t.Errorf("counts %q, want %q", counts, want)
	}
}

// The policy allows exactly what is in the page, and the page asks for nothing.
func TestPageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	page := write(t, reporttest.Mixed())
	doc := parse(t, page)
	policy := ""
	for _, m := range doc.named("meta") {
		if attribute(m, "http-equiv") == "Content-Security-Policy" {
			policy = attribute(m, "content")
		}
	}
	hash := func(n *html.Node) string {
		sum := sha256.Sum256([]byte(n.FirstChild.Data))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	for _, want := range []string{"default-src 'none'", "script-src " + hash(doc.named("script")[0]), "style-src " + hash(doc.named("style")[0])} {
		if !slices.Contains(strings.Split(policy, "; "), want) {
			t.Errorf("the policy lacks %s: %s", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy: %s", policy)
	}
	for _, n := range doc.elements {
		for _, a := range n.Attr {
			if slices.Contains([]string{"src", "href", "action", "style"}, a.Key) || strings.HasPrefix(a.Key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	if rest := regexp.MustCompile(`https?://|url\(|@import`).FindAll(page, -1); len(rest) > 0 {
		t.Errorf("the page names %q", rest)
	}
}

func TestPageOfShip(t *testing.T) {
	t.Parallel()
	r := reporttest.Mixed()
	r.Groups = []report.Group{
		{Name: "cp311-torch2.15.0-sm80-v3", State: "built", Nodes: []string{"gpu01", "gpu02", "gpu03"}, Running: []string{"gpu02"}, Why: []string{"8.0 for A100", "Python 3.11: as on these nodes"}, Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Archs: []string{"8.0"}, CPU: "x86-64-v3", Ops: []string{"cpu_adam", "utils"}, Seconds: 87.4},
		{Name: "cp39-torch2.8.0-v3", State: "failed", Nodes: []string{"gpu04"}, Error: "<b>gcc</b> ended with status 1", Hint: "build it by itself: dsbuild wheel --python 3.9"},
	}
	doc := parse(t, write(t, r))
	for _, want := range []string{
		"Wheels and their nodes", "cp311-torch2.15.0-sm80-v3 built in 87 s: gpu[01-03] 3 nodes", "Already running on gpu02.",
		"Python 3.11, torch 2.15.0, CUDA 13.2, arch 8.0, x86-64-v3, ops cpu_adam, utils", "8.0 for A100",
		"cp39-torch2.8.0-v3 failed: gpu04", "<b>gcc</b> ended with status 1", "dsbuild wheel --python 3.9",
	} {
		if !strings.Contains(doc.text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if text := parse(t, write(t, reporttest.Mixed())).text; strings.Contains(text, "Wheels and their nodes") {
		t.Error("a deploy has no wheels that were built for it")
	}
}

// Nodes that failed for one reason are one row, whatever their own words.
func TestPageFoldsByCause(t *testing.T) {
	t.Parallel()
	var nodes []report.Node
	said := func(i int) string { return fmt.Sprintf("gpu%02d: pip (pid %d) ended with status 1", i, 4000+i) }
	cause := report.Cause{Status: report.Failed, Step: "install", Node: "gpu01", Error: said(1), Said: said(1)}
	for i := 1; i <= 20; i++ {
		n := reporttest.Good(i)
		reporttest.Spoil(&n, report.Failed, "install", said(i), "")
		nodes, cause.Nodes = append(nodes, n), append(cause.Nodes, n.Name)
	}
	r := reporttest.Counted(nil, nodes)
	r.Causes = []report.Cause{cause}
	doc := parse(t, write(t, r))
	if n := strings.Count(doc.text, "gpu[01-20]"); n != 2 || strings.Count(doc.text, "(pid 4001)") != 1 || !strings.Contains(doc.text, "on gpu01") {
		t.Errorf("%d times gpu[01-20]", n)
	}
}

// What a node says stays text, wherever it is put.
func TestPageEscapesWhatNodesSay(t *testing.T) {
	t.Parallel()
	page := write(t, reporttest.Hostile())
	doc := parse(t, page)
	if n := len(doc.named("img")); n > 0 {
		t.Errorf("%d images", n)
	}
	if n := len(doc.named("script")); n != 1 {
		t.Fatalf("%d scripts, want ours", n)
	}
	if n := len(doc.named("svg")); n != 1 {
		t.Errorf("%d drawings, want the bar", n)
	}
	if !strings.Contains(doc.text, `</script><script>window.hacked="script"</script><img`) {
		t.Error("the name of a node is not shown as it is")
	}
	if bytes.ContainsAny(page, "\x1b\u202e\u2028") {
		t.Error("what reorders or hides text is left")
	}
}

func TestPageOfOddFleets(t *testing.T) {
	t.Parallel()
	bare := report.Node{Name: "gpu1", Status: report.Skipped, Error: "interrupted"}
	edited := reporttest.Good(4)
	edited.Status, edited.Differs = report.Differs, []string{"torch is 2.14.0", "deepspeed/a.py is edited"}
	edited.Error, edited.Notes = "torch is 2.14.0; deepspeed/a.py is edited; cannot load op cpu_adam", []string{"b.py.bak lies about"}
	gone := reporttest.Good(3) // rolled back to no DeepSpeed
	gone.After = nil
	for name, c := range map[string]struct {
		report *report.Report
		want   string
	}{
		"no node":           {reporttest.Counted(nil, nil), "No differences in the compared properties."},
		"nothing is known":  {reporttest.Counted(nil, []report.Node{bare}), "interrupted"},
		"rolled back":       {reporttest.Counted(nil, []report.Node{gone}), "All reachable nodes agree on torch"},
		"differs":           {reporttest.Counted(nil, []report.Node{edited}), "torch is 2.14.0\ndeepspeed/a.py is edited\ncannot load op cpu_adam"},
		"notes":             {reporttest.Counted(nil, []report.Node{edited}), "b.py.bak lies about: gpu04"},
		"facts without all": {reporttest.Counted(nil, []report.Node{{Name: "gpu1", Status: report.OK, Facts: &node.Facts{}}}), "No differences in the compared properties."},
		"a failed one of 1": {reporttest.Counted(nil, reporttest.Mixed().Nodes[19:20]), "undefined symbol"},
		"two wheels":        {twoWheels(), "DeepSpeed may differ"},
	} {
		if doc := parse(t, write(t, c.report)); !strings.Contains(doc.text, c.want) {
			t.Errorf("%s: the page does not say %q", name, c.want)
		}
	}
}

// A node without Python was not asked what its Python knows: it has not none.
func TestPageOfANodeWithoutPython(t *testing.T) {
	t.Parallel()
	n := report.Node{Name: "gpu9", Status: report.Differs, Error: "no usable Python", Facts: &node.Facts{CPU: "x86-64-v4", GPUs: reporttest.Good(1).Facts.GPUs, Driver: "590.48.01"}}
	doc := parse(t, write(t, reporttest.Counted(nil, []report.Node{reporttest.Good(1), n})))
	if !strings.Contains(doc.text, "no usable Python") || strings.Contains(doc.text, "none") {
		t.Errorf("the page says none of what is not known")
	}
}

// twoWheels is a fleet of two kinds of nodes, each with the wheel for it.
func twoWheels() *report.Report {
	one, two := reporttest.Good(1), reporttest.Good(2)
	other := report.Wheel{Name: "deepspeed-0.19.8+torch2.15.cu132.sm75.v3.whl", SHA256: strings.Repeat("75", 32), Version: "0.19.8+torch2.15.cu132.sm75.v3"}
	two.Wheel, two.After = other.Name, &report.Version{Version: other.Version, SHA256: other.SHA256}
	return reporttest.Counted([]report.Wheel{reporttest.TheWheel(), other}, []report.Node{one, two})
}

// What the report calls no matter is none on the page: nodes that were given
// wheels for two torches.
func TestPageTakesWhatMustAgreeFromTheReport(t *testing.T) {
	t.Parallel()
	one, two := reporttest.Good(1), reporttest.Good(2)
	two.Facts.Torch = "2.14.0"
	r := reporttest.Counted(nil, []report.Node{one, two})
	if doc := parse(t, write(t, r)); !strings.Contains(doc.text, "torch must agree") {
		t.Error("two torches need not agree")
	}
	r.Differences = []report.Difference{{What: "torch", Values: []report.DifferenceValue{{Value: "2.15.0", Nodes: []string{"gpu01"}}, {Value: "2.14.0", Nodes: []string{"gpu02"}}}}}
	if doc := parse(t, write(t, r)); strings.Contains(doc.text, "must agree") {
		t.Error("two torches must agree where each node has the wheel for its own")
	}
}

// Thousands of nodes are a page that a mail carries.
func TestPageOfThousandsIsSmall(t *testing.T) {
	t.Parallel()
	for name, different := range map[string]bool{"alike": false, "all different": true} {
		if size := len(write(t, reporttest.Thousands(2000, different))); size > 2_000_000 {
			t.Errorf("%s: %d bytes", name, size)
		}
	}
}
