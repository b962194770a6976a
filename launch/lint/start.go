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
	if srun == nil {
		return false
	}
	st := s.stepOfStarter(srun)
	return st.tasks > 1 || st.tasks == 0 && st.nodes > 1
}

// startsOnFirstNode reports whether the launcher starts only on the job's first node.
func (s *subject) startsOnFirstNode(l *launch) bool {
	if l.Depth > 0 || l.Branch || l.Loop || l.open || l.Starter("kubectl") != nil || s.startsUnread() {
		return false
	}
	// Another launcher may serve the other nodes.
	others := slices.ContainsFunc(s.launches, func(o *launch) bool { return o != l && (o.Depth > 0 || l.Background) })
	return s.isBatch() && s.job.nodes > 1 && !others
}

func launcherRunsOnce(s *subject, l *launch) []hit {
	if !s.startsOnFirstNode(l) || l.kind != "torchrun" && (len(l.program) == 0 || s.hasHostfile(l)) {
		return nil
	}
	h := hit{
		at:      l.At,
		message: fmt.Sprintf("the job has %d nodes, but %s is started by the batch script itself", s.job.nodes, l.kind),
	}
	if _, ok := l.findFlag("config-file"); ok && l.kind != "torchrun" {
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
		return slices.ContainsFunc(c.Redirects, func(w script.Word) bool { return w.Text() == "/job/hostfile" }) ||
			slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.Text() == "/job/hostfile" })
	})
}

// differsByTask reports whether arguments differ between the tasks of srun, so that these are separate runs.
func (l *launch) differsByTask() bool {
	return slices.ContainsFunc(l.Words, func(w script.Word) bool {
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= l.Depth && r.Depth > 0 })
	})
}

func nodeRankConstant(s *subject) []hit {
	var hits []hit
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
				hits = append(hits, hit{
					at:      l.At,
					message: "accelerate without --machine_rank uses the rank in its configuration on every node",
				})
			}
		case !given:
			several := s.onSeveral(l.Command) && l.isMultiNode(s.stepOfLaunch(l))
			if _, host := l.host(); l.kind == "torchrun" && host && !l.open && !usesPET(s) && several {
				hits = append(hits, hit{at: l.At, message: "torchrun without --node-rank uses rank 0 on every node"})
			}
		case s.onSeveral(l.Command) && sameInAll(f.value, l.Depth), number && l.overHosts():
			hits = append(hits, hit{at: f.value.Origin(), message: "every node has node rank " + showWord(f.value)})
		case number && s.takesNodes(l):
			hits = append(hits, hit{
				at: f.value.Origin(), severity: Warning,
				message: "the script takes the number of nodes, but its node rank is always " + showWord(f.value),
				why:     "each node that runs it has that rank, and waits for the others",
				fix:     "take the rank from the caller too: --node-rank=\"$NODE_RANK\"",
			})
		}
	}
	return hits
}

// sameInAll reports whether a word is the same in all tasks. The rule
// rank-on-batch-line handles Slurm's ranks.
func sameInAll(w script.Word, depth int) bool {
	return !slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= depth || ofTask(r.Name) })
}

// overHosts reports whether a loop starts a launcher on one host after another, by srun -w.
func (l *launch) overHosts() bool {
	srun := l.Starter("srun")
	if srun == nil || !l.Loop {
		return false
	}
	o, _ := findOption(srun.Options, "nodelist")
	return slices.ContainsFunc(o.Value.Refs(), func(r *script.Ref) bool { return r.Assigned })
}

// startsUnread reports whether the script may start a training by unread text, of ssh or eval.
func (s *subject) startsUnread() bool {
	return len(s.commandsNamed("eval", "ssh", "pdsh", "clush", "pssh", "parallel-ssh", "parallel", "xargs")) > 0
}

// takesNodes reports whether a script for each node gets the number of nodes and the master from its caller.
func (s *subject) takesNodes(l *launch) bool {
	given := func(w script.Word) bool {
		r := w.Only()
		if r == nil || r.Assigned || r.Edited || strings.HasPrefix(r.Name, "SLURM") {
			return false
		}
		n, known := 0, true
		if r.Default != nil {
			n, known = r.Default.Int()
		}
		return r.Default == nil || !known || n > 1
	}
	nodes, _ := l.nnodes()
	host, meets := l.host()
	return !s.isBatch() && l.Depth == 0 && !l.Branch && l.backend() == "static" && given(nodes.value) && meets && given(host) &&
		!s.sharesHost(l)
}
