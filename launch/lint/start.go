package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
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
	return (s.isBatch() && s.job.nodes > 1 || s.otherNodes > 1) && !others
}

func launcherRunsOnce(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("horovodrun") {
		knows := slices.ContainsFunc(c.Words[1:], func(w script.Word) bool {
			return slices.Contains(
				strings.Fields("-H --hosts -hostfile --hostfile --host-discovery-script --version -cb --check-build"), w.Text())
		})
		if !knows && s.isBatch() && s.job.nodes > 1 && len(c.Via) == 0 && !c.Branch {
			hits = append(hits, hit{
				at: c.At, message: fmt.Sprintf("the job has %d nodes, but horovodrun has no -H", s.job.nodes),
				why: "it starts all processes on the first node",
				fix: "use srun python ..., or horovodrun -H HOST1:GPUS,HOST2:GPUS ...",
			})
		}
	}
	for _, l := range s.launches {
		hits = append(hits, startedOnce(s, l)...)
	}
	return hits
}

func startedOnce(s *subject, l *launch) []hit {
	if l.kind == "torchrun" || len(l.program) == 0 || !s.startsOnFirstNode(l) || s.hasHostfile(l) {
		return nil
	}
	h := hit{
		at: l.At,
		message: fmt.Sprintf("the job has %d nodes, but %s is started by the batch script itself",
			max(s.job.nodes, s.otherNodes), l.kind),
	}
	if s.otherNodes > 1 {
		h.fix = startElsewhere
	}
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
		return slices.ContainsFunc(c.Redirects, func(w script.Word) bool { return w.Text() == "/job/hostfile" }) ||
			slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.Text() == "/job/hostfile" })
	})
}

func srunDeepSpeed(s *subject, l *launch) []hit {
	if l.kind != "deepspeed" || len(l.program) == 0 || !s.onSeveral(l.Command) || l.Branch {
		return nil
	}
	if _, own := l.findFlag("no-ssh"); own || l.differsByTask() {
		return nil
	}
	return []hit{{
		at:      l.At,
		message: "srun starts deepspeed " + timesOf(max(s.stepOfLaunch(l).tasks, s.stepOfLaunch(l).nodes)),
	}}
}

// differsByTask reports whether arguments differ between the tasks of srun, so that these are separate runs.
func (l *launch) differsByTask() bool {
	return slices.ContainsFunc(l.Words, func(w script.Word) bool {
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Depth >= l.Depth && r.Depth > 0 })
	})
}

func nodeRankConstant(s *subject) []hit {
	// Find PET_NODE_RANK, the variable of torchrun's flag, before srun.
	var hits []hit
	for _, l := range s.launches {
		a := l.Getenv("PET_NODE_RANK")
		if _, given := l.nodeRank(); a == nil || given || l.kind != "torchrun" || l.backend() != "static" ||
			l.Branch || !s.onSeveral(l.Command) {
			continue
		}
		if sameInAll(a.Value, l.Depth) {
			hits = append(hits, hit{at: a.Value.Origin(), message: "every node has node rank " + showWord(a.Value)})
		}
	}
	// The script's environment may contain the node's rank.
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
		case number && l.Starter("srun") == nil && told && l.isMultiNode(s.job) && !s.sharesHost(l):
			says := "every node has node rank " + showWord(f.value) + ", and NODE_RANK is not used"
			hits = append(hits, hit{at: f.value.Origin(), message: says})
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

// startElsewhere is the way to all nodes of a job of PBS or LSF.
const startElsewhere = "start it on each node, once: mpirun --map-by ppr:1:node torchrun ..., pbsdsh, jsrun or ssh"

// otherNodesLine matches a line of PBS or LSF that asks for nodes.
var otherNodesLine = regexp.MustCompile(`(?m)^#(?:PBS\s+-l\s+(?:[\w=:,]*,)?(?:select|nodes)=|BSUB\s+-nnodes\s+)(\d+)`)

// countOtherNodes returns the number of nodes of a job of PBS or LSF, or 0.
func (s *subject) countOtherNodes() int {
	m := otherNodesLine.FindSubmatch(s.Text)
	if m == nil || s.isBatch() {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1])) //nolint:errcheck // digits
	return n
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
