package check

import (
	"fmt"
	"io"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/junit"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// JUnit writes the report for CI systems. Each node is a test, and so is each
// collective.
func (r *Report) JUnit(w io.Writer, about report.About) error {
	suite := junit.Suite{
		Name: about.Command, Timestamp: junit.At(about.At), Hostname: about.By[strings.LastIndexByte(about.By, '@')+1:],
		Properties: []junit.Property{{Name: "inventory", Value: about.Inventory}, {Name: "by", Value: about.By}, {Name: "verdict", Value: ui.Clean(r.Verdict())}},
	}
	for _, c := range r.Causes {
		suite.Properties = append(suite.Properties, junit.Property{Name: "finding", Value: ui.Clean(c.String())})
	}
	for _, n := range r.NotChecked {
		suite.Properties = append(suite.Properties, junit.Property{Name: "not checked", Value: fmt.Sprintf("%s: %s", n.Check, n.Why)})
	}
	total := 0.0
	for _, n := range r.Nodes {
		total += n.Seconds
		suite.Cases = append(suite.Cases, n.junitCase(about.Command))
	}
	for _, s := range r.Collectives {
		c := junit.Case{Name: "all_reduce by " + s.Backend, Class: about.Command, Time: junit.Time(s.Seconds), SystemOut: ui.Clean(s.String())}
		if !s.OK {
			c.Failure = &junit.Outcome{Message: ui.Clean(s.Error), Type: string(report.Failed), Text: ui.Clean(s.String())}
		}
		suite.Cases = append(suite.Cases, c)
	}
	suite.Time = junit.Time(total)
	return junit.Write(w, suite)
}

// junitCase is the test of a node.
func (n NodeReport) junitCase(class string) junit.Case {
	c := junit.Case{Name: ui.Clean(n.Name), Class: class, Time: junit.Time(n.Seconds)}
	var wrong, all []string
	for _, f := range n.Findings {
		line := fmt.Sprintf("%s: %s", f.Check, f.Text)
		if f.Level == Error {
			wrong = append(wrong, line)
		} else {
			line += " (warning)"
		}
		if f.Hint != "" {
			line += "\n  hint: " + f.Hint
		}
		all = append(all, ui.Clean(line))
	}
	said := &junit.Outcome{Message: ui.Clean(strings.Join(wrong, "; ")), Type: string(n.Status), Text: strings.Join(all, "\n")}
	switch n.Status {
	case report.OK:
		c.SystemOut = said.Text
	case report.Skipped:
		said.Type = "" // not every schema has it
		c.Skipped = said
	case report.Unreachable:
		c.Error = said
	case report.Failed:
		c.Failure = said
	}
	return c
}
