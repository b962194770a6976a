// Command quickstart is `make quickstart`: the whole of dsbuild on one
// machine. It gets a Dagger engine, builds a real DeepSpeed wheel for A100,
// starts three local nodes that are real OpenSSH servers, and deploys to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	if err := quickstart(ctx); err != nil {
		ui.PrintError(os.Stderr, fmt.Errorf("quickstart: %w", err))
		var failed *exec.ExitError
		if errors.As(err, &failed) && failed.ExitCode() > 0 {
			os.Exit(failed.ExitCode())
		}
		os.Exit(1)
	}
	say("done in %s. The nodes are stopped; the Dagger engine stays for the next build ('make engine-stop' ends it).", ui.Duration(time.Since(start)))
}

// quickstart prepares the nodes beside the build: one waits for the network,
// the other for the compiler.
func quickstart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type started struct {
		fleet *nodes.Fleet
		err   error
	}
	ready := make(chan started, 1)
	go func() {
		fleet, err := nodes.Up(ctx, nodes.Options{
			Dir: filepath.Join(xdg.CacheHome, "dsbuild", "quickstart"), Count: 3, Env: nodes.WithTorch,
			Log: func(line string) { say("nodes: %s", line) },
		})
		ready <- started{fleet, err}
	}()
	buildErr := wheel(ctx)
	if buildErr != nil {
		cancel()
	}
	s := <-ready
	if s.fleet != nil {
		defer func() {
			if err := s.fleet.Down(); err != nil {
				ui.PrintError(os.Stderr, fmt.Errorf("stopping the nodes: %w", err))
			}
		}()
	}
	if buildErr != nil {
		return buildErr
	}
	if s.err != nil {
		return fmt.Errorf("local nodes: %w", s.err)
	}
	say("deploy to three local nodes: dsbuild deploy %s", s.fleet.Inventory)
	return command(ctx, "bin/dsbuild", "deploy", s.fleet.Inventory, "--wheel", "dist", "--report", "dist/report.json")
}

// wheel gets an engine and builds the wheel.
func wheel(ctx context.Context) error {
	say("a Dagger engine: go run ./ci/engine ensure")
	if err := command(ctx, "go", "run", "./ci/engine", "ensure"); err != nil {
		return err
	}
	say("a wheel for A100: dsbuild wheel --arch 8.0")
	return command(ctx, "bin/dsbuild", "wheel", "--arch", "8.0")
}

// command runs a program on this terminal. Cancelling asks it to end, and
// leaves it the time to clean up.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...)
}
