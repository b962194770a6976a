package lint

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// hostSlots matches a list of hosts of mpirun or horovodrun: host1:4,host2:4.
var hostSlots = regexp.MustCompile(`^[\w.-]+(:\d+)?(,[\w.-]+(:\d+)?)*$`)

// mpiSlots finds more processes than the hosts of mpirun have slots.
func mpiSlots(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("mpirun", "mpiexec", "orterun", "horovodrun") {
		n, at, slots, source := 0, 0, 0, ""
		free := false
		for i, w := range c.Words[1:] {
			next := c.Arg(i + 2)
			switch text := w.Text(); text {
			case "-np", "-n", "--np":
				n, _ = strconv.Atoi(next)
				at = w.At
			case "-H", "--host", "--hosts": // -hosts of Intel MPI takes any number of processes
				if slots = countSlots(next); slots > 0 {
					source = "the hosts in " + text
				}
			case "--oversubscribe", "-oversubscribe", "--hostfile", "-hostfile", "-machinefile", "--machinefile", "-f",
				"--map-by", "-map-by", "-ppn", "-perhost":
				free = free || !strings.Contains(text, "map-by") || strings.Contains(next, "OVERSUBSCRIBE")
			}
		}
		h := hit{at: at}
		asked := slices.ContainsFunc(s.Batch, func(o script.Option) bool { return strings.HasPrefix(o.Name, "ntasks") })
		if slots == 0 && c.Name() != "horovodrun" && asked && s.job.tasks > 0 && len(c.Via) == 0 && !bytes.Contains(s.Text, []byte("impi")) {
			slots, source, h.severity = s.job.tasks, "the job", Warning
		}
		if at == 0 || n == 0 || slots == 0 || free || n <= slots {
			continue
		}
		h.message = fmt.Sprintf("%s starts %d processes, but %s has %s", c.Name(), n, source, countOf(slots, "slot"))
		if source != "the job" {
			h.message = strings.Replace(h.message, " has ", " have ", 1)
		}
		hits = append(hits, h)
	}
	return hits
}

func countSlots(list string) (slots int) {
	if !hostSlots.MatchString(list) {
		return 0
	}
	for host := range strings.SplitSeq(list, ",") {
		_, number, _ := strings.Cut(host, ":")
		n, err := strconv.Atoi(number)
		if err != nil {
			n = 1
		}
		slots += n
	}
	return slots
}

// srunMPI finds mpirun that srun starts in several tasks.
func srunMPI(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("mpirun", "mpiexec", "orterun", "horovodrun") {
		if s.onSeveral(c) && !c.Branch {
			st := s.stepOfStarter(c.Starter("srun"))
			hits = append(hits, hit{at: c.At, message: "srun starts " + c.Name() + " " + timesOf(max(st.tasks, st.nodes))})
		}
	}
	return hits
}

// mpiExports finds exported variables that mpirun does not pass to the other hosts.
func mpiExports(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("mpirun", "mpiexec", "orterun") {
		text := c.Text()
		hosts := slices.ContainsFunc(c.Words[1:], func(w script.Word) bool {
			return slices.Contains([]string{"-H", "-host", "--host", "--hostfile", "-hostfile", "-machinefile", "--machinefile"}, w.Text())
		})
		if !hosts || s.isBatch() || strings.Contains(text, "localhost") || strings.Contains(text, "-genv") ||
			strings.Contains(text, "mca_base_env_list") {
			continue
		}
		for _, a := range s.Assignments {
			if readByPrograms.MatchString(a.Name) && a.Exported > 0 && a.Exported < c.Seq && a.Depth == 0 && !strings.Contains(text, a.Name) {
				hits = append(hits, hit{at: a.At, message: "mpirun does not pass " + a.Name + " to the other hosts"})
			}
		}
	}
	return hits
}
