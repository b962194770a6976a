//go:build linux

// Command bench is `make bench`: it compares the cost of dsbuild's builds with DeepSpeed's own
// recipe. It also compares dsbuild's fan-out with the tools that a team would use instead, as
// their packages install them, on the same nodes in the same run.
//
//	go run ./ci/bench                    # all parts
//	go run ./ci/bench growth             # one of them
//	go run ./ci/bench -rounds 3 deploy
//
// The nodes are real OpenSSH servers on this machine (ci/nodes). It writes the results into
// docs/benchmarks.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

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
	os.Exit(runBench(ctx, os.Args[1:], filepath.Join(xdg.CacheHome, "dsbuild"), os.Stderr))
}

// innerProgram is what this program is when it calls itself; nil: the benchmarks.
func innerProgram(args []string) func(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return map[string]func([]string) error{meterWord: runMeter, nodesWord: runManyNodes, putWord: runPut}[args[0]]
}

// runBench works in the checkout that is the current folder.
func runBench(ctx context.Context, args []string, cache string, w io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(w)
	rounds := flags.Int("rounds", 0, "measure each tool so often (default: as the part says)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := chooseParts(flags.Args())
	if err == nil && *rounds < 0 {
		err = fmt.Errorf("-rounds %d: at least 1", *rounds)
	}
	if err != nil {
		fmt.Fprintf(w, "bench: %v\n", err)
		return 2
	}
	err = measureAll(ctx, chosen, *rounds, cache, w)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(w, "interrupted")
		return 130
	case err != nil:
		ui.PrintError(w, err)
		return 1
	}
	return 0
}

// measureAll goes on with the next part after one has failed.
func measureAll(ctx context.Context, chosen []part, rounds int, cache string, w io.Writer) error {
	if err := adoptOrphans(); err != nil {
		return err
	}
	console := ui.New(w, ui.FromEnvironment(w))
	defer console.Close()
	ws, err := newWorkspace(cache, rounds, console)
	if err != nil {
		return err
	}
	var failed error
	for _, p := range chosen {
		if err := ws.runPart(ctx, p); err != nil {
			failed = errors.Join(failed, fmt.Errorf("part %s: %w", p.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed, ws.close())
}
