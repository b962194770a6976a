package deploy

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// The elements of JUnit's format, as far as readers of it agree: Jenkins,
// GitLab, surefire. None of them is strict about the same things, so that order
// and names are those that all of them take.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Time       string          `xml:"time,attr"`
		Timestamp  string          `xml:"timestamp,attr"`
		Hostname   string          `xml:"hostname,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		Class     string        `xml:"classname,attr"`
		Time      string        `xml:"time,attr"`
		Skipped   *junitOutcome `xml:"skipped"`
		Error     *junitOutcome `xml:"error"`
		Failure   *junitOutcome `xml:"failure"`
		SystemOut string        `xml:"system-out,omitempty"`
	}
	junitOutcome struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes the report as CI systems read results of tests: a node is a
// test. One that could not be reached is an error, for nothing was found out
// about it; one that failed, was refused or differs is a failure. Where every
// node is ok and yet they run different things, a last test says so: what is
// green here is exit code 0.
func (r *Report) JUnit(w io.Writer, about About) error {
	suite := junitSuite{
		Name:      about.Command,
		Timestamp: about.At.UTC().Format("2006-01-02T15:04:05"), // without a zone, as the schemas have it
		Hostname:  about.By[strings.LastIndexByte(about.By, '@')+1:],
		Properties: []junitProperty{
			{"inventory", about.Inventory}, {"by", about.By}, {"verdict", ui.Clean(r.Verdict())},
		},
	}
	for _, wheel := range r.Wheels {
		suite.Properties = append(suite.Properties, junitProperty{"wheel", wheel.Name + " sha256 " + wheel.SHA256})
	}
	for _, c := range r.Why() {
		suite.Properties = append(suite.Properties, junitProperty{"cause", ui.Clean(c.String())})
	}
	total, logs := 0.0, maxJUnitLogs
	for _, n := range r.Nodes {
		suite.Cases = append(suite.Cases, n.junit(about.Command, &logs))
		total += n.total()
	}
	if r.Summary.OK == len(r.Nodes) && !r.Consistent {
		suite.Cases = append(suite.Cases, junitCase{
			Name: "all nodes", Class: about.Command, Time: junitTime(0),
			Failure: &junitOutcome{r.Verdict(), string(Differs), ui.Clean(r.Verdict())},
		})
	}
	suite.Time = junitTime(total)
	suite.count()
	doc := junitSuites{
		Name: suite.Name, Tests: suite.Tests, Failures: suite.Failures, Errors: suite.Errors, Time: suite.Time,
		Suites: []junitSuite{suite},
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// junit is the test that a node is.
func (n NodeReport) junit(class string, logs *int) junitCase {
	c := junitCase{Name: ui.Clean(n.Name), Class: class, Time: junitTime(n.total()), SystemOut: n.junitOutput() + n.junitLog(logs)}
	message := ui.Clean(n.Error)
	text := message
	if n.Step != "" && n.Status != Skipped {
		text = n.Step + ": " + text
	}
	if n.Hint != "" {
		text += "\nhint: " + ui.Clean(n.Hint)
	}
	said := &junitOutcome{message, string(n.Status), text}
	switch n.Status {
	case OK:
	case Skipped:
		said.Type = "" // not every schema has it
		c.Skipped = said
	case Unreachable:
		c.Error = said
	case Failed, Refused, Differs:
		c.Failure = said
	}
	return c
}

// junitOutput says what a node runs, and how long each step took.
func (n NodeReport) junitOutput() string {
	var lines []string
	say := func(title, text string) {
		if text != "" {
			lines = append(lines, title+": "+ui.Clean(text))
		}
	}
	say("status", string(n.Status))
	if n.After != nil {
		say("DeepSpeed", n.After.Version)
	}
	if n.Facts != nil {
		say("torch", n.Facts.Torch)
		say("CUDA", n.Facts.TorchCUDA)
	}
	for _, text := range n.Remarks {
		say("remark", text)
	}
	for _, step := range slices.Sorted(maps.Keys(n.Seconds)) {
		say(step, fmt.Sprintf("%.1f s", n.Seconds[step]))
	}
	return strings.Join(lines, "\n")
}

// What is taken of logs: of one node, and of all.
const (
	maxJUnitLog  = 8 << 10
	maxJUnitLogs = 4 << 20
)

// junitLog is the end of the log of a node that is not ok, as long as there is
// room for it.
func (n NodeReport) junitLog(room *int) string {
	if n.Status == OK || n.Log == "" {
		return ""
	}
	text := "\nlog: " + ui.Clean(n.Log)
	if *room <= 0 {
		return text
	}
	end, err := endOf(n.Log, maxJUnitLog)
	if err != nil { // it may be gone
		return text
	}
	*room -= len(end)
	return text + "\n" + ui.Clean(end)
}

// endOf is the end of a text file, in whole lines.
func endOf(file string, most int64) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return "", err
	}
	if from == 0 {
		return string(text), nil
	}
	_, whole, _ := strings.Cut(string(text), "\n")
	return "[…]\n" + whole, nil
}

// total is how long a node took.
func (n NodeReport) total() float64 {
	sum := 0.0
	for _, s := range n.Seconds {
		sum += s
	}
	return sum
}

// count sums the cases up.
func (s *junitSuite) count() {
	s.Tests = len(s.Cases)
	for _, c := range s.Cases {
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
}

// junitTime is a number of seconds.
func junitTime(s float64) string {
	return fmt.Sprintf("%.3f", s)
}
