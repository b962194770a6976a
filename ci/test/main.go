// Command test is the part of `make test` that runs programs: an engine, real wheels, all tests
// against both. Without a container engine, it builds the wheels on the machine itself,
// or fails if the variable CI is true. At its end it lists the tests that did not run, one line
// for each reason.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/ci/enginectl"
	"github.com/dsbuild/dsbuild/ci/gotest"
	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// pythonVersion is the Python of the test nodes, and so of the wheel.
const pythonVersion = "3.11"

// dir is the folder of the run, in the checkout.
const dir = ".test"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	list := newList(os.Stdout)
	err := runAll(ctx, list)
	list.printSkipped()
	switch {
	case ctx.Err() != nil:
		os.Exit(130) //nolint:gocritic // stop has nothing more to do
	case err != nil:
		ui.PrintError(os.Stderr, err)
		os.Exit(1)
	}
}

func runAll(ctx context.Context, l *list) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	if _, err := python.Find(ctx, pythonVersion); err != nil {
		return err
	}
	engine, err := buildWheels(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(goTest(ctx, l, "."), goTest(ctx, l, "ci"))
	ssh, _ := exec.CommandContext(ctx, "ssh", "-V").CombinedOutput() //nolint:errcheck // only for a message
	fmt.Printf("the tests ran with: %s; %s; %s\n", engine, strings.TrimSpace(string(ssh)), filepath.Base(wheelPath(wheelDir)))
	if counts, err := os.ReadFile(filepath.Join(dir, "pages")); err == nil {
		lines := strings.Split(strings.TrimSpace(string(counts)), "\n")
		fmt.Println(lines[len(lines)-1])
	}
	return err
}

// The folders of the wheels, in dir: the wheel of all tests, and one of torch's stable ABI.
const (
	wheelDir  = "dist"
	stableDir = "stable"
)

// buildWheels builds the wheels of the tests and returns the name of their builder.
func buildWheels(ctx context.Context) (engine string, err error) {
	var builder []string
	found, err := enginectl.Prepare(ctx, "bin")
	if err == nil {
		engine, err = found.Start(ctx)
	}
	var none *enginectl.NoneError
	if errors.As(err, &none) && os.Getenv("CI") != "true" {
		fmt.Fprintf(os.Stderr, "==> building on this machine: %s. Tests that need a container engine do not run\n", none.Why)
		engine, builder, err = "no container engine", []string{"--builder", "host", "--python", pythonVersion}, nil
	}
	if err != nil {
		return "", err
	}
	err = buildWheel(ctx, wheelDir, "wheel.json", append(builder, "--arch", "8.0")...)
	if err == nil {
		err = buildWheel(ctx, stableDir, "stable.json", append(builder, "--abi", "stable", "--ops", "cpu_adam,utils")...)
	}
	return engine, err
}

// buildWheel builds a wheel into a folder, and writes dsbuild's JSON into a file.
func buildWheel(ctx context.Context, folder, document string, flags ...string) error {
	out, err := os.Create(filepath.Join(dir, document))
	if err != nil {
		return err
	}
	defer out.Close()
	args := append([]string{"wheel", "--no-cache", "--json", "-o", filepath.Join(dir, folder)}, flags...)
	return child.Run(ctx, out, "bin/dsbuild", args...)
}

// wheelPath returns the path of the wheel in a folder.
func wheelPath(folder string) string {
	found, _ := filepath.Glob(filepath.Join(dir, folder, "*.whl")) //nolint:errcheck // the pattern is good
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// goTest runs all tests of the module in a folder.
func goTest(ctx context.Context, l *list, module string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	cmd := child.Command(ctx, "go", "test", "-json", "-count=1", "-timeout", "45m", "./...")
	cmd.Env = append(os.Environ(), "DSBUILD_TEST_DIR="+filepath.Join(here, dir),
		"DSBUILD_TEST_WHEEL="+filepath.Join(here, wheelPath(wheelDir)), "DSBUILD_TEST_STABLE="+filepath.Join(here, wheelPath(stableDir)))
	cmd.Dir, cmd.Stderr = module, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := errors.Join(gotest.Read(out, os.Stdout, l.handleEvent), cmd.Wait()); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}
