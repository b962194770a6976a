package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// stopLimit is how long an engine may take to end.
const stopLimit = 60 * time.Second

// clientGrace is how long clients may take to leave an engine that ends.
const clientGrace = 5 * time.Second

// Down stops the engine and waits until its processes and mounts are gone. It never kills the
// engine: a killed engine wipes its whole cache at the next start.
func Down(ctx context.Context, l Layout, con *console) error {
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	return stopEngine(ctx, l, con)
}

// stopEngine does the work of Down for a caller that holds the lock.
func stopEngine(ctx context.Context, l Layout, con *console) error {
	ph, r := l.phase()
	if ph == phaseStopped {
		l.removeLeftovers(r)
		con.printLine("engine", "not running")
		return nil
	}
	if !r.Engine.alive(l.Proc) && !r.Supervisor.alive(l.Proc) {
		return fault.WithHint(fmt.Errorf("a process listens on %s, but dsbuild does not know which", l.Socket()),
			"its record %s is lost; find the process named dagger-engine and send it SIGTERM", l.recordFile())
	}
	began := time.Now()
	con.printLine("engine", "stopping process %d", r.Engine.PID)
	if r.Engine.alive(l.Proc) {
		if err := syscall.Kill(r.Engine.PID, syscall.SIGTERM); err != nil {
			return fault.WithHint(fmt.Errorf("stopping process %d: %w", r.Engine.PID, err), "stop it as the user who started it")
		}
	}
	if err := l.waitEnd(ctx, con, r); err != nil {
		return fault.WithHint(fmt.Errorf("the engine (process %d) did not end in %v: %w", r.Engine.PID, stopLimit, err),
			"end the builds that use it: it ends by itself when the last one has left (log: %s). Do not use SIGKILL: its cache would be lost", l.Log())
	}
	l.removeLeftovers(r)
	con.printLine("engine", "stopped in %.1f s; its cache is kept", time.Since(began).Seconds())
	return nil
}

// waitEnd waits for an engine that was asked to end. The engine ends its containers immediately, but
// then waits for its clients. A client may not notice that its build has ended, so waitEnd ends the
// remaining clients.
func (l Layout) waitEnd(ctx context.Context, con *console, r record) error {
	endReport := con.reportProgress("engine", func() string { return "waiting until it has ended" })
	defer endReport()
	gone := func() bool { return !r.Engine.alive(l.Proc) && !r.Supervisor.alive(l.Proc) }
	err := waitUntil(ctx, clientGrace, gone)
	if err == nil || ctx.Err() != nil {
		return err
	}
	for _, pid := range l.clients() {
		con.printLine("engine", "ending its client, process %d: the build it waits for is over", pid)
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	return waitUntil(ctx, stopLimit-clientGrace, gone)
}

// clients lists the Dagger programs whose command line has this engine's socket.
func (l Layout) clients() (pids []int) {
	dirs, _ := filepath.Glob(filepath.Join(l.Proc, "[0-9]*"))
	for _, d := range dirs {
		name, _ := os.ReadFile(filepath.Join(d, "comm"))
		if !strings.HasPrefix(string(name), "dagger") {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(d, "environ"))
		for kv := range strings.SplitSeq(string(env), "\x00") {
			if _, v, _ := strings.Cut(kv, "="); v == "unix://"+l.Socket() {
				pid, _ := strconv.Atoi(filepath.Base(d))
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
