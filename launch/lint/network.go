package lint

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func glooInterface(s *subject) []hit {
	var hits []hit
	for a := range s.sets() {
		if a.Name != "GLOO_SOCKET_IFNAME" {
			continue
		}
		if text, known := a.Value.Literal(); known && strings.ContainsAny(text, "^=") {
			hits = append(hits, hit{
				at:      a.Value.Origin(),
				message: a.Name + "=" + showWord(a.Value) + " has a pattern that only NCCL understands",
			})
		}
	}
	return hits
}

// ownInterface matches interfaces without a connection to other nodes: loopback, container
// and virtual machine interfaces.
var ownInterface = regexp.MustCompile(
	`^(lo|docker[0-9]*|virbr[0-9]*|veth[0-9a-f]*|podman[0-9]*|cni[0-9]*|lxcbr[0-9]*)$`)

func loopbackInterface(s *subject, a set) []hit {
	reaches := a.command == nil && a.Exported > 0 || a.command != nil && !a.command.Branch
	if !strings.HasSuffix(a.Name, "_SOCKET_IFNAME") || a.Branch || !reaches {
		return nil
	}
	text, known := a.Value.Literal()
	names := strings.Split(strings.TrimPrefix(text, "="), ",")
	leadsOut := slices.ContainsFunc(names, func(n string) bool { return !ownInterface.MatchString(n) })
	if known && (names[0] == "lo" || !leadsOut) && s.spansSeveral(a.command) {
		return []hit{{at: a.Value.Origin(), message: a.Name + "=" + showWord(a.Value) + " in a multi-node job"}}
	}
	return nil
}

// spansSeveral reports whether the script, or the job that the command submits, runs on
// several nodes.
func (s *subject) spansSeveral(command *script.Command) bool {
	if command != nil && command.Name() == "sbatch" {
		st := newStep(step{}, command.Options, false)
		return st.nodes > 1
	}
	isWide := func(srun *script.Command) bool { return s.stepOfStarter(srun).nodes > 1 }
	if s.job.nodes > 1 || slices.ContainsFunc(s.commandsNamed("srun"), isWide) {
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

func portTest(s *subject) []hit {
	var hits []hit
	for _, c := range s.commandsNamed("telnet") {
		if len(c.Words) > 2 {
			hits = append(hits, hit{
				at: c.At, message: "a port is tested with telnet",
				why: "telnet connects only while a program is listening, and none is before the job; " +
					"NCCL needs random ports between all pairs of nodes",
			})
		}
	}
	launches := len(s.launches) > 0 || len(s.commandsNamed("srun")) > 0 || len(hits) > 0
	for _, c := range s.commandsNamed("ping") {
		// A loop may wait until a host is up.
		if launches && !c.Loop && len(c.Words) > 1 {
			hits = append(hits, hit{
				at: c.At, message: "a network is tested with ping",
				why: "ping does not test ports, and NCCL needs random ports between all pairs of nodes",
			})
		}
	}
	return hits
}

// transportOff finds NCCL_IB_DISABLE=1 in a job of several nodes.
func transportOff(s *subject, a set) []hit {
	if text, _ := a.Value.Literal(); a.Name == "NCCL_IB_DISABLE" && text == "1" && !a.Branch && (a.Exported > 0 || a.command != nil) &&
		s.spansSeveral(a.command) {
		return []hit{{at: a.At}}
	}
	return nil
}
