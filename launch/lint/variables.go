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
		ofNode := r != nil && slices.Contains([]string{"SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"}, r.Name)
		if ofNode && tasks && s.job.nodes > 1 && len(s.launches) == 0 {
			hits = append(hits, hit{
				at: a.Value.Origin(), message: "WORLD_SIZE is set to the number of one node, " + r.String(),
				why: "it is the number of processes of all nodes: each node trains alone, or ranks collide",
				fix: "use WORLD_SIZE=$SLURM_NTASKS",
			})
		}
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

func gpusPerNodeWithGres(s *subject) []hit {
	if _, ok := findOption(s.Batch, "gpus-per-node"); ok {
		return nil
	}
	severity := Error
	if !s.isBatch() {
		severity = Warning // salloc may have been asked for it
	}
	var hits []hit
	look := func(w script.Word, starter *script.Command) {
		for _, c := range w.Chars {
			if c.Ref == nil || c.Ref.Name != "SLURM_GPUS_PER_NODE" || c.Ref.Default != nil || c.Ref.Required || c.Ref.Assigned {
				continue
			}
			if starter != nil {
				if _, ok := findOption(starter.Options, "gpus-per-node"); ok {
					continue
				}
			}
			hits = append(hits, hit{at: c.At, severity: severity})
		}
	}
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if !s.isBatch() && srun == nil || !startsTrainer(c) {
			continue
		}
		for _, w := range c.Words {
			look(w, srun)
		}
	}
	if s.isBatch() {
		for _, a := range s.Assignments {
			look(a.Value, nil)
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
