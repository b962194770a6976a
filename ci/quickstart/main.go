// Command quickstart is `make quickstart`: the whole of dsbuild on one
// machine. It builds a real DeepSpeed wheel for A100, in a container engine or
// without, starts three local nodes that are real OpenSSH servers, and deploys
// to them.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/adrg/xdg"
	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/ci/child"
	"github.com/dsbuild/dsbuild/ci/enginectl"
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
		var failed interface{ ExitCode() int } // *exec.ExitError too
		if errors.As(err, &failed) && failed.ExitCode() > 0 {
			os.Exit(failed.ExitCode())
		}
		os.Exit(1)
	}
	say("done in %s. The nodes are stopped; a container engine stays for the next build ('make engine-stop' ends dsbuild's own).", ui.Duration(time.Since(start)))
	say("the wheel and the report, dist/report.html, are in dist; your own nodes: docs/quickstart.md")
}

// quickstart does side by side what waits for the network (the nodes' torch)
// and what waits for the compiler.
func quickstart(ctx context.Context) error {
	m, err := readMachine(ctx)
	if err != nil {
		return err
	}
	var fleet *nodes.Fleet
	defer func() {
		if fleet == nil {
			return
		}
		if err := fleet.Down(); err != nil {
			ui.PrintError(os.Stderr, fmt.Errorf("stopping the nodes: %w", err))
		}
	}()
	var built string
	g, both := errgroup.WithContext(ctx)
	ready := make(chan struct{})
	g.Go(func() (err error) {
		if fleet, err = startNodes(both, m); err == nil {
			close(ready)
		}
		return err
	})
	g.Go(func() (err error) {
		if err := m.compile(both); err != nil {
			return err
		}
		if !m.engine {
			// The build takes from uv's cache what the nodes have downloaded.
			select {
			case <-ready:
			case <-both.Done():
				return both.Err()
			}
		}
		built, err = m.wheel(both)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	say("deploy to three local nodes: dsbuild deploy %s", fleet.Inventory)
	return command(ctx, os.Stdout, "bin/dsbuild", "deploy", fleet.Inventory, "--wheel", built, "--report", "dist/report.html")
}

func startNodes(ctx context.Context, m machine) (*nodes.Fleet, error) {
	fleet, err := nodes.Up(ctx, nodes.Options{
		Dir: filepath.Join(xdg.CacheHome, "dsbuild", "quickstart"), Count: 3, Env: nodes.WithTorch, Python: m.python,
		Log: func(line string) { say("nodes: %s", line) },
	})
	if err != nil {
		return nil, fmt.Errorf("local nodes: %w", err)
	}
	return fleet, nil
}

// compile makes bin/dsbuild, and brings the engine up where one builds.
func (m machine) compile(ctx context.Context) error {
	say("compiling dsbuild (the first time a minute or two)")
	err := command(ctx, os.Stdout, "go", "build", "-trimpath", "-o", "bin/dsbuild", "./cmd/dsbuild")
	if err != nil || !m.engine {
		return err
	}
	how, err := enginectl.Ensure(ctx)
	if err == nil {
		say("%s", how)
	}
	return err
}

// wheel builds the wheel and returns its path.
func (m machine) wheel(ctx context.Context) (string, error) {
	args := []string{"wheel", "--arch", "8.0"}
	if !m.engine {
		args = append(args, "--builder", "host")
	}
	if !m.engine || m.python != pythons()[0] {
		args = append(args, "--python", m.python)
	}
	say("a wheel for A100: dsbuild %s", strings.Join(args, " "))
	var out bytes.Buffer
	if err := command(ctx, &out, "bin/dsbuild", append(args, "--json")...); err != nil {
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
