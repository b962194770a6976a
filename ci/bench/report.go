//go:build linux

package main

import (
	"fmt"
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
	fmt.Fprintf(&b, "| %s | wall, s | × %s | controller's CPU, s | nodes' CPU, s |\n|---|---|---|---|---|\n", inTable(r.title), dsbuildName)
	for _, c := range r.contenders {
		s := r.samples[c.name]
		ratio := "1"
		if c.name != dsbuildName {
			ratio = aroundMedian(r.ratio(c.name, dsbuildName), "%.2f")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", inTable(c.name), aroundMedian(spreadOf(each(s, wall)), "%.1f"), ratio,
			aroundMedian(spreadOf(each(s, controllerCPU)), "%.2f"), aroundMedian(spreadOf(each(s, nodesCPU)), "%.1f"))
	}
	return b.String()
}

// aroundMedian prints a median with the minimum and the maximum.
func aroundMedian(s spread, format string) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", s.median, s.least, s.most)
}

// ratio divides a contender's wall time by another's, round by round.
func (r ranking) ratio(of, by string) spread {
	v := make([]float64, len(r.samples[of]))
	for i := range v {
		v[i] = r.samples[of][i].Wall / r.samples[by][i].Wall
	}
	return spreadOf(v)
}

// inTable escapes a text for a cell of a table.
func inTable(text string) string { return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text) }

// listTools lists the exact versions of the compared tools.
func (ws *workspace) listTools() string {
	return "Compared: " + inTable(strings.Join(ws.versions, "; ")) + ".\n"
}
