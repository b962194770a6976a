// Command quickstart is `make quickstart`: all of dsbuild on one machine. It builds a real
// DeepSpeed wheel for every GPU, in a container engine or without one, starts three local nodes that
// are real OpenSSH servers, and deploys to them. With the argument start or stop it is `make nodes`
// and `make nodes-stop`: the same nodes, which stay.
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

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start, run := time.Now(), runQuickstart
	switch arguments := os.Args[1:]; {
	case len(arguments) == 1 && arguments[0] == "start":
		run = startKeeper
	case len(arguments) == 1 && arguments[0] == "stop":
		run = stopKeeper
	case len(arguments) == 2 && arguments[0] == "keep":
		run = func(ctx context.Context) error { return keepNodes(ctx, arguments[1]) }
	}
	if err := run(ctx); err != nil {
		if ctx.Err() != nil {
			printStep("interrupted; the nodes are stopped")
			os.Exit(130)
		}
		ui.PrintError(os.Stderr, fmt.Errorf("quickstart: %w", err), nil)
		var failed interface{ ExitCode() int } // an *exec.ExitError too
		if errors.As(err, &failed) && failed.ExitCode() > 0 {
			os.Exit(failed.ExitCode())
		}
		os.Exit(1)
	}
	if len(os.Args) == 1 {
		printStep("done in %s. The nodes are stopped ('make nodes' starts them again, for the commands of the pages)", ui.Duration(time.Since(start)))
	}
}

// runQuickstart prepares the nodes, which wait for the network (torch), and at the same time the
// build, which waits for the compiler.
func runQuickstart(ctx context.Context) error {
	if err := os.Chdir(".."); err != nil { // make starts it in the folder ci
		return err
	}
	if conn, err := callKeeper(ctx); err == nil {
		conn.Close()
		return fault.New(1, "make nodes-stop", "the nodes of 'make nodes' run in %s", cacheDir())
	}
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
			ui.PrintError(os.Stderr, fmt.Errorf("stopping the nodes: %w", err), nil)
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
		if err := m.compileProgram(both); err != nil {
			return err
		}
		if !m.engine {
			// The build uses the nodes' downloads in uv's cache.
			select {
			case <-ready:
			case <-both.Done():
				return both.Err()
			}
		}
		built, err = m.buildWheel(both)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	printStep("deploy to three local nodes: dsbuild deploy %s", fleet.Inventory)
	report := filepath.Join(m.dir, "dist", "report.html")
	if err := runChild(ctx, os.Stdout, os.Stderr, m.programPath(), "deploy", fleet.Inventory, "--wheel", built, "--report", report); err != nil {
		return err
	}
	printStep("the wheel is %s, the report %s; your own nodes: docs/quickstart.md", built, report)
	if m.engine {
		printStep("the container engine stays for the next build ('make engine-stop' ends dsbuild's own)")
	}
	return nil
}

// compileProgram compiles dsbuild, and starts the engine if one builds the wheel. An engine downloads its
// sources meanwhile.
func (m machine) compileProgram(ctx context.Context) error {
	g, both := errgroup.WithContext(ctx)
	g.Go(func() error {
		printStep("compiling dsbuild (the first time it takes a minute or two)")
		return runChild(both, os.Stdout, os.Stderr, "go", "build", "-o", m.programPath(), "./cmd/dsbuild")
	})
	g.Go(func() error {
		if !m.engine {
			return nil
		}
		name, err := m.container.start(both)
		if err == nil {
			printStep("%s", name)
		}
		return err
	})
	return g.Wait()
}

// buildWheel builds the wheel and returns its path.
func (m machine) buildWheel(ctx context.Context) (string, error) {
	args := []string{"wheel"}
	if !m.engine {
		args = append(args, "--builder", "host")
	}
	if !m.engine || m.python != nodePythons()[0] {
		args = append(args, "--python", m.python)
	}
	printStep("a wheel for every GPU, torch 2.10 or newer and every Python: dsbuild %s", strings.Join(args, " "))
	var out, said bytes.Buffer
	build := func() error {
		all := append(args, "-o", filepath.Join(m.dir, "dist"), "--json")
		return runChild(ctx, &out, io.MultiWriter(os.Stderr, &said), m.programPath(), all...)
	}
	err := build()
	if err != nil && strings.Contains(said.String(), "cannot download nvcc for CUDA 12") {
		args = append(args, "--cuda", "13")
		printStep("this site does not reach nvcc for CUDA 12, so the wheel is for CUDA 13 only: dsbuild %s", strings.Join(args, " "))
		err = build()
	}
	if err != nil {
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
	printStep("%s, %s, sha256 %s", w.Path, ui.Size(w.Size), w.SHA256)
	return w.Path, nil
}

func printStep(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...)
}

// runChild runs a program and waits for it.
func runChild(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) error {
	cmd := child.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}
