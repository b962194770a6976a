package lint

import (
	"fmt"
	"slices"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func oneDeviceVisible(s *subject) []hit {
	var hits []hit
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil || srun.Captured || !runsPython(c) {
			continue
		}
		st := s.stepOfStarter(srun)
		gpus, _ := findOption(st.options, "gpus-per-task")
		_, bound := findOption(st.options, "gpu-bind")
		if lastNumber(gpus.Value) != 1 || bound || st.perNode == 1 {
			continue
		}
		a := c.Getenv("LOCAL_RANK")
		switch {
		case a != nil && slices.ContainsFunc(a.Value.Refs(), func(r *script.Ref) bool { return r.Name == "SLURM_LOCALID" }):
			hits = append(hits, hit{at: a.At, says: "LOCAL_RANK is $SLURM_LOCALID, and --gpus-per-task=1 shows each task one GPU"})
		case s.usesJAX() && !s.assignsVariable("JAX_LOCAL_DEVICE_IDS") && !choosesDevices(c):
			hits = append(hits, hit{at: gpus.At, says: "JAX takes SLURM_LOCALID for its GPU, and --gpus-per-task=1 shows each task one GPU"})
		}
	}
	return hits
}

func totalProcesses(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		f, _ := l.findFlag("num-processes")
		st := s.stepOfLaunch(l)
		if n, _ := f.value.Int(); l.kind == "accelerate" && n > 1 && n == st.gpus && l.isMultiNode(st) {
			says := fmt.Sprintf("--num_processes %d is the number of one machine's GPUs, and there are several machines", n)
			hits = append(hits, hit{at: f.value.Origin(), says: says})
		}
	}
	return hits
}

// backgroundWithoutWait finds steps in the background of a batch script behind which
// nothing waits, and nothing else takes long.
func backgroundWithoutWait(s *subject) []hit {
	if !s.isBatch() {
		return nil
	}
	brief := []string{"echo", "printf", "date", "true", ":", "[", "test", "set", "unset", "shift", "sleep", "hostname"}
	var first *script.Command
	for _, c := range s.Commands {
		seconds := script.Word{}
		if len(c.Words) > 1 {
			seconds = c.Words[1]
		}
		n, known := seconds.Int()
		switch {
		case c.Captured || c.Uncalled:
		case first == nil && c.Name() == "srun" && c.Background && s.startsTraining(c):
			first = c
		case c.Background:
		case !slices.Contains(brief, c.Name()) || c.Name() == "sleep" && (!known || n > 60):
			first = nil
		}
	}
	if first == nil {
		return nil
	}
	return []hit{{at: first.At}}
}

func dosLineEnds(s *subject) []hit {
	if at := s.CarriageReturn; at >= 0 && (s.isBatch() || s.Shebang == s.Start) {
		return []hit{{at: at}}
	}
	return nil
}

func shebangNotFirst(s *subject) []hit {
	switch {
	case len(s.Directives) == 0 || s.Submitted || s.Shebang == s.Start:
		return nil
	case s.Shebang < 0:
		return []hit{{at: s.Directives[0].At, severity: Warning, says: "a script with #SBATCH lines has no #! line"}}
	}
	return []hit{{at: s.Shebang}}
}
