package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// containerOptions returns the words of docker run between its subcommand and the program. open means
// that a variable may hold more options.
func containerOptions(c, program *script.Command) (options []string, open, found bool) {
	words := c.Words[1 : len(c.Words)-len(program.Words)]
	i := slices.IndexFunc(words, func(w script.Word) bool { return w.Text() == "run" || w.Text() == "create" })
	for j, w := range words {
		options = append(options, w.Text())
		variable := w.Only()
		if variable == nil || j == i {
			continue
		}
		isImage := j == len(words)-1
		isValue := j > 0 && words[j-1].HasPrefix("-")
		open = open || variable.NamesOptions() || !isValue && !isImage
	}
	return options, open, i >= 0
}

func dockerWithoutHostNetwork(s *subject) []hit {
	var hits []hit
	for _, c := range s.commandsNamed("docker", "podman", "nerdctl", "nvidia-docker") {
		i := slices.IndexFunc(s.Commands, func(o *script.Command) bool { return len(o.Via) > 0 && o.Via[len(o.Via)-1] == c })
		if i < 0 {
			continue
		}
		if words, open, found := containerOptions(c, s.Commands[i]); found && !open && ownNetwork(words) && s.spansNodes(c) {
			hits = append(hits, hit{at: c.At, message: "multi-node training in " + c.Name() + " run without --network=host"})
		}
	}
	return hits
}

// ownNetwork reports whether the options select a network that other hosts cannot reach. A
// named network may be of any type.
func ownNetwork(options []string) bool {
	network := "bridge"
	for i, text := range options {
		name, value, found := strings.Cut(text, "=")
		if name != "--network" && name != "--net" {
			continue
		}
		if !found && i+1 < len(options) {
			value = options[i+1]
		}
		network = value
	}
	return slices.Contains([]string{"bridge", "default", "none", "slirp4netns", "pasta", "private"}, network)
}

// spansNodes reports whether a container runs one part of a training on several nodes.
func (s *subject) spansNodes(container *script.Command) bool {
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		if !slices.Contains(c.Via, container) {
			return false
		}
		if l := newLaunch(c); l != nil {
			st := s.stepOfLaunch(l)
			return len(l.program) > 0 && !l.isSingleNode(st) && (l.isMultiNode(st) || st.nodes > 1)
		}
		srun := c.Starter("srun")
		return runsPython(c) && srun != nil && s.stepOfStarter(srun).nodes > 1 && s.stepOfStarter(srun).tasks != 1
	})
}
