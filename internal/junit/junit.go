// Package junit writes results in JUnit's XML format, which CI systems read.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
	"time"
)

// The elements of JUnit's format that its readers agree on: Jenkins, GitLab, surefire. Each of
// them is strict about other things, so all of them accept this order and these names.
type (
	// Suite is a run; Write counts its cases.
	Suite struct {
		Name       string     `xml:"name,attr"`
		Tests      int        `xml:"tests,attr"`
		Failures   int        `xml:"failures,attr"`
		Errors     int        `xml:"errors,attr"`
		Skipped    int        `xml:"skipped,attr"`
		Time       string     `xml:"time,attr"`
		Timestamp  string     `xml:"timestamp,attr"`
		Hostname   string     `xml:"hostname,attr"`
		Properties []Property `xml:"properties>property"`
		Cases      []Case     `xml:"testcase"`
	}
	// Property is a fact about the whole run.
	Property struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	// Case is one test. It has at most one outcome; without an outcome it passed.
	Case struct {
		Name      string   `xml:"name,attr"`
		Class     string   `xml:"classname,attr"`
		Time      string   `xml:"time,attr"`
		Skipped   *Outcome `xml:"skipped"`
		Error     *Outcome `xml:"error"`
		Failure   *Outcome `xml:"failure"`
		SystemOut string   `xml:"system-out,omitempty"`
	}
	// Outcome says why a test did not pass.
	Outcome struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}

	suites struct {
		XMLName  xml.Name `xml:"testsuites"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Errors   int      `xml:"errors,attr"`
		Time     string   `xml:"time,attr"`
		Suites   []Suite  `xml:"testsuite"`
	}
)

// Write writes a document of one suite.
func Write(w io.Writer, s Suite) error {
	s.count()
	doc := suites{Name: s.Name, Tests: s.Tests, Failures: s.Failures, Errors: s.Errors, Time: s.Time, Suites: []Suite{s}}
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

// count counts the cases by outcome.
func (s *Suite) count() {
	s.Tests, s.Failures, s.Errors, s.Skipped = len(s.Cases), 0, 0, 0
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

// Time writes a number of seconds.
func Time(seconds float64) string { return fmt.Sprintf("%.3f", seconds) }

// At writes a time without a zone, as the schemas require.
func At(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05") }
