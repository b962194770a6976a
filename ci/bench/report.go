//go:build linux

package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// ranking holds the results of a race.
type ranking struct {
	title      string
	contenders []contender
	samples    map[string][]sample // by contender, in the order of rounds
}

// String is the table: wall times, their ratio to dsbuild's, and CPU times.
func (r ranking) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | wall, s | × %s | driver's CPU, s | nodes' CPU, s |\n|---|---|---|---|---|\n", inTable(r.title), dsbuildName)
	for _, c := range r.contenders {
		s := r.samples[c.name]
		ratio := "1"
		if c.name != dsbuildName {
			ratio = aroundMedian(r.ratio(c.name, dsbuildName), "%.2f")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", inTable(c.name), aroundMedian(spreadOf(each(s, wall)), "%.1f"), ratio,
			aroundMedian(spreadOf(each(s, driverCPU)), "%.2f"), aroundMedian(spreadOf(each(s, nodesCPU)), "%.1f"))
	}
	return b.String()
}

// aroundMedian prints a median with the minimum and the maximum.
func aroundMedian(s spread, format string) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", s.median, s.least, s.most)
}

// ratio divides the wall time of a contender by that of another, round by round.
func (r ranking) ratio(of, by string) spread {
	v := make([]float64, len(r.samples[of]))
	for i := range v {
		v[i] = r.samples[of][i].Wall / r.samples[by][i].Wall
	}
	return spreadOf(v)
}

// median is the median of a figure of a contender.
func (r ranking) median(name string, figure func(sample) float64) float64 {
	return spreadOf(each(r.samples[name], figure)).median
}

// floor describes how long the CPU time of a contender takes on all cores of this machine: no
// driver is faster.
func (r ranking) floor(name string) string {
	cpu := r.median(name, driverCPU)
	return fmt.Sprintf("The floor: %s takes %.1f s of CPU time, which is %.1f s of wall on %d cores.\n", name, cpu, cpu/float64(runtime.NumCPU()), runtime.NumCPU())
}

// leanness compares the driver's CPU time of dsbuild with the lowest of the others.
func (r ranking) leanness(others ...string) string {
	best := slices.MinFunc(others, func(a, b string) int { return cmp.Compare(r.median(a, driverCPU), r.median(b, driverCPU)) })
	least, ours := r.median(best, driverCPU), r.median(dsbuildName, driverCPU)
	return fmt.Sprintf("The driver's CPU time: the best of the others with the same key exchange (%s) %.2f s; %s %.2f s, %.2f of it.\n", best, least, dsbuildName, ours, ours/least)
}

// inTable escapes a text for a cell of a table.
func inTable(text string) string { return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text) }

// listTools names the exact versions of the compared tools.
func (ws *workspace) listTools() string {
	return "Compared: " + inTable(strings.Join(ws.versions, "; ")) + ".\n"
}
