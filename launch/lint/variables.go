package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func worldSizeAsNodes(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		f, ok := l.findFlag("nnodes", "num-machines")
		rank, _ := l.nodeRank()
		if r := rank.value.Only(); !ok || r != nil && r.Name == "RANK" && !s.assignsVariable("WORLD_SIZE") {
			continue // platforms such as Kubeflow set WORLD_SIZE and RANK for nodes
		}
		for _, c := range f.value.Chars {
			if c.Ref != nil && c.Ref.Name == "WORLD_SIZE" {
				hits = append(hits, hit{at: c.At, message: "the number of nodes is $WORLD_SIZE"})
			}
		}
	}
	return append(hits, worldSizeOfNodes(s)...)
}

// worldSizeOfNodes finds WORLD_SIZE=$SLURM_NNODES where each node has several
// processes, and WORLD_SIZE=2 that a launcher takes for nodes.
func worldSizeOfNodes(s *subject) []hit {
	var hits []hit
	hasTasks := func(srun *script.Command) bool { return s.stepOfStarter(srun).perNode > 1 }
	tasks := s.job.perNode > 1 || slices.ContainsFunc(s.commandsNamed("srun"), hasTasks)
	for a := range s.sets() {
		if a.Name != "WORLD_SIZE" {
			continue
		}
		r := a.Value.Only()
		nodes := r != nil && slices.Contains([]string{"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES", "NUM_NODES"}, r.Name)

		launched := slices.ContainsFunc(s.launches, func(l *launch) bool { return l.kind == "torchrun" && !l.perTask() })
		if nodes && (tasks || launched) {
			hits = append(hits, hit{at: a.Value.Origin(), message: "WORLD_SIZE is set to the number of nodes, " + r.String()})
		}
		if n, number := a.Value.Int(); number {
			if n == s.job.nodes && n > 1 && tasks {
				hits = append(hits, hit{at: a.Value.Origin(), message: fmt.Sprintf("WORLD_SIZE is set to the number of nodes, %d", n)})
			}
			for _, l := range s.launches {
				f, ok := l.nnodes()
				if ok && len(f.value.Chars) > 0 && f.value.Origin() == a.Value.Origin() {
					hits = append(hits, hit{at: a.At, message: "WORLD_SIZE is set, and passed to " + l.kind + " as the number of nodes"})
				}
			}
		}
	}
	return hits
}

func ncclDebugAlways(_ *subject, a set) []hit {
	if a.Name != "NCCL_DEBUG" || a.Branch || a.command != nil || a.Exported == 0 {
		return nil // set for one command, perhaps for debugging
	}
	text, known := a.Value.Literal()
	if level := strings.ToUpper(text); known && (level == "INFO" || level == "TRACE") {
		return []hit{{at: a.At, message: "NCCL_DEBUG=" + text + " is enabled for every run"}}
	}
	return nil
}
