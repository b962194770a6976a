package lint

import (
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// noGPUs finds jobs that start a launcher for several GPUs and ask for none.
func noGPUs(s *subject) []hit {
	asks := func(o script.Option) bool {
		text := o.Value.Text()
		return strings.HasPrefix(o.Name, "gpu") || o.Name == "gres" || strings.HasPrefix(o.Name, "tres") || o.Name == "exclusive" ||
			(o.Name == "constraint" || o.Name == "partition") && strings.Contains(text, ":")
	}
	if !s.isBatch() || s.Heterogeneous || containsFunc(s.slurmOptions, asks) {
		return nil
	}
	for _, l := range s.launches {
		n, _, known := l.processesPerNode(s.stepOfLaunch(l))
		f, given := l.nproc()
		byGPU := given && (f.value.Text() == "gpu" || f.value.Text() == "auto")
		if l.InFunction || l.Branch || onCPU(l.Command) || !byGPU && (!known || n < 2) {
			continue
		}
		return []hit{{
			at:      s.Directives[0].At,
			message: fmt.Sprintf("the job asks for no GPUs, and %s starts %s per node", l.kind, countOf(max(n, 2), "process")),
		}}
	}
	return nil
}

// oneCPU finds launchers that start more processes than their task has CPUs.
func oneCPU(s *subject) []hit {
	for _, l := range s.launches {
		st := s.stepOfLaunch(l)
		o, given := findOption(st.options, "cpus-per-task")
		cpus, known := o.Value.Int()
		n, f, sure := l.processesPerNode(st)
		if s.isBatch() && given && known && sure && n > 1 && cpus < n && st.perNode == 1 && !l.InFunction {
			return []hit{{at: f.value.Origin(), message: fmt.Sprintf("%s starts %d processes in a task with %s", l.kind, n, countOf(cpus, "CPU"))}}
		}
	}
	return nil
}
