package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// stopLimit is how long an engine may take to end.
const stopLimit = 60 * time.Second

// Down stops the engine and waits until nothing of it is left. It never kills:
// a killed engine wipes its whole cache at the next start.
func Down(ctx context.Context, l Layout, con *console) error {
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	return stop(ctx, l, con)
}

// stop is Down for a caller that holds the lock.
func stop(ctx context.Context, l Layout, con *console) error {
	ph, r := l.phase()
	if ph == phaseStopped {
		l.sweep(r)
		con.say("engine", "not running")
		return nil
	}
	if !r.Engine.alive(l.Proc) && !r.Supervisor.alive(l.Proc) {
		return hint.With(fmt.Errorf("something answers on %s, but no process of it is known", l.Socket()),
			"its record %s is lost; find the process named dagger-engine and send it SIGTERM", l.recordFile())
	}
	began := time.Now()
	con.say("engine", "stopping process %d", r.Engine.PID)
	if r.Engine.alive(l.Proc) {
		if err := syscall.Kill(r.Engine.PID, syscall.SIGTERM); err != nil {
			return hint.With(fmt.Errorf("stopping process %d: %w", r.Engine.PID, err), "stop it as the user who started it")
		}
	}
	beat := con.beat("engine", func() string { return "waiting until it has ended" })
	defer beat()
	err := eventually(ctx, stopLimit, func() bool { return !r.Engine.alive(l.Proc) && !r.Supervisor.alive(l.Proc) })
	if err != nil {
		return hint.With(fmt.Errorf("the engine (process %d) did not end: %w", r.Engine.PID, err),
			"a build may still run: wait and try again; see %s. SIGKILL ends it too, but its cache is lost then", l.Log())
	}
	l.sweep(r)
	con.say("engine", "stopped in %.1f s; its cache is kept", time.Since(began).Seconds())
	return nil
}
