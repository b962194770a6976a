// Command fuzz fuzzes every fuzz target of the module for a short time, one
// after the other: the go command takes one target a call.
//
//	go run ./ci/fuzz 10s
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runTargets(ctx, os.Args[1:], os.Stderr))
}

func runTargets(ctx context.Context, args []string, w io.Writer) int {
	each, err := parseDuration(args)
	if err != nil {
		fmt.Fprintf(w, "fuzz: %v\nusage: go run ./ci/fuzz TIME, such as 10s: how long for each target\n", err)
		return 2
	}
	err = fuzzAll(ctx, each, w)
	switch {
	case ctx.Err() != nil:
		return 130
	case err != nil:
		ui.PrintError(w, err)
		return 1
	}
	return 0
}

func parseDuration(args []string) (time.Duration, error) {
	if len(args) != 1 {
		return 0, fmt.Errorf("%d arguments instead of one", len(args))
	}
	each, err := time.ParseDuration(args[0])
	if err == nil && each < time.Second {
		err = errors.New("the time must be at least a second")
	}
	return each, err
}

// fuzzAll goes on after a target has failed: the finding of another target may be the better
// clue.
func fuzzAll(ctx context.Context, each time.Duration, w io.Writer) error {
	all, err := findTargets()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no fuzz target in this module")
	}
	console := ui.New(w, ui.FromEnvironment(w))
	defer console.Close()
	console.Note("fuzzing %d targets, %s each", len(all), each)
	failed := 0
	for _, t := range all {
		if err := t.runFuzzer(ctx, each, console); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			failed++
			console.Note("%v", err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d fuzz targets failed", failed, len(all))
	}
	return nil
}
