package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/check"
)

const (
	checkGate = "check"          // the value of --gate for dsbuild's own gate
	gateGrace = 10 * time.Second // for a gate to end after SIGTERM
)

// addGate declares --gate, for commands that install something.
func (f *changeFlags) addGate(cmd *cobra.Command) {
	parsedVar(cmd.Flags(), &f.gate, "gate", "", "string", parseGate,
		"`COMMAND` Shell command to run here after the first batch, or check; if it fails, no further batch starts")
	flagsNeed(cmd, "serial", "gate")
	inGroup(cmd, groupNodes, "gate")
}

// parseGate parses the value of --gate.
func parseGate(text string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", errors.New("want a shell command, or check")
	}
	return text, nil
}

// gate is --gate of one run.
type gate struct {
	app     *app
	command string
	opt     fleet.Options
}

// pass runs the gate if a run waits for it, and lets the run continue or not. It reports whether it ran; soFar is the
// report until then.
func (g gate) pass(ctx context.Context, run *change.Run, soFar *report.Report) bool {
	changed, batch := run.AtGate()
	if len(changed) == 0 {
		return false
	}
	run.PassGate(ctx, g.outcome(ctx, run.Fleet.Run, changed, soFar.Of(batch)))
	return true
}

// outcome runs the gate on nodes. It has the time limit of a long step.
func (g gate) outcome(ctx context.Context, run string, nodes []string, batch *report.Report) *report.Gate {
	limit := cmp.Or(g.opt.Timeout, change.GateLimit)
	limited, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("timed out after %s (--timeout raises the limit)", ui.Duration(limit)))
	defer cancel()
	step := g.app.reporter.Step(fmt.Sprintf("gate on %s: %s", ui.FoldShort(nodes), ui.OneLine(g.command)))
	batch.EditHints(g.app.hints.expand)
	var err error
	if g.command == checkGate {
		err = checkNodes(limited, g.app, g.opt, batch.Of(nodes))
	} else {
		err = runGate(limited, g.app, g.command, run, nodes, batch)
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	outcome := &report.Gate{Command: g.command, Nodes: nodes}
	if err != nil {
		step.End(ui.Failed, "")
		outcome.Error = ui.OneLine(err.Error())
		back := fault.Command{Do: "rollback", Flags: []string{"--run", run}}
		outcome.Hint = "fix the cause and rerun, or roll the first batch back: " + back.String()
		return outcome
	}
	step.End(ui.Done, "")
	return outcome
}

// runGate runs the user's command. Its output appears line by line.
func runGate(ctx context.Context, a *app, command, id string, nodes []string, batch *report.Report) error {
	dir, err := scratch.New("")
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a later run removes it
	file := filepath.Join(dir.Path, "report.json")
	var text bytes.Buffer
	if err := errors.Join(ui.JSON(&text, batch), os.WriteFile(file, text.Bytes(), 0o600)); err != nil {
		return err
	}
	out := &ui.LineWriter{Line: func(line string) { a.reporter.Note("gate: %s", ui.OneLine(line)) }}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "DSBUILD_GATE_NODES="+strings.Join(nodes, " "),
		"DSBUILD_GATE_REPORT="+file, "DSBUILD_GATE_RUN="+id)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr, cmd.WaitDelay = ownGroup(), gateGrace
	cmd.Cancel = func() error { return signalGroup(cmd.Process, syscall.SIGTERM) }
	err = cmd.Run()
	if cmd.Process != nil {
		signalGroup(cmd.Process, syscall.SIGKILL) //nolint:errcheck // the programs that the command left
	}
	out.End()
	if errors.Is(err, exec.ErrWaitDelay) { // it succeeded, and left a program with its output
		err = nil
	}
	return err
}

// checkNodes runs dsbuild's own gate: the checks of dsbuild check that concern nodes together, an all-reduce, and a
// step of ZeRO.
func checkNodes(ctx context.Context, a *app, opt fleet.Options, batch *report.Report) error {
	hosts := lists.Map(batch.Nodes, func(n report.Node) inventory.Host {
		h := opt.Hosts[slices.IndexFunc(opt.Hosts, func(h inventory.Host) bool { return h.Name == n.Name })]
		if n.Environment != nil {
			h.Python = n.Environment.Python
		}
		return h
	})
	c := check.Options{
		Options: opt, Port: defaultPort, ZeRO: true, Skip: []check.Check{check.Disk, check.Paths},
	}
	c.Command, c.Logs, c.Timeout, c.MaxFailures = checkGate, fleet.Logs{}, 0, nil
	c.Dialer = sharedDialer{opt.Dialer}
	for len(hosts) > 0 {
		c.Hosts, hosts = eachNodeOnce(hosts)
		r := check.Run(ctx, c)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.Err()
		if err == nil && !slices.ContainsFunc(r.Collectives, func(s check.Sum) bool { return s.ZeRO }) {
			err = errors.New("no ZeRO step was possible")
		}
		if err == nil {
			continue
		}
		var text bytes.Buffer
		if failed := r.Print(&text); failed != nil {
			return failed
		}
		for line := range strings.Lines(text.String()) {
			a.reporter.Note("gate: %s", ui.OneLine(line))
		}
		return err
	}
	return nil
}

// eachNodeOnce returns one environment of each node, and the additional ones.
func eachNodeOnce(hosts []inventory.Host) (now, later []inventory.Host) {
	for _, h := range hosts {
		if slices.ContainsFunc(now, func(o inventory.Host) bool { return o.Node == h.Node }) {
			later = append(later, h)
		} else {
			now = append(now, h)
		}
	}
	return now, later
}

// sharedDialer is a dialer that stays open when a check ends.
type sharedDialer struct{ remote.Dialer }

// printGate prints in a dry run when the gate would run.
func (f changeFlags) printGate(w io.Writer) error {
	if f.gate == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "gate after the first batch: %s\n", ui.Clean(f.gate))
	return err
}
