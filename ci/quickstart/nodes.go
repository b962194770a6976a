package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

// The nodes of quickstart end with the program that starts them. For `make nodes` that is a
// keeper, which runs until `make nodes-stop`. It listens on a Unix socket, so a successful connection
// shows that the nodes run.

// ready is the keeper's last line.
const ready = "ready"

func keeperSocket() string { return cacheDir() + ".nodes" }

// callKeeper connects to the keeper.
func callKeeper(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", keeperSocket())
}

// startKeeper is `make nodes`.
func startKeeper(ctx context.Context) error {
	inventory := filepath.Join(cacheDir(), "inventory.yaml")
	if conn, err := callKeeper(ctx); err == nil {
		printStep("the nodes run already: %s", inventory)
		return conn.Close()
	}
	python, err := checkPrograms(ctx, os.Environ(), true)
	if err != nil {
		return err
	}
	keeper := exec.Command("/proc/self/exe", "keep", python) //nolint:noctx // it outlives this program
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := keeper.StdoutPipe()
	if err != nil {
		return err
	}
	keeper.Stderr = keeper.Stdout
	if err := keeper.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == ready {
			printStep("three local nodes run until 'make nodes-stop': bin/dsbuild nodes %s", inventory)
			return keeper.Process.Release()
		}
		fmt.Fprintln(os.Stderr, lines.Text())
	}
	return fmt.Errorf("the nodes did not start: %w", keeper.Wait())
}

// keepNodes is the keeper: it starts the nodes and stops them when it is told.
func keepNodes(ctx context.Context, python string) (err error) {
	fleet, err := startNodes(ctx, machine{python: python})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Down()) }()
	// The nodes' directory is locked, so an old socket is unused.
	if err := os.Remove(keeperSocket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", keeperSocket()) //nolint:noctx // it listens until it is told
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	fmt.Println(ready)
	if err := closeOutput(); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return ctx.Err()
		}
		if asked, err := io.ReadAll(conn); err == nil && string(asked) == "stop" {
			defer conn.Close() // who asked sees it when the nodes are down
			return listener.Close()
		}
		conn.Close()
	}
}

// closeOutput discards the keeper's further output, because its reader has ended.
func closeOutput() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return errors.Join(syscall.Dup3(int(null.Fd()), 1, 0), syscall.Dup3(int(null.Fd()), 2, 0))
}

// stopKeeper is `make nodes-stop`.
func stopKeeper(ctx context.Context) error {
	conn, err := callKeeper(ctx)
	if err != nil {
		printStep("no nodes run")
		return nil
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "stop"); err != nil {
		return err
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		return err
	}
	printStep("the nodes are stopped; their files stay in %s", cacheDir())
	return nil
}

func startNodes(ctx context.Context, m machine) (*nodes.Fleet, error) {
	fleet, err := nodes.Up(ctx, nodes.Options{
		Dir: cacheDir(), Count: 3, Env: nodes.WithTorch, Python: m.python,
		Log: func(line string) { printStep("nodes: %s", line) },
	})
	if err != nil {
		return nil, fmt.Errorf("local nodes: %w", err)
	}
	return fleet, nil
}
