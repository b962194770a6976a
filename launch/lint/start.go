package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

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

func launcherRunsOnce(s *subject, l *launch) []hit {
	if l.kind == "torchrun" || len(l.program) == 0 || !s.startsOnFirstNode(l) || s.hasHostfile(l) {
		return nil
	}
	h := hit{at: l.At, says: fmt.Sprintf("the job has %d nodes, and %s is started by the batch script itself", s.job.nodes, l.kind)}
	if _, ok := l.findFlag("config-file"); ok {
		h.severity = Warning // the file may name a hostfile
	}
	return []hit{h}
}

// hasHostfile reports whether a launcher reads the nodes from a file.
func (s *subject) hasHostfile(l *launch) bool {
	if f, ok := l.findFlag("hostfile", "H", "deepspeed-hostfile", "mpirun-hostfile"); ok {
		return f.value.Text() != "/dev/null"
	}
	// deepspeed looks for /job/hostfile by itself.
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		return slices.ContainsFunc(c.Redirects, func(r script.Redirect) bool { return r.Word.Text() == "/job/hostfile" }) ||
			slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.Text() == "/job/hostfile" })
	})
}

func srunDeepSpeed(s *subject, l *launch) []hit {
	if l.kind != "deepspeed" || len(l.program) == 0 || !s.onSeveral(l.Command) || l.Branch {
		return nil
	}
	_, own := l.findFlag("no-ssh")
	// Arguments that differ between tasks make separate runs.
	if own || slices.ContainsFunc(l.Words, func(w script.Word) bool {
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= l.Depth && r.Depth > 0 })
	}) {
		return nil
	}
	return []hit{{at: l.At, says: "srun starts deepspeed " + timesOf(max(s.stepOfLaunch(l).tasks, s.stepOfLaunch(l).nodes))}}
}

func nodeRankConstant(s *subject) []hit {
	// Find PET_NODE_RANK, the variable of torchrun's flag, before srun.
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
	// Does the environment of the script tell it the node's rank?
	told := slices.ContainsFunc(s.Assignments, func(a *script.Assignment) bool {
		return (a.Name == "NODE_RANK" || a.Name == "MACHINE_RANK") && len(a.Value.Refs()) > 0
	})
	for _, l := range s.launches {
		_, noSSH := l.findFlag("no-ssh")
		if l.backend() != "static" || l.isSingleNode(s.stepOfLaunch(l)) || l.Branch || l.kind == "deepspeed" && !noSSH {
			continue
		}
		f, given := l.nodeRank()
		_, number := f.value.Int()
		switch {
		case !given && l.kind == "accelerate":
			config, shared := l.findFlag("config-file")
			severalTimes := s.onSeveral(l.Command) && s.stepOfLaunch(l).nodes != 1 || l.overHosts()
			if severalTimes && !l.open && (shared || l.isMultiNode(s.stepOfLaunch(l))) && sameInAll(config.value, l.Depth) {
				hits = append(hits, hit{at: l.At, says: "accelerate without --machine_rank takes the rank of its configuration on every node"})
			}
		case !given:
			several := s.onSeveral(l.Command) && l.isMultiNode(s.stepOfLaunch(l))
			if _, host := l.host(); l.kind == "torchrun" && host && !l.open && !usesPET(s) && several {
				hits = append(hits, hit{at: l.At, says: "torchrun without --node-rank takes 0 on every node"})
			}
		case s.onSeveral(l.Command) && sameInAll(f.value, l.Depth), number && l.overHosts():
			hits = append(hits, hit{at: f.value.Origin(), says: "every node gets the node rank " + showWord(f.value)})
		case number && l.Starter("srun", "ssh", "pdsh") == nil && told && l.isMultiNode(s.job) && !s.sharesHost(l):
			says := "every node gets the node rank " + showWord(f.value) + ", and NODE_RANK is not used"
			hits = append(hits, hit{at: f.value.Origin(), says: says})
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
		number := strings.Contains(text, "process") && strings.Contains(text, "id")
		return strings.HasPrefix(text, "--") && (number || strings.Contains(text, "rank"))
	})
}

// isDetached reports whether a command runs on in the background by ssh or docker.
func isDetached(c *script.Command) bool {
	options := map[string][]string{"ssh": {"-f", "-fn", "-nf"}}
	for _, name := range dockerNames() {
		options[name] = []string{"-d", "--detach", "-itd", "-dit"}
	}
	return slices.ContainsFunc(c.Via, func(v *script.Command) bool {
		return slices.ContainsFunc(v.Words, func(w script.Word) bool { return slices.Contains(options[v.Name()], w.Text()) })
	})
}
