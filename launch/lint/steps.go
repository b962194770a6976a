package lint

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// chosenAtRandom matches expansions that return a different port or name each time.
var chosenAtRandom = regexp.MustCompile(`\bRANDOM\b|\bshuf\b|\bsocket\b|free_port|\buuid`)

func portPerTask(s *subject) []hit {
	var hits []hit
	look := func(w script.Word, what string, several bool) {
		for _, c := range w.Chars {
			if several && c.Ref != nil && c.Ref.Depth > 0 && chosenAtRandom.MatchString(c.Ref.String()) {
				hits = append(hits, hit{at: c.At, message: "each task of srun chooses its own " + what})
			}
		}
	}
	for _, a := range s.Assignments {
		if i := slices.IndexFunc(a.Via, func(c *script.Command) bool { return c.Name() == "srun" }); i >= 0 && a.Name == "MASTER_PORT" {
			st := s.stepOfStarter(a.Via[i])
			look(a.Value, "MASTER_PORT", st.tasks > 1 || st.tasks == 0 && st.nodes > 1)
		}
	}
	for _, l := range s.launches {
		several := s.onSeveral(l.Command) && !l.isSingleNode(s.stepOfLaunch(l))
		if port, ok := l.port(); ok {
			look(port, "port", several)
		}
		if id, ok := l.findFlag("rdzv-id"); ok {
			look(id.value, "rendezvous ID", several)
		}
	}
	return hits
}

// localPort returns the host and port where a launcher listens on its own host. ok is false if they are unknown or
// differ from run to run.
func (l *launch) localPort() (at string, ok bool) {
	_, alone := l.findFlag("standalone")
	if alone || l.kind == "accelerate" || l.open || l.Depth > 0 || l.Remote || l.Starter("ssh") != nil {
		return "", false
	}
	host, _ := l.host()
	port, _ := l.port()
	hostText, known := host.Literal()
	portText, fixed := port.Literal()
	if !known || !fixed || hostText != "" && !isOwnAddress(hostText) || portText == "0" {
		return "", false
	}
	usual := "29500"
	if l.kind == "torchrun" && l.backend() != "static" {
		usual = "29400"
	}
	return cmp.Or(portText, usual), true
}

func samePort(s *subject) []hit {
	if usesPET(s) {
		return nil
	}
	hits := sameRank(s)
	waits := s.commandsNamed("wait")
	for i, l := range s.launches {
		port, ok := l.localPort()
		if !ok || !l.Background || l.Branch || l.InFunction || !l.isSingleNode(s.job) && l.kind == "torchrun" {
			continue
		}
		waitsBefore := func(seq int) bool {
			return slices.ContainsFunc(waits, func(w *script.Command) bool { return w.Seq > l.Seq && w.Seq < seq })
		}
		for _, next := range s.launches[i+1:] {
			other, ok := next.localPort()
			if ok && other == port && !next.Branch && !next.InFunction && !waitsBefore(next.Seq) &&
				!slices.ContainsFunc(hits, func(h hit) bool { return h.at == next.At }) {
				hits = append(hits, hit{at: next.At, message: "a second " + next.kind + " on this host listens at port " + port})
			}
		}
	}
	return hits
}

// sameRank finds launchers of several nodes that run on one host with the same node rank.
func sameRank(s *subject) (hits []hit) {
	for i, l := range s.launches {
		rank, ranked := l.nodeRank()
		port, _ := l.port()
		text, known := rank.value.Literal()
		if !ranked || !known || l.kind != "torchrun" || !l.Background || l.Branch || l.Loop || l.Depth > 0 || l.Starter("ssh") != nil ||
			!l.isMultiNode(s.job) {
			continue
		}
		for _, next := range s.launches[i+1:] {
			other, _ := next.nodeRank()
			otherPort, _ := next.port()
			if next.kind == l.kind && other.value.Text() == text && otherPort.Text() == port.Text() && !next.Branch && next.Depth == 0 &&
				next.isMultiNode(s.job) {
				hits = append(hits, hit{
					at: other.value.Origin(), message: "a second torchrun on this host has node rank " + text,
					fix: "give each its own --node-rank",
				})
			}
		}
	}
	return hits
}

// sharesNode reports whether a step with this option may share its nodes with another step.
func sharesNode(o script.Option) bool {
	return slices.Contains([]string{
		"overlap", "exact", "exclusive", "oversubscribe", "mem", "mem-per-cpu", "mem-per-gpu", "gres", "gpus", "gpus-per-node",
		"gpus-per-task", "cpus-per-gpu", "cpus-per-task", "nodelist", "relative", "exclude", "jobid", "het-group",
	}, o.Name)
}

func stepWaits(s *subject) []hit {
	if !s.isBatch() || s.assignsVariable("SLURM_OVERLAP") {
		return nil
	}
	wholeJob := func(srun *script.Command) bool {
		nodes, given := findOption(srun.Options, "nodes")
		n := s.job.resolveNumber(nodes.Value)
		return !srun.Open && !slices.ContainsFunc(srun.Options, sharesNode) && (!given || n > 0 && n == s.job.nodes) &&
			(s.job.nodes == 1 || s.stepOfStarter(srun).tasks != 1)
	}
	var running *script.Command
	for _, c := range s.Commands {
		switch {
		case c.Depth > 0 || c.InFunction:
		case c.Name() == "wait" || c.Name() == "kill":
			running = nil
		case c.Name() != "srun" || c.Branch || c.Loop || !wholeJob(c) || startsNothing(s, c):
		case running != nil:
			return []hit{{at: c.At}}
		case c.Background:
			running = c
		}
	}
	return nil
}

func srunKeepsRunning(s *subject) []hit {
	if s.assignsVariable("SLURM_KILL_BAD_EXIT") {
		return nil
	}
	var hits []hit
	for _, c := range s.commandsNamed("srun") {
		st := s.stepOfStarter(c)
		has := func(o script.Option) bool {
			return o.Name == "kill-on-bad-exit" || o.Name == "no-kill" || strings.HasPrefix(o.Name, "wait")
		}
		if (st.tasks > 1 || st.nodes > 1 && st.tasks == 0) && s.startsTraining(c) && !slices.ContainsFunc(c.Options, has) {
			hits = append(hits, hit{at: c.At})
		}
	}
	return hits
}
