package main

import (
	"bufio"
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

// newGate returns the gate of a command; nil without --gate. undo returns the command that rolls nodes back.
func newGate(
	a *app, command string, undo func(run string, nodes []string) string, opt fleet.Options,
) *change.Gate {
	if command == "" {
		return nil
	}
	run := func(ctx context.Context, id string, nodes []string, batch *report.Report) error {
		if command == checkGate {
			return checkNodes(ctx, a, opt, batch.Of(nodes))
		}
		return runGate(ctx, a, command, id, nodes, batch)
	}
	limited := func(ctx context.Context, id string, nodes []string, batch *report.Report) error {
		limit := cmp.Or(opt.Timeout, change.GateLimit)
		within, cancel := context.WithTimeoutCause(ctx, limit,
			fmt.Errorf("timed out after %s (--timeout raises the limit)", ui.Duration(limit)))
		defer cancel()
		step := a.reporter.Step(fmt.Sprintf("gate on %s: %s", ui.FoldShort(nodes), ui.OneLine(command)))
		err := run(within, id, nodes, batch)
		if within.Err() != nil {
			err = context.Cause(within)
		}
		if err != nil {
			step.End(ui.Failed, "")
			return err
		}
		step.End(ui.Done, "")
		return nil
	}
	return &change.Gate{Command: command, Undo: undo, Run: limited}
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
	out, in := io.Pipe()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "DSBUILD_GATE_NODES="+strings.Join(nodes, " "),
		"DSBUILD_GATE_REPORT="+file, "DSBUILD_GATE_RUN="+id)
	cmd.Stdout, cmd.Stderr = in, in
	cmd.SysProcAttr, cmd.WaitDelay = ownGroup(), gateGrace
	cmd.Cancel = func() error { return signalGroup(cmd.Process, syscall.SIGTERM) }
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for lines := bufio.NewReader(out); ; {
			line, err := lines.ReadString('\n')
			if line = strings.TrimRight(line, "\r\n"); line != "" {
				a.reporter.Note("gate: %s", ui.OneLine(line))
			}
			if err != nil {
				return
			}
		}
	}()
	err = cmd.Run()
	if cmd.Process != nil {
		signalGroup(cmd.Process, syscall.SIGKILL) //nolint:errcheck // the programs that the command left
	}
	in.Close() //nolint:errcheck // it has no errors
	<-printed
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

// eachNodeOnce returns one environment of each node, and the further ones.
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

// printGate says in a dry run when the gate would run.
func (f changeFlags) printGate(w io.Writer) error {
	if f.gate == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "gate after the first batch: %s\n", ui.Clean(f.gate))
	return err
}
