package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

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
