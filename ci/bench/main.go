//go:build linux

// Command bench is `make bench`. It compares the cost of dsbuild's builds with DeepSpeed's own
// recipe, and dsbuild's fan-out with alternative tools, as packaged, on the same nodes in the same
// run.
//
//	bin/ci/bench                    # all parts
//	bin/ci/bench growth             # one of them
//
// The nodes are real OpenSSH servers on this machine (internal/testkit/nodes). The results of a
// part go into ci/results/bench-PART.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	if inner := innerProgram(os.Args[1:]); inner != nil {
		if err := inner(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runBench(ctx, os.Args[1:]); err != nil {
		ui.PrintError(os.Stderr, fmt.Errorf("bench: %w", err), nil)
		os.Exit(1) //nolint:gocritic // stop has nothing more to do
	}
}

// innerProgram returns the main program of this process if this program started it, or nil for the
// benchmarks.
func innerProgram(args []string) func(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return map[string]func([]string) error{meterWord: runMeter, nodesWord: runManyNodes, putWord: runPut}[args[0]]
}

// part is one comparison. needs are prepared before it, in this order.
type part struct {
	name  string
	needs []need
	do    func(context.Context) (table string, err error)
}

// need prepares something that parts need, once.
type need func(context.Context) error

// allParts lists the comparisons in the order of the runs.
func (ws *workspace) allParts() []part {
	builds, races := wheelBuilds{ws}, fleetRaces{ws}
	checkout, peers, fleet, wheels := ws.once(ws.findProgram), ws.once(ws.installTools), ws.once(ws.startNodes), ws.once(ws.buildWheels)
	return []part{
		{"build", []need{checkout, builds.makeToolchain}, builds.compareBuilds},
		{"deploy", []need{checkout, peers, fleet, wheels}, races.compareDeploys},
		{"copy", []need{checkout, peers, fleet}, races.compareCopies},
		{"verify", []need{checkout, peers, fleet, wheels}, races.compareVerifications},
		{"growth", []need{checkout, wheels}, ws.measureGrowth},
		{"relay", []need{checkout, peers}, ws.measureRelay},
	}
}

// once returns a need that is prepared at its first use only.
func (ws *workspace) once(prepare need) need {
	done := false
	return func(ctx context.Context) error {
		if done {
			return nil
		}
		done = true
		return prepare(ctx)
	}
}

// runBench runs the named parts, or all, in the checkout in the current folder.
func runBench(ctx context.Context, names []string) (err error) {
	if err := adoptOrphans(); err != nil {
		return err
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	ws := &workspace{dir: filepath.Join(xdg.CacheHome, "dsbuild", "bench"), commit: strings.TrimSpace(string(commit))}
	if err := os.MkdirAll(filepath.Join(ws.dir, "logs"), 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ws.close()) }()
	all := ws.allParts()
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %s", name)
		}
	}
	for _, p := range all {
		if len(names) == 0 || slices.Contains(names, p.name) {
			if err := ws.runPart(ctx, p); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// runPart runs a part, and writes and prints its results.
func (ws *workspace) runPart(ctx context.Context, p part) (err error) {
	ws.say("%s", p.name)
	if ws.log, err = os.Create(filepath.Join(ws.dir, "logs", p.name+".log")); err != nil {
		return err
	}
	defer ws.log.Close()
	for _, n := range p.needs {
		if err := n(ctx); err != nil {
			return err
		}
	}
	table, err := p.do(ctx)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("# bench %s: %s, %s, %d cores\n\n%s", p.name, time.Now().UTC().Format(time.DateOnly), ws.commit, runtime.NumCPU(), table)
	fmt.Print(text)
	return os.WriteFile(filepath.Join("ci", "results", "bench-"+p.name+".md"), []byte(text), 0o644)
}

// say prints progress to stderr.
func (ws *workspace) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...)
}
