//go:build linux

// Command cmd runs local test nodes: up, list, down.
//
//	go run ./ci/nodes/cmd up --dir .nodes --count 3
//	go run ./ci/nodes/cmd list --dir .nodes
//	go run ./ci/nodes/cmd down --dir .nodes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/ci/nodes"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "nodes:", err)
		}
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("up, list or down?")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.SetOutput(stderr)
	opt := nodes.Options{Each: map[int]nodes.Env{}, Log: func(s string) { fmt.Fprintln(stderr, "nodes:", s) }}
	fs.StringVar(&opt.Dir, "dir", ".nodes", "folder of the nodes")
	if args[0] == "up" {
		fs.IntVar(&opt.Count, "count", 3, "number of nodes")
		fs.StringVar(&opt.Torch, "torch", nodes.DefaultTorch, "torch version")
		fs.StringVar(&opt.Python, "python", "3.11", "Python version")
		fs.Func("env", "environment of every node: torch, bare, fake-torch or none; 2=bare for one (repeatable)", func(s string) error {
			return setEnv(&opt, s)
		})
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected %q", fs.Arg(0))
	}
	switch args[0] {
	case "up":
		return startFleet(ctx, opt, stdout, stderr)
	case "list", "down":
		f, err := nodes.Open(opt.Dir)
		if err != nil {
			return err
		}
		if args[0] == "down" {
			return f.Down()
		}
		listNodes(f, stdout)
		return nil
	}
	return fmt.Errorf("%q: up, list or down?", args[0])
}

func setEnv(opt *nodes.Options, s string) error {
	which, name, one := strings.Cut(s, "=")
	if !one {
		name = s
	}
	env, err := nodes.ParseEnv(name)
	if err != nil {
		return err
	}
	if !one {
		opt.Env = env
		return nil
	}
	i, err := strconv.Atoi(which)
	if err != nil || i < 1 {
		return fmt.Errorf("%q is not the number of a node", which)
	}
	opt.Each[i-1] = env
	return nil
}

func startFleet(ctx context.Context, opt nodes.Options, stdout, stderr io.Writer) error {
	begin := time.Now()
	f, err := nodes.Up(ctx, opt)
	if err != nil {
		return err
	}
	listNodes(f, stdout)
	fmt.Fprintf(stderr, "nodes: %d up in %.1f s, inventory %s\n", len(f.Nodes), time.Since(begin).Seconds(), f.Inventory)
	return nil
}

func listNodes(f *nodes.Fleet, w io.Writer) {
	for _, n := range f.Nodes {
		state := "down"
		if pid := n.Pid(); pid != 0 {
			state = fmt.Sprintf("up (process %d)", pid)
		}
		fmt.Fprintf(w, "%-8s %s:%d  %-10s %s\n", n.Name, n.Address, n.Port, n.Env, state)
	}
}
