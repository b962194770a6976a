package report

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/junit"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// JUnit writes the report in the format of CI systems for test results: each node is a test. A
// node that could not be reached is an error, because dsbuild learned nothing about it. A node
// that failed, was refused or differs is a failure. If every node is ok but they run different
// software, an additional last test fails: the suite passes only if the exit code is 0.
func (r *Report) JUnit(w io.Writer, about About) error {
	suite := junit.Suite{
		Name:      about.Command,
		Timestamp: junit.At(about.At),
		Hostname:  about.By[strings.LastIndexByte(about.By, '@')+1:],
		Properties: []junit.Property{
			{Name: "inventory", Value: about.Inventory}, {Name: "by", Value: about.By}, {Name: "verdict", Value: ui.Clean(r.Verdict())},
		},
	}
	for _, wheel := range r.Wheels {
		suite.Properties = append(suite.Properties, junit.Property{Name: "wheel", Value: wheel.Name + " sha256 " + wheel.SHA256})
	}
	for _, c := range r.Why() {
		suite.Properties = append(suite.Properties, junit.Property{Name: "cause", Value: ui.Clean(c.String())})
	}
	total, logs := 0.0, maxJUnitLogs
	for _, n := range r.Nodes {
		suite.Cases = append(suite.Cases, n.junit(about.Command, &logs))
		total += n.total()
	}
	if r.Summary.OK == len(r.Nodes) && !r.Consistent {
		suite.Cases = append(suite.Cases, junit.Case{
			Name: "all nodes", Class: about.Command, Time: junit.Time(0),
			Failure: &junit.Outcome{Message: r.Verdict(), Type: string(Differs), Text: ui.Clean(r.Verdict())},
		})
	}
	suite.Time = junit.Time(total)
	return junit.Write(w, suite)
}

// junit returns the node as a test.
func (n Node) junit(class string, logs *int) junit.Case {
	c := junit.Case{Name: ui.Clean(n.Name), Class: class, Time: junit.Time(n.total()), SystemOut: n.junitOutput() + n.junitLog(logs)}
	message := ui.Clean(n.Error)
	text := message
	if n.Step != "" && n.Status != Skipped {
		text = n.Step + ": " + text
	}
	if n.Hint != "" {
		text += "\nhint: " + ui.Clean(n.Hint)
	}
	said := &junit.Outcome{Message: message, Type: string(n.Status), Text: text}
	switch n.Status {
	case OK:
	case Skipped:
		said.Type = "" // not every schema has the type
		c.Skipped = said
	case Unreachable:
		c.Error = said
	case Failed, Refused, Differs:
		c.Failure = said
	}
	return c
}

// junitOutput lists the versions on a node, and the duration of each step.
func (n Node) junitOutput() string {
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

// Bounds in bytes on the quotes from logs: from one node's log, and in total.
const (
	maxJUnitLog  = 8 << 10
	maxJUnitLogs = 4 << 20
)

// QuotesLogs reports whether JUnit quotes logs, which only the user should read.
func (r *Report) QuotesLogs() bool {
	return slices.ContainsFunc(r.Nodes, Node.quotesLog)
}

func (n Node) quotesLog() bool { return n.Status != OK && n.Log != "" }

// junitLog returns the path of the log of a node that is not ok and, while *room lasts, the end
// of that log.
func (n Node) junitLog(room *int) string {
	if !n.quotesLog() {
		return ""
	}
	text := "\nlog: " + ui.Clean(n.Log)
	if *room <= 0 {
		return text
	}
	end, err := endOf(n.Log, maxJUnitLog)
	if err != nil { // the file may be gone
		return text
	}
	*room -= len(end)
	return text + "\n" + ui.Clean(end)
}

// endOf returns the end of a text file, at most the given bytes, in whole lines.
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

// total is the sum of the steps' durations on a node, in seconds.
func (n Node) total() float64 {
	sum := 0.0
	for _, s := range n.Seconds {
		sum += s
	}
	return sum
}
