//go:build linux

// Command bench is `make bench`: it compares the cost of dsbuild's builds with DeepSpeed's own
// recipe. It also compares dsbuild's fan-out with the tools that a team would use instead, as
// their packages install them, on the same nodes in the same run.
//
//	go run ./ci/bench                    # all parts
//	go run ./ci/bench growth             # one of them
//
// The nodes are real OpenSSH servers on this machine (internal/testkit/nodes). It writes the results into
// docs/benchmarks.md.
package main

import (
	"context"
	"fmt"
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
	os.Exit(runBench(ctx, os.Args[1:]))
}

// innerProgram returns the main program of this process if this program started it; nil for the
// benchmarks.
func innerProgram(args []string) func(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return map[string]func([]string) error{meterWord: runMeter, nodesWord: runManyNodes, putWord: runPut}[args[0]]
}

// runBench runs the benchmarks in the checkout in the current folder.
func runBench(ctx context.Context, names []string) int {
	err := adoptOrphans()
	ws := &workspace{dir: filepath.Join(xdg.CacheHome, "dsbuild", "bench")}
	if err == nil {
		code := ws.newProgram().Run(ctx, names, os.Stderr)
		if err = ws.close(); err == nil {
			return code
		}
	}
	ui.PrintError(os.Stderr, err)
	return 1
}
