//go:build linux

// Command cmd runs a local Slurm cluster, to try things by hand (root):
//
//	go run ./ci/slurm/cmd up --gpus 8
//	go run ./ci/slurm/cmd exec sbatch --wait job.sh
//	eval "$(go run ./ci/slurm/cmd env)"; on_head srun -N4 hostname
//	go run ./ci/slurm/cmd down
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/ci/slurm"
	"github.com/dsbuild/dsbuild/internal/hint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runCommand(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(exitCode(err, os.Stderr))
}

// exitCode is that of a command that ran in the cluster, or 1. It prints errors that were not
// printed yet.
func exitCode(err error, stderr io.Writer) int {
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended) && ended.ExitCode() > 0:
		return ended.ExitCode()
	case errors.Is(err, flag.ErrHelp):
		return 2
	}
	fmt.Fprintln(stderr, "slurm:", err)
	if h := hint.Of(err); h != "" {
		fmt.Fprintln(stderr, "hint:", h)
	}
	return 1
}

func runCommand(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("up, exec, env or down?")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	opt := slurm.Options{Stay: true, Log: func(s string) { fmt.Fprintln(stderr, "slurm:", s) }}
	fs.StringVar(&opt.Name, "name", "hand", "name of the cluster")
	var asUser, python bool
	switch args[0] {
	case "up":
		upFlags(fs, &opt, &python)
	case "exec":
		fs.BoolVar(&asUser, "user", false, "as the account "+slurm.User+", not as root")
	case "env", "down":
	default:
		return fmt.Errorf("%q: up, exec, env or down?", args[0])
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] != "exec" && fs.NArg() > 0 {
		return fmt.Errorf("unexpected %q", fs.Arg(0))
	}
	if python {
		opt.Packages = slurm.TorchAndJAX()
	}
	if args[0] == "up" {
		return startCluster(ctx, opt, stdout)
	}
	c, err := slurm.Open(opt.Name)
	if err != nil {
		return hint.With(err, "go run ./ci/slurm/cmd up")
	}
	switch args[0] {
	case "down":
		return c.Down()
	case "env":
		return printEnv(ctx, c, stdout)
	}
	return executeCommand(ctx, c, asUser, fs.Args(), stdin, stdout, stderr)
}

func upFlags(fs *flag.FlagSet, opt *slurm.Options, python *bool) {
	fs.IntVar(&opt.Nodes, "nodes", 4, "number of compute nodes")
	fs.IntVar(&opt.CPUs, "cpus", 16, "CPUs that a node says it has")
	fs.IntVar(&opt.GPUs, "gpus", 0, "GPUs that a node says it has")
	fs.IntVar(&opt.DownAfter, "down-after", 15, "seconds without an answer until a node is down")
	fs.BoolVar(python, "python", false, "a Python environment with torch and jax")
	fs.Func("partition", "partition, the first is the default (repeatable)", func(s string) error {
		opt.Partitions = append(opt.Partitions, s)
		return nil
	})
}

func startCluster(ctx context.Context, opt slurm.Options, stdout io.Writer) error {
	begin := time.Now()
	c, err := slurm.Up(ctx, opt)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "cluster %s: %d nodes up in %.1f s\nhome    %s\n", c.Name, len(c.Nodes), time.Since(begin).Seconds(), c.Home)
	if c.Python != "" {
		fmt.Fprintf(stdout, "python  %s\n", c.Python)
	}
	return nil
}

// printEnv prints a shell function that runs commands on the login node.
func printEnv(ctx context.Context, c *slurm.Cluster, stdout io.Writer) error {
	cmd := c.Command(ctx, `"$@"`)
	words := make([]string, len(cmd.Args))
	for i, arg := range cmd.Args {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	words[len(words)-1] = `"$@"`
	fmt.Fprintf(stdout, "on_head() { ( cd %s && exec env -i TERM=\"$TERM\" %s %s ) }\n", c.Home, strings.Join(c.Env(), " "), strings.Join(words, " "))
	return nil
}

// executeCommand runs a command on the login node; without one, a shell.
func executeCommand(ctx context.Context, c *slurm.Cluster, asUser bool, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		args = []string{"bash"}
	}
	command := c.Command
	if asUser {
		command = c.UserCommand
	}
	cmd := command(ctx, args[0], args[1:]...)
	cmd.SysProcAttr.Setpgid = false // the terminal is its own
	cmd.Cancel = nil
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	return cmd.Run()
}
