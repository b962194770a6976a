package ship

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Groups returns the wheels of the plan in the form of the report.
func (s *Selection) Groups() []report.Group {
	out := []report.Group{}
	for _, w := range s.Wheels {
		g := report.Group{
			Name: w.Name, State: string(w.State), Nodes: w.Nodes,
			Running: append([]string{}, w.Running...), Why: append([]string{}, w.Why...),
			Python: w.Request.Python, Torch: w.Request.Torch, CUDA: w.Request.CUDA, CPU: string(w.Request.CPU),
			Archs: []string{}, Ops: []string{},
			Wheel: w.Artifact.Manifest.Name, SHA256: w.Artifact.SHA256, Hint: ui.Clean(fault.Hint(w.Err)),
		}
		archs := w.Request.Archs
		if w.State == Built {
			g.Seconds = w.Artifact.Seconds
		}
		if plan := w.Plan; plan != nil {
			g.Torch, g.CUDA, g.Python = plan.Toolchain().Serves()
			if plan.Manifest.TorchABI.IsStable() {
				g.CUDA = strings.Join(plan.Manifest.CUDAs(), ", ")
			}
			g.CPU, g.Ops, g.PlanDigest = string(plan.Toolchain().CPU), plan.Toolchain().OpNames(false), plan.Digest
			archs = nil
			for _, part := range plan.Parts {
				archs = append(archs, part.Toolchain.Archs...)
			}
			archs, _ = wheel.ParseArchs([]string{wheel.ArchList(archs)}) // each once; they come from the tables
		}
		for _, a := range archs {
			g.Archs = append(g.Archs, a.String())
		}
		if w.Err != nil {
			g.Error = ui.Clean(w.Err.Error())
		}
		out = append(out, g)
	}
	return out
}

// EditHints rewrites the hints of the excluded nodes. nodes are those with a hint, as a value of --limit.
func (s *Selection) EditHints(edit func(hint, nodes string) string) {
	with := map[string][]string{}
	for _, l := range s.Excluded {
		with[l.Hint] = append(with[l.Hint], l.Node)
	}
	for i := range s.Excluded {
		l := &s.Excluded[i]
		l.Hint = edit(l.Hint, ui.FoldNames(with[l.Hint]))
	}
}

// Lines returns the plan as text: each wheel with its nodes and the reasons for it, then the
// nodes that get no wheel.
func (s *Selection) Lines() []string {
	lines := []string{s.summaryLine()}
	for _, w := range s.Wheels {
		lines = append(lines, w.describe()...)
	}
	return append(lines, s.excluded(len(s.Excluded))...)
}

// excluded lists the nodes that get no wheel, in at most most groups.
func (s *Selection) excluded(most int) (lines []string) {
	var left []ui.Named
	for _, l := range s.Excluded {
		text := strings.Join(l.Reasons, "; ")
		if l.Hint != "" {
			text += "\n    hint: " + l.Hint
		}
		left = append(left, ui.Named{Name: l.Node, Text: text, Cause: l.cause})
	}
	groups := ui.Fold(left)
	for i, f := range groups[:min(len(groups), most)] {
		if i == 0 {
			lines = append(lines, "excluded")
		}
		if f.Example != "" {
			f.Names += ", e.g. " + f.Example
		}
		lines = append(lines, strings.Split("  "+f.Names+": "+f.Text, "\n")...)
	}
	if more := len(groups) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("  … for %d more reasons", more))
	}
	return lines
}

// summaryLines is Lines in about ten lines: a line for each wheel, or its error.
func (s *Selection) summaryLines() []string {
	const mostWheels, mostReasons = 4, 2
	lines := []string{s.summaryLine()}
	for _, w := range s.Wheels[:min(len(s.Wheels), mostWheels)] {
		lines = append(lines, fmt.Sprintf("%s  %s  for %s", w.Name, w.State.description(), ui.FoldNames(w.Nodes)))
		if w.Err != nil {
			text, _, _ := strings.Cut(w.Err.Error(), "\n")
			lines = append(lines, "  "+text)
			if h := fault.Hint(w.Err); h != "" {
				lines = append(lines, "  hint: "+h)
			}
		}
	}
	if more := len(s.Wheels) - mostWheels; more > 0 {
		lines = append(lines, "… and "+ui.Count(more, "more wheel"))
	}
	lines = append(lines, s.excluded(mostReasons)...)
	return append(lines, "--verbose prints the targets of each wheel, and all reasons")
}

// summaryLine counts nodes and wheels.
func (s *Selection) summaryLine() string {
	states := map[State]int{}
	for _, w := range s.Wheels {
		states[w.State]++
	}
	line := ui.Count(s.Nodes, "node") + ", " + ui.Count(len(s.Wheels), "wheel")
	var parts []string
	for _, state := range []State{ToBuild, Stored, Exported, Running, Failed} {
		if states[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", states[state], state.description()))
		}
	}
	if len(parts) > 0 {
		line += ": " + strings.Join(parts, ", ")
	}
	return line
}

// description returns the state as text.
func (s State) description() string {
	switch s {
	case ToBuild:
		return "to build"
	case Stored:
		return "cached"
	case Exported:
		return "already built"
	case Running:
		return "already running"
	}
	return string(s)
}

func (d *Delivery) describe() []string {
	lines := []string{d.Name + "  " + d.State.description(), "  for " + ui.FoldNames(d.Nodes)}
	if n := len(d.Running); n > 0 && n < len(d.Nodes) {
		lines = append(lines, "  already running on "+ui.FoldNames(d.Running))
	}
	if d.Plan != nil {
		tc := d.Plan.Toolchain()
		torch, _, python := tc.Serves()
		var code, levels []string
		for _, part := range d.Plan.Parts {
			tc := part.Toolchain
			if _, cuda, _ := tc.Serves(); tc.HasDeviceCode() {
				code = append(code, fmt.Sprintf("CUDA %s, arch %s", cuda, wheel.ArchList(tc.Archs)))
			}
			if !slices.Contains(levels, string(tc.CPU)) {
				levels = append(levels, string(tc.CPU))
			}
		}
		switch {
		case tc.ABI == wheel.StableABI:
			torch += " and newer (built with " + tc.Torch + ")"
		case len(code) == 0:
			code = []string{"CUDA " + tc.CUDA}
		}
		lines = append(lines, fmt.Sprintf("  Python %s, torch %s, %s, %s; ops %s; on %s", python, torch,
			cmp.Or(strings.Join(code, "; "), "any CUDA"), lists.And(levels), strings.Join(tc.OpNames(false), ", "), tc.Environment.Name))
	}
	for _, why := range d.Why {
		lines = append(lines, "  "+why)
	}
	if d.Err != nil {
		for line := range strings.SplitSeq(d.Err.Error(), "\n") {
			lines = append(lines, "  "+line)
		}
		if h := fault.Hint(d.Err); h != "" {
			lines = append(lines, "  hint: "+h)
		}
	}
	return lines
}

// Print writes the plan for a person, whole or in about ten lines.
func (s *Selection) Print(w io.Writer, whole bool) error {
	lines := s.summaryLines()
	if whole {
		lines = s.Lines()
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, ui.Clean(line)); err != nil {
			return err
		}
	}
	return nil
}
