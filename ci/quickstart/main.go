// Command quickstart is `make quickstart`: the whole of dsbuild on one
// machine. It gets a Dagger engine, builds a real DeepSpeed wheel for A100,
// starts three local nodes that are real OpenSSH servers, and deploys to them.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	if err := quickstart(ctx); err != nil {
		if ctx.Err() != nil {
			say("interrupted; the nodes are stopped")
			os.Exit(130)
		}
		ui.PrintError(os.Stderr, fmt.Errorf("quickstart: %w", err))
		var failed *exec.ExitError
		if errors.As(err, &failed) && failed.ExitCode() > 0 {
			os.Exit(failed.ExitCode())
		}
		os.Exit(1)
	}
	say("done in %s. The nodes are stopped; the Dagger engine stays for the next build ('make engine-stop' ends it).", ui.Duration(time.Since(start)))
	say("the wheel and the report, dist/report.html, are in dist; your own nodes: docs/quickstart.md")
}

// quickstart makes the nodes' environments beside the build: one waits for the
// network, the other for the compiler.
func quickstart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := getEngine(ctx); err != nil {
		return err
	}
	var fleet *nodes.Fleet
	ready := make(chan error, 1)
	go func() {
		var err error
		fleet, err = nodes.Up(ctx, nodes.Options{
			Dir: filepath.Join(xdg.CacheHome, "dsbuild", "quickstart"), Count: 3, Env: nodes.WithTorch,
			Log: func(line string) { say("nodes: %s", line) },
		})
		if err != nil {
			err = fmt.Errorf("local nodes: %w", err)
			cancel() // the build is for nothing
		}
		ready <- err
	}()
	built, buildErr := wheel(ctx)
	if buildErr != nil {
		cancel()
	}
	nodesErr := <-ready
	if fleet != nil {
		defer func() {
			if err := fleet.Down(); err != nil {
				ui.PrintError(os.Stderr, fmt.Errorf("stopping the nodes: %w", err))
			}
		}()
	}
	if nodesErr != nil && !errors.Is(nodesErr, context.Canceled) {
		return nodesErr
	}
	if buildErr != nil {
		return buildErr
	}
	say("deploy to three local nodes: dsbuild deploy %s", fleet.Inventory)
	return command(ctx, os.Stdout, "bin/dsbuild", "deploy", fleet.Inventory, "--wheel", built, "--report", "dist/report.html")
}

// getEngine makes sure that a Dagger engine answers. The program is built
// first: go run would not pass a signal on.
func getEngine(ctx context.Context) error {
	say("a Dagger engine: dsbuild's own is compiled where none is reachable")
	if err := command(ctx, os.Stdout, "go", "build", "-o", "bin/enginectl", "./ci/engine"); err != nil {
		return err
	}
	return command(ctx, os.Stdout, "bin/enginectl", "ensure")
}

// wheel builds the wheel and returns its path.
func wheel(ctx context.Context) (string, error) {
	say("a wheel for A100: dsbuild wheel --arch 8.0")
	var out bytes.Buffer
	if err := command(ctx, &out, "bin/dsbuild", "wheel", "--arch", "8.0", "--json"); err != nil {
		return "", err
	}
	var doc struct {
		Wheels []struct {
			Path   string `json:"path"`
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"wheels"`
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		return "", fmt.Errorf("dsbuild wheel --json printed no wheel: %w", err)
	}
	w := doc.Wheels[0]
	say("%s, %s, sha256 %s", w.Path, ui.Size(w.Size), w.SHA256)
	return w.Path, nil
}

// command runs a program to its end.
func command(ctx context.Context, stdout io.Writer, name string, args ...string) error {
	cmd := child.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...)
}
