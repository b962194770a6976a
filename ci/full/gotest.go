package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/ci/gotest"
	"github.com/dsbuild/dsbuild/internal/rules"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// results are what the tests of a part came to.
type results struct {
	tests    []outcome // in the order of their end, without subtests
	facts    []fact
	problems []string // why the part has not passed; empty if it has
}

// outcome is how a test ended: pass, fail or skip.
type outcome struct {
	pkg, name, action string
	seconds           float64
}

// fact is something measured, which a test has logged as "result: name: value".
type fact struct{ name, value string }

// test runs the tests of a part, one package at a time so that they measure
// themselves and not each other. Whatever keeps the part from passing is in
// the error.
func (b *bench) test(ctx context.Context, p part) (results, error) {
	packages, err := fullPackages(ctx)
	if err != nil {
		return results{}, err
	}
	args := append([]string{"test", "-tags", "full", "-count=1", "-p", "1", "-timeout", "55m", "-json", "-run", "^" + p.tests}, packages...)
	fmt.Fprintf(b.log, "\n$ go %s\n", strings.Join(args, " "))
	cmd := child.Command(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "DSBUILD_FULL_DIR="+b.dir, "DSBUILD_TEST_DIR="+b.path("run"), "DSBUILD_TEST_WHEEL="+b.built)
	cmd.Stderr = b.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return results{}, err
	}
	if err := cmd.Start(); err != nil {
		return results{}, err
	}
	c := newCollector(b.log, b.ui)
	readErr := c.read(stdout)
	return c.finish(errors.Join(readErr, cmd.Wait()))
}

// fullPackages lists the packages that have long tests: linking the tests of
// all others would take longer than many a proof.
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

// id is a test, or with no name a package.
type id struct{ pkg, test string }

// top is the test that a subtest belongs to.
func (i id) top() id {
	i.test, _, _ = strings.Cut(i.test, "/")
	return i
}

func (i id) String() string {
	pkg := strings.TrimPrefix(i.pkg, rules.Module+"/")
	if i.test == "" {
		return pkg
	}
	return i.test + " (" + pkg + ")"
}

// collector makes results of the output of go test -json.
type collector struct {
	results
	log     io.Writer
	ui      ui.Reporter
	running map[id]ui.Step
	partial map[id]string // a line whose end has not come yet
	said    map[id]*tail  // what tests with their subtests, and packages, said last
	failed  map[string]bool
}

func newCollector(log io.Writer, r ui.Reporter) *collector {
	return &collector{
		log: log, ui: r,
		running: map[id]ui.Step{}, partial: map[id]string{}, said: map[id]*tail{}, failed: map[string]bool{},
	}
}

// read takes in all of the output. What is not of it goes to the log.
func (c *collector) read(r io.Reader) error { return gotest.Read(r, c.log, c.take) }

func (c *collector) take(e gotest.Event) {
	i := id{e.Package, e.Test}
	switch e.Action {
	case "run":
		c.running[i] = c.ui.Step(i.String())
	case "build-output":
		c.output(id{pkg: e.ImportPath}, e.Output)
	case "output":
		c.output(i, e.Output)
	case "build-fail":
		c.problem(id{pkg: e.ImportPath}, "does not compile")
	case "pass", "fail", "skip":
		if e.Test != "" {
			c.ended(i, e)
		} else if e.Action == "fail" && e.FailedBuild == "" && !c.failed[e.Package] {
			c.problem(i, "failed outside of its tests")
		}
	}
}

var result = regexp.MustCompile(`^\s*\S+\.go:\d+: result: ([^:]+): (.+)$`)

// output takes in a piece of what a test or package said.
func (c *collector) output(i id, text string) {
	fmt.Fprint(c.log, text)
	text = c.partial[i] + text
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			c.partial[i] = text
			return
		}
		text = rest
		if c.said[i.top()] == nil {
			c.said[i.top()] = new(tail)
		}
		c.said[i.top()].add(line)
		if step := c.running[i]; step != nil {
			step.Log(line)
		}
		if m := result.FindStringSubmatch(ui.Clean(line)); m != nil {
			c.facts = append(c.facts, fact{m[1], m[2]})
		}
	}
}

func (c *collector) ended(i id, e gotest.Event) {
	if step := c.running[i]; step != nil {
		step.End(map[string]ui.Outcome{"pass": ui.Done, "skip": ui.Skipped, "fail": ui.Failed}[e.Action], "")
		delete(c.running, i)
	}
	top := i == i.top()
	if top {
		c.tests = append(c.tests, outcome{e.Package, e.Test, e.Action, e.Elapsed})
	}
	switch {
	case e.Action == "skip":
		c.problem(i, "was skipped")
	case e.Action == "fail" && top: // its subtests are in what it said
		c.problem(i, "failed")
	}
}

// problem notes why the part fails, with what the test or package said last.
func (c *collector) problem(i id, what string) {
	c.failed[i.pkg] = true
	text := i.String() + " " + what
	if said := c.said[i.top()]; said != nil {
		text += "\n" + said.String()
	}
	c.problems = append(c.problems, text)
}

// finish returns the results; status is how go test itself ended.
func (c *collector) finish(status error) (results, error) {
	for i, step := range c.running {
		step.End(ui.Failed, "")
		c.problem(i, "did not end")
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
