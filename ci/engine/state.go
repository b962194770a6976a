package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/proc"
)

// process identifies a process permanently. A pid alone does not: the kernel reuses pids, and
// restarts counting after a boot.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot, from /proc/PID/stat
	Boot  string `json:"boot"`
}

// record holds the supervisor's notes about a running engine.
type record struct {
	Version    string    `json:"version"`
	Since      time.Time `json:"since"`
	Supervisor process   `json:"supervisor"`
	Engine     process   `json:"engine"`
	Network    process   `json:"network"`
}

// String describes the process; the record of an engine may be lost.
func (p process) String() string {
	if p.PID == 0 {
		return "an unknown process"
	}
	return fmt.Sprintf("process %d", p.PID)
}

// identifyProcess returns the process that now has the pid.
func identifyProcess(root string, pid int) (process, error) {
	now, err := proc.Read(root, pid)
	if err != nil {
		return process{}, err
	}
	boot, err := os.ReadFile(filepath.Join(root, "sys/kernel/random/boot_id"))
	if err != nil {
		return process{}, err
	}
	return process{pid, now.Start, strings.TrimSpace(string(boot))}, nil
}

// alive reports whether this very process still runs. A zombie does not.
func (p process) alive(root string) bool {
	if p.PID <= 0 {
		return false
	}
	same, err := identifyProcess(root, p.PID)
	if err != nil || same != p {
		return false
	}
	now, err := proc.Read(root, p.PID)
	return err == nil && !now.Ended()
}

func (l Layout) readRecord() (r record, ok bool) {
	b, err := os.ReadFile(l.recordFile())
	if err != nil {
		return r, false
	}
	return r, json.Unmarshal(b, &r) == nil
}

func (l Layout) writeRecord(r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(l.recordFile(), string(b)+"\n", 0o644)
}

// socketAnswers reports whether a process answers HTTP on the socket. Any answer counts: the
// engine answers strangers with 500. A connection alone proves nothing: the kernel accepts it
// for a stopped or stuck process as well.
func socketAnswers(socket string) bool {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://engine/")
	if err != nil {
		return false
	}
	resp.Body.Close() //nolint:errcheck // any answer counts
	return true
}

// socketListens reports whether the kernel accepts connections for the socket: then a process
// holds it, perhaps one that no record names.
func socketListens(socket string) bool {
	c, err := net.DialTimeout("unix", socket, 2*time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// phase is the state of the engine, seen from outside.
type phase int

const (
	phaseStopped phase = iota // not there, or only leftovers of a crash or a reboot
	phaseRunning              // answers on its socket
	phaseSilent               // a process lives but does not answer: starting, stopping or stuck
)

func (l Layout) phase() (phase, record) {
	r, known := l.readRecord()
	if socketAnswers(l.Socket()) {
		return phaseRunning, r
	}
	if known && (r.Engine.alive(l.Proc) || r.Supervisor.alive(l.Proc)) || socketListens(l.Socket()) {
		return phaseSilent, r
	}
	return phaseStopped, r
}

// Describe describes the state of the engine in one line; it changes nothing.
func Describe(l Layout) (text string, running bool) {
	ph, r := l.phase()
	switch known := r.Engine.PID != 0; {
	case ph == phaseRunning && !known:
		return fmt.Sprintf("running: on %s, but its record is lost", l.Socket()), true
	case ph == phaseRunning:
		return fmt.Sprintf("running: dagger engine %s, pid %d, since %s, %s", r.Version, r.Engine.PID, r.Since.Format(time.DateTime), l.Socket()), true
	case ph == phaseSilent && !known:
		return fmt.Sprintf("silent: something holds %s but does not answer, and its record is lost", l.Socket()), false
	case ph == phaseSilent:
		return fmt.Sprintf("silent: dagger engine %s, pid %d runs but does not answer on %s", r.Version, r.Engine.PID, l.Socket()), false
	case l.Installed():
		return "stopped: dagger engine " + engineVersion, false
	}
	return "not installed", false
}
