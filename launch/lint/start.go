package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// startRules check how the script starts a launcher on the nodes.
func startRules() []Rule {
	return []Rule{{
		ID: "launcher-runs-once", Severity: Error,
		Title: "a batch script starts accelerate or deepspeed itself in a job of several nodes",
		Why:   "a batch script runs on the first node only, and without a hostfile the launcher knows no other: it trains there alone, or waits for nodes that never come",
		Fix:   "srun accelerate launch (--num_machines, --main_process_ip and --machine_rank in the shell of each task), with --ntasks-per-node=1; deepspeed --hostfile=FILE, which reaches the nodes itself.",
		check: launcherRunsOnce,
	}, {
		ID: "srun-deepspeed", Severity: Error,
		Title: "srun starts the deepspeed launcher on every node",
		Why:   "deepspeed starts the processes of all nodes itself: without a hostfile every node trains alone, with one every node starts the whole job again on the same port",
		Fix:   "deepspeed --hostfile=FILE in the batch script, without srun; or srun torchrun with DeepSpeed in the script.",
		check: srunDeepSpeed,
	}, {
		ID: "node-rank-constant", Severity: Error,
		Title: "every node gets the same node rank",
		Why:   "each node waits for the others as that rank, without a message until the time-out (static: 600 s)",
		Fix:   "srun bash -c 'torchrun --node-rank \"$SLURM_NODEID\" ...', in single quotes; or --rdzv-backend=c10d, which needs no rank.",
		check: nodeRankConstant,
	}, {
		ID: "foreground-loop", Severity: Error,
		Title: "a loop starts the nodes one after the other",
		Why:   "the first launcher waits for the other nodes, and the loop starts those only when the first has ended",
		Fix:   "put an & after the command, and wait after the loop; or start all of them with srun or pdsh.",
		check: foregroundLoop,
	}}
}

// onSeveral reports whether srun starts a command more than once.
func (s *subject) onSeveral(c *script.Command) bool {
	srun := c.Starter("srun")
	if srun == nil || srun.Captured {
		return false
	}
	st := s.stepOfStarter(srun)
	return st.tasks > 1 || st.tasks == 0 && st.nodes > 1
}

// startsOnFirstNode reports whether the launcher starts only on the job's first node.
func (s *subject) startsOnFirstNode(l *launch) bool {
	if l.Depth > 0 || l.Branch || l.Loop || l.Uncalled || l.open || l.Starter("kubectl") != nil {
		return false
	}
	// Another launcher may serve the other nodes.
	others := slices.ContainsFunc(s.launches, func(o *launch) bool { return o != l && (o.Depth > 0 || l.Background) })
	return s.isBatch() && s.job.nodes > 1 && !others
}

func launcherRunsOnce(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		if l.kind == "torchrun" || len(l.program) == 0 || !s.startsOnFirstNode(l) || s.hasHostfile(l) {
			continue
		}
		h := hit{at: l.At, says: fmt.Sprintf("the job has %d nodes, and %s is started by the batch script itself", s.job.nodes, l.kind)}
		if _, ok := l.findFlag("config-file"); ok {
			h.severity = Warning // the file may name a hostfile
		}
		hits = append(hits, h)
	}
	return hits
}

// hasHostfile reports whether a launcher reads the nodes from a file.
func (s *subject) hasHostfile(l *launch) bool {
	if _, ok := l.findFlag("hostfile", "H", "deepspeed-hostfile", "mpirun-hostfile"); ok {
		return true
	}
	// deepspeed looks for /job/hostfile by itself.
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		return slices.ContainsFunc(c.Redirects, func(r script.Redirect) bool { return r.Word.Text() == "/job/hostfile" }) ||
			slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.Text() == "/job/hostfile" })
	})
}

func srunDeepSpeed(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		if l.kind != "deepspeed" || len(l.program) == 0 || !s.onSeveral(l.Command) || l.Branch {
			continue
		}
		_, own := l.findFlag("no-ssh")
		// Arguments that differ between tasks make separate runs.
		if own || slices.ContainsFunc(l.Words, func(w script.Word) bool {
			return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= l.Depth && r.Depth > 0 })
		}) {
			continue
		}
		hits = append(hits, hit{at: l.At, says: "srun starts deepspeed " + timesOf(max(s.stepOfLaunch(l).tasks, s.stepOfLaunch(l).nodes))})
	}
	return hits
}

func nodeRankConstant(s *subject) []hit {
	hits := s.exportedNodeRanks()
	for _, l := range s.launches {
		_, noSSH := l.findFlag("no-ssh")
		if l.backend() != "static" || l.isSingleNode(s.stepOfLaunch(l)) || l.Branch || l.kind == "deepspeed" && !noSSH {
			continue
		}
		f, given := l.nodeRank()
		_, number := f.value.Int()
		switch {
		case !given:
			if _, host := l.host(); l.kind == "torchrun" && host && !l.open && !usesPET(s) && s.onSeveral(l.Command) && l.isMultiNode(s.stepOfLaunch(l)) {
				hits = append(hits, hit{at: l.At, says: "torchrun without --node-rank takes 0 on every node"})
			}
		case s.onSeveral(l.Command) && sameInAll(f.value, l.Depth), number && l.overHosts():
			hits = append(hits, hit{at: f.value.Origin(), says: "every node gets the node rank " + showWord(f.value)})
		}
	}
	return hits
}

// exportedNodeRanks finds PET_NODE_RANK, the variable of torchrun's flag, before srun.
func (s *subject) exportedNodeRanks() []hit {
	var hits []hit
	for _, l := range s.launches {
		a := l.Getenv("PET_NODE_RANK")
		if _, given := l.nodeRank(); a == nil || given || l.kind != "torchrun" || l.backend() != "static" || l.Branch || !s.onSeveral(l.Command) {
			continue
		}
		if sameInAll(a.Value, l.Depth) {
			hits = append(hits, hit{at: a.Value.Origin(), says: "every node gets the node rank " + showWord(a.Value)})
		}
	}
	return hits
}

// sameInAll reports whether a word is the same in all tasks. The rule
// rank-on-batch-line handles Slurm's ranks.
func sameInAll(w script.Word, depth int) bool {
	return !slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= depth || ofTask(r.Name) })
}

// overHosts reports whether a loop starts a launcher on one host after another: by ssh
// to the loop's variable, or by srun -w.
func (l *launch) overHosts() bool {
	starter := l.Starter("ssh", "srun")
	if starter == nil || !l.Loop || starter.Captured {
		return false
	}
	host := starter.Target
	if o, ok := findOption(starter.Options, "nodelist"); ok {
		host = o.Value
	}
	return slices.ContainsFunc(host.Refs(), func(r *script.Ref) bool { return r.Assigned })
}

func foregroundLoop(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		low, _, known := l.nodeRange(s.stepOfLaunch(l))
		_, nodes := l.nnodes()
		_, rank := l.nodeRank()
		if !l.overHosts() || l.Background || l.Branch || isDetached(l.Command) || known && low < 2 || !nodes && !rank {
			continue
		}
		hits = append(hits, hit{at: l.At, says: "a loop starts " + l.kind + " on one node after the other"})
	}
	for _, c := range s.Commands {
		file, _ := pythonScript(c)
		if l := (&launch{Command: c}); file == "" || !hasRank(c) || !l.overHosts() || c.Background || c.Branch || isDetached(c) {
			continue
		}
		hits = append(hits, hit{at: c.At, says: "a loop starts python on one node after the other"})
	}
	return hits
}

// hasRank reports whether a program gets a rank or a similar setting.
func hasRank(c *script.Command) bool {
	for _, name := range []string{"WORLD_SIZE", "RANK", "NODE_RANK", "MASTER_ADDR"} {
		if c.Getenv(name) != nil {
			return true
		}
	}
	return slices.ContainsFunc(c.Words, func(w script.Word) bool {
		text := w.Text()
		return strings.HasPrefix(text, "--") && (strings.Contains(text, "process") && strings.Contains(text, "id") || strings.Contains(text, "rank"))
	})
}

// isDetached reports whether a command runs on in the background by ssh or docker.
func isDetached(c *script.Command) bool {
	return slices.ContainsFunc(c.Via, func(v *script.Command) bool {
		return slices.ContainsFunc(v.Words, func(w script.Word) bool {
			text := w.Text()
			switch v.Name() {
			case "ssh":
				return text == "-f" || text == "-fn" || text == "-nf"
			case "docker", "podman", "nerdctl", "nvidia-docker":
				return text == "-d" || text == "--detach" || text == "-itd" || text == "-dit"
			}
			return false
		})
	})
}
