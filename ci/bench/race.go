//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// contender is a tool with the command for the compared work.
type contender struct {
	name string
	line string   // for bash
	env  []string // K=V, besides the common variables
}

// sample is one measurement of a contender.
type sample struct {
	cost
	Nodes float64 // seconds of CPU time on the nodes
}

// race measures contenders in turns, so that a change on this machine affects all of them.
type race struct {
	title  string
	nodes  int // the number of nodes: the work is done on the first ones
	rounds int
	// contenders returns the contenders with their commands for a number of nodes.
	contenders func(nodes int) []contender
	// before and after, if set, surround each measurement; env is added to the command's
	// environment.
	before func(c contender, nodes int) (env []string, err error)
	after  func(c contender, nodes int) error
}

// fleetRaces measures tools on the nodes of a workspace.
type fleetRaces struct{ *workspace }

// runRace returns the samples of each contender, in the order of rounds. Before that, each does
// the work once on one node as a warm-up.
func (races fleetRaces) runRace(ctx context.Context, r race) (ranking, error) {
	out := ranking{title: r.title, contenders: r.contenders(r.nodes), samples: map[string][]sample{}}
	for round := range r.rounds + 1 {
		title, n := fmt.Sprintf("%s, round %d of %d", r.title, round, r.rounds), r.nodes
		if round == 0 {
			title, n = r.title+", warming up", 1
		}
		races.say("%s", title)
		var walls []string
		for _, c := range r.contenders(n) {
			s, err := races.takeSample(ctx, r, c, n)
			if err != nil {
				return out, fmt.Errorf("%s: %w", c.name, err)
			}
			walls = append(walls, fmt.Sprintf("%s %.1fs", c.name, s.Wall))
			if round > 0 {
				out.samples[c.name] = append(out.samples[c.name], s)
			}
		}
		races.say("  %s", strings.Join(walls, ", "))
	}
	return out, nil
}

// commandLimit is the time limit of one command.
const commandLimit = 10 * time.Minute

// takeSample measures a contender once.
func (races fleetRaces) takeSample(ctx context.Context, r race, c contender, nodes int) (sample, error) {
	env := c.env
	if r.before != nil {
		more, err := r.before(c, nodes)
		if err != nil {
			return sample{}, err
		}
		env = append(slices.Clone(env), more...)
	}
	syscall.Sync() // this contender must not wait for the data that others have written
	begin, err := races.gauge.readCPU()
	if err != nil {
		return sample{}, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, commandLimit, fmt.Errorf("not done within %s", commandLimit))
	defer cancel()
	took, err := races.measure(limited, c.line, env...)
	if err != nil {
		return sample{}, cmp.Or(context.Cause(limited), err)
	}
	end, err := races.gauge.readCPU()
	if err != nil {
		return sample{}, err
	}
	if took.Status != 0 {
		return sample{}, fmt.Errorf("exited with status %d; output: %s", took.Status, races.log.Name())
	}
	s := sample{took, (end - begin).Seconds()}
	if r.after != nil {
		err = r.after(c, nodes)
	}
	return s, err
}

// measure runs a line and returns its cost.
func (ws *workspace) measure(ctx context.Context, line string, env ...string) (cost, error) {
	fmt.Fprintf(ws.log, "\n$ %s\n", line)
	if enter := ws.fleet.EnterController(); len(enter) > 0 {
		line = strings.Join(enter, " ") + " bash -c '" + strings.ReplaceAll(line, "'", `'\''`) + "'"
	}
	return measureCommand(ctx, ws.dir, ws.commandEnv(env...), ws.log, line)
}

// spread is a median with the minimum and the maximum.
type spread struct{ median, least, most float64 }

func spreadOf(v []float64) spread {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

// each returns a figure of all samples.
func each(samples []sample, figure func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = figure(s)
	}
	return out
}

func wall(s sample) float64          { return s.Wall }
func controllerCPU(s sample) float64 { return s.CPU }
func nodesCPU(s sample) float64      { return s.Nodes }
