package lint

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// ownInterface matches interfaces that lead to no other node: of the loopback, of
// containers and of virtual machines.
var ownInterface = regexp.MustCompile(`^(lo|docker[0-9]*|virbr[0-9]*|veth[0-9a-f]*|podman[0-9]*|cni[0-9]*|lxcbr[0-9]*)$`)

func loopbackInterface(s *subject) []hit {
	var hits []hit
	for a := range s.sets() {
		reaches := a.command == nil && a.Exported > 0 || a.command != nil && !a.command.Branch
		if !strings.HasSuffix(a.Name, "_SOCKET_IFNAME") || a.Branch || !reaches {
			continue
		}
		text, known := a.Value.Literal()
		names := strings.Split(strings.TrimPrefix(text, "="), ",")
		leadsOut := slices.ContainsFunc(names, func(n string) bool { return !ownInterface.MatchString(n) })
		if known && (names[0] == "lo" || !leadsOut) && s.spansSeveral(a.command) {
			hits = append(hits, hit{at: a.Value.Origin(), says: a.Name + "=" + showWord(a.Value) + " in a job of several nodes"})
		}
	}
	return hits
}

// spansSeveral reports whether the script, or the job that the command submits, runs on
// several nodes.
func (s *subject) spansSeveral(command *script.Command) bool {
	if command != nil && command.Name() == "sbatch" {
		st := newStep(step{}, command.Options, false)
		return st.nodes > 1
	}
	if s.job.nodes > 1 || slices.ContainsFunc(s.srunSteps(), func(srun *script.Command) bool { return s.stepOfStarter(srun).nodes > 1 }) {
		return true
	}
	return slices.ContainsFunc(s.launches, func(l *launch) bool {
		st := s.stepOfLaunch(l)
		if l.Branch || l.isSingleNode(st) {
			return false
		}
		_, nodes := l.nnodes()
		host, meets := l.host()
		text, _ := host.Literal()
		return l.isMultiNode(st) || nodes && meets && st.nodes != 1 && !isOwnAddress(text) || l.overHosts()
	})
}
