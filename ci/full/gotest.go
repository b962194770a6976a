package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/ci/gotest"
	"github.com/dsbuild/dsbuild/ci/parts"
	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// results are the outcomes of the tests of a part.
type results struct {
	tests    []outcome // in the order of their end, without subtests
	facts    []fact
	problems []string // why the part has not passed; empty if it has
}

// outcome is the result of a test: pass, fail or skip.
type outcome struct {
	pkg, name, action string
	seconds           float64
}

// fact is a measured value, which a test has logged as "result: name: value".
type fact struct{ name, value string }

// runTests runs the tests with this prefix, one package at a time, so that they do not disturb
// each other's measurements. Its error has all reasons why the part has not passed.
func (b *bench) runTests(ctx context.Context, prefix string) (section string, err error) {
	packages, err := fullPackages(ctx)
	if err != nil {
		return "", err
	}
	args := append([]string{"test", "-tags", "full", "-count=1", "-p", "1", "-timeout", "55m", "-json", "-run", "^" + prefix}, packages...)
	fmt.Fprintf(b.log, "\n$ go %s\n", strings.Join(args, " "))
	cmd := child.Command(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "DSBUILD_FULL_DIR="+b.dir, "DSBUILD_TEST_DIR="+b.path("run"), "DSBUILD_TEST_WHEEL="+b.built)
	cmd.Stderr = b.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	c := newCollector(b.log, b.ui)
	readErr := c.readEvents(stdout)
	r, err := c.finishResults(errors.Join(readErr, cmd.Wait()))
	return r.String(), err
}

// String is the part's section of the document.
func (r results) String() string {
	var out strings.Builder
	fmt.Fprint(&out, "| test | result | seconds |\n|---|---|---|\n")
	for _, t := range r.tests {
		fmt.Fprintf(&out, "| %s | %s | %.1f |\n", parts.Markdown(id{t.pkg, t.name}.String()), t.action, t.seconds)
	}
	if len(r.facts) > 0 {
		fmt.Fprintln(&out)
	}
	for _, f := range r.facts {
		fmt.Fprintf(&out, "- %s: %s\n", parts.Markdown(f.name), parts.Markdown(f.value))
	}
	return out.String()
}

// fullPackages lists the packages with long tests. Linking the tests of all other packages would
// take longer than many of the proofs.
func fullPackages(ctx context.Context) (packages []string, err error) {
	cmd := child.Command(ctx, "go", "list", "-tags", "full", "-f", "{{.ImportPath}} {{.TestGoFiles}} {{.XTestGoFiles}}", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the module's tests: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "_full_test.go") {
			packages = append(packages, strings.Fields(line)[0])
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("no package has a file *_full_test.go")
	}
	return packages, nil
}

// id identifies a test or, with no name, a package.
type id struct{ pkg, test string }

// topLevel returns the test that a subtest belongs to.
func (i id) topLevel() id {
	i.test, _, _ = strings.Cut(i.test, "/")
	return i
}

func (i id) String() string {
	pkg := strings.TrimPrefix(i.pkg, "github.com/dsbuild/dsbuild/")
	if i.test == "" {
		return pkg
	}
	return i.test + " (" + pkg + ")"
}

// collector turns the output of go test -json into results.
type collector struct {
	results
	log     io.Writer
	ui      ui.Reporter
	running map[id]ui.Step
	partial map[id]string      // an unfinished line
	said    map[id]*child.Tail // the last output of tests, with their subtests, and of packages
	failed  map[string]bool
}

func newCollector(log io.Writer, r ui.Reporter) *collector {
	return &collector{
		log: log, ui: r,
		running: map[id]ui.Step{}, partial: map[id]string{}, said: map[id]*child.Tail{}, failed: map[string]bool{},
	}
}

// readEvents reads the whole output. Lines that are not events go to the log.
func (c *collector) readEvents(r io.Reader) error { return gotest.Read(r, c.log, c.handleEvent) }

func (c *collector) handleEvent(e gotest.Event) {
	i := id{e.Package, e.Test}
	switch e.Action {
	case "run":
		c.running[i] = c.ui.Step(i.String())
	case "build-output":
		c.handleOutput(id{pkg: e.ImportPath}, e.Output)
	case "output":
		c.handleOutput(i, e.Output)
	case "build-fail":
		c.addProblem(id{pkg: e.ImportPath}, "does not compile")
	case "pass", "fail", "skip":
		if e.Test != "" {
			c.handleEnd(i, e)
		} else if e.Action == "fail" && e.FailedBuild == "" && !c.failed[e.Package] {
			c.addProblem(i, "failed outside of its tests")
		}
	}
}

var result = regexp.MustCompile(`^\s*\S+\.go:\d+: result: ([^:]+): (.+)$`)

// handleOutput handles a piece of the output of a test or package.
func (c *collector) handleOutput(i id, text string) {
	fmt.Fprint(c.log, text)
	text = c.partial[i] + text
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			c.partial[i] = text
			return
		}
		text = rest
		if c.said[i.topLevel()] == nil {
			c.said[i.topLevel()] = &child.Tail{Most: tailLines}
		}
		c.said[i.topLevel()].Add(line)
		if step := c.running[i]; step != nil {
			step.Log(line)
		}
		if m := result.FindStringSubmatch(ui.Clean(line)); m != nil {
			c.facts = append(c.facts, fact{m[1], m[2]})
		}
	}
}

func (c *collector) handleEnd(i id, e gotest.Event) {
	if step := c.running[i]; step != nil {
		step.End(map[string]ui.Outcome{"pass": ui.Done, "skip": ui.Skipped, "fail": ui.Failed}[e.Action], "")
		delete(c.running, i)
	}
	top := i == i.topLevel()
	if top {
		c.tests = append(c.tests, outcome{e.Package, e.Test, e.Action, e.Elapsed})
	}
	switch {
	case e.Action == "skip":
		c.addProblem(i, "was skipped")
	case e.Action == "fail" && top: // its output includes its subtests
		c.addProblem(i, "failed")
	}
}

// addProblem records why the part fails, with the last output of the test or package.
func (c *collector) addProblem(i id, what string) {
	c.failed[i.pkg] = true
	text := i.String() + " " + what
	if said := c.said[i.topLevel()]; said != nil {
		text += "\n" + said.String()
	}
	c.problems = append(c.problems, text)
}

// finishResults returns the results; status is the exit status of go test itself.
func (c *collector) finishResults(status error) (results, error) {
	for i, step := range c.running {
		step.End(ui.Failed, "")
		c.addProblem(i, "did not end")
	}
	if status != nil && len(c.problems) == 0 {
		c.problems = append(c.problems, fmt.Sprintf("go test: %v", status))
	}
	if len(c.tests) == 0 && len(c.problems) == 0 {
		c.problems = append(c.problems, "there is no test")
	}
	var err error
	for _, p := range c.problems {
		err = errors.Join(err, errors.New(p))
	}
	return c.results, err
}
