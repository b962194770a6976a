package main

import (
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/ci/gotest"
)

// list prints the results of go test, and collects the reasons why tests were skipped.
type list struct {
	w       io.Writer
	said    map[string][]string // the output of each test and package, by its name
	reasons []string            // in the order of their first test
	skipped map[string][]string // tests by reason
}

func newList(w io.Writer) *list {
	return &list{w: w, said: map[string][]string{}, skipped: map[string][]string{}}
}

// leaveOut records a test that was not run.
func (l *list) leaveOut(reason, what string) {
	if !slices.Contains(l.reasons, reason) {
		l.reasons = append(l.reasons, reason)
	}
	if !slices.Contains(l.skipped[reason], what) {
		l.skipped[reason] = append(l.skipped[reason], what)
	}
}

// handleEvent handles one event. For a package that passes it prints the last line. For a
// package that fails it prints the output of its failed tests and of the package itself.
func (l *list) handleEvent(e gotest.Event) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(l.w, e.Output)
	case "output":
		l.said[name] = append(l.said[name], e.Output)
	case "skip":
		if e.Test != "" {
			l.leaveOut(skipReason(l.said[name]), fmt.Sprintf("%s (%s)", e.Test, path.Base(e.Package)))
			delete(l.said, name)
			return
		}
		l.printLastLine(name)
	case "pass":
		if e.Test == "" {
			l.printLastLine(name)
		}
		delete(l.said, name)
	case "fail":
		fmt.Fprint(l.w, strings.Join(l.said[name], ""))
		delete(l.said, name)
	}
}

// printLastLine prints the last line of a package.
func (l *list) printLastLine(name string) {
	if said := l.said[name]; len(said) > 0 {
		fmt.Fprint(l.w, said[len(said)-1])
	}
	delete(l.said, name)
}

var (
	logged = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)
	marker = regexp.MustCompile(`^\s*(=== |--- )`)
)

// skipReason returns the first line of the last message of a test, without its position.
func skipReason(said []string) string {
	found := "no reason given"
	for _, line := range said {
		line = strings.TrimRight(line, "\n")
		if m := logged.FindStringSubmatch(line); m != nil && !marker.MatchString(line) {
			found = m[1]
		}
	}
	return found
}

// shown is the number of tests that are named for a reason.
const shown = 4

// printSkipped lists the tests that were skipped; it prints nothing if all ran.
func (l *list) printSkipped() {
	if len(l.reasons) == 0 {
		return
	}
	fmt.Fprintln(l.w, "not run on this machine:")
	for _, reason := range l.reasons {
		tests := l.skipped[reason]
		more := ""
		if len(tests) > shown {
			more = fmt.Sprintf(" and %d more", len(tests)-shown)
		}
		fmt.Fprintf(l.w, "  %s: %s%s\n", reason, strings.Join(tests[:min(shown, len(tests))], ", "), more)
	}
}
