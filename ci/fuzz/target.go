package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// target is a fuzz function.
type target struct {
	dir  string // the folder of its package, as ./folder below the current one
	name string
}

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)

// findTargets finds the fuzz functions in the module's sources. go test -list would link every
// test program first, which takes longer than fuzzing.
func findTargets() ([]target, error) {
	var all []target
	err := filepath.WalkDir(".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		for _, found := range fuzzFunction.FindAllSubmatch(text, -1) {
			all = append(all, target{"./" + filepath.Dir(file), string(found[1])})
		}
		return err
	})
	return all, err
}

// minimize is the time limit for making an interesting input smaller. The go command's default,
// a minute, would use up the whole time.
const minimize = "1s"

// runFuzzer fuzzes the target. Its error holds everything that is needed to repeat the failure,
// because the file may be lost with the machine.
func (t target) runFuzzer(ctx context.Context, each time.Duration, r ui.Reporter) error {
	step := r.Step(t.dir + " " + t.name)
	cmd := child.Command(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", minimize, t.dir)
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, child.NewLines(step.Log))
	cmd.Stderr = cmd.Stdout
	err := t.readVerdict(cmd.Run(), out.String())
	if err != nil {
		step.End(ui.Failed, "")
		return err
	}
	step.End(ui.Done, "")
	return nil
}

// deadlineRace matches the only output of the go command about a target whose time is over while
// a worker still answers: go.dev/issue/75804, fixed in Go 1.27. After a failure that an input
// causes, the name of the written file follows.
var deadlineRace = regexp.MustCompile(`(?m)^--- FAIL: \S+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL$`)

// readVerdict judges a run by its exit status and its output.
func (t target) readVerdict(status error, out string) error {
	switch {
	case status != nil && deadlineRace.MatchString(out):
	case status != nil:
		return fmt.Errorf("%s %s: %w\n%s%s", t.dir, t.name, status, out, t.describeInput(out))
	case !strings.Contains(out, "fuzz: elapsed: "):
		return fmt.Errorf("%s %s was not fuzzed:\n%s", t.dir, t.name, out)
	}
	return nil
}

var written = regexp.MustCompile(`(?m)^\s*Failing input written to (testdata/fuzz/\S+)$`)

// describeInput describes the input that failed: its file, its contents (the go
// command quotes its bytes) and how to run it again.
func (t target) describeInput(out string) string {
	m := written.FindStringSubmatch(out)
	if m == nil {
		return ""
	}
	file := filepath.Join(t.dir, m[1])
	input, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("The input, to be committed with its fix as %s:\n%s\nTo run it again: go test -run '^%s$/^%s$' %s", file, input, t.name, filepath.Base(file), t.dir)
}
