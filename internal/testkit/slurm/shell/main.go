//go:build linux

// Command shell opens a shell on the login node of a local Slurm cluster, which ends with it (root):
//
//	go run ./internal/testkit/slurm/shell -gpus 8
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"

	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func main() {
	opt := slurm.Options{Log: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	flag.IntVar(&opt.Nodes, "nodes", 4, "number of compute nodes")
	flag.IntVar(&opt.GPUs, "gpus", 0, "GPUs that a node claims to have")
	python := flag.Bool("python", false, "a Python environment with torch and jax")
	flag.Parse()
	if *python {
		opt.Packages = slurm.TorchAndJAX()
	}
	if err := openShell(context.Background(), opt); err != nil {
		ui.PrintError(os.Stderr, err, nil)
		os.Exit(1)
	}
}

func openShell(ctx context.Context, opt slurm.Options) (err error) {
	c, err := slurm.Up(ctx, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	fmt.Fprintf(os.Stderr, "%d nodes; the home that all share is %s; Python: %s\n", len(c.Nodes), c.Home, c.Python)
	cmd := c.Command(ctx, "bash")
	cmd.SysProcAttr.Setpgid = false // it must get the terminal
	cmd.Env = append(cmd.Env, "TERM="+os.Getenv("TERM"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); !errors.As(err, new(*exec.ExitError)) { // the exit code of the last command does not matter
		return err
	}
	return nil
}
