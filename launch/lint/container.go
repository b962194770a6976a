package lint

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func dockerNames() []string { return []string{"docker", "podman", "nerdctl", "nvidia-docker"} }

// containerOptions returns the words of a container's command between its subcommand
// and the program inside; open: a variable may hold further options.
func containerOptions(c, program *script.Command, subcommands ...string) (options []string, open, found bool) {
	words := c.Words[1:]
	if n := len(program.Words); n > 0 && n <= len(words) {
		words = words[:len(words)-n]
	}
	i := slices.IndexFunc(words, func(w script.Word) bool { return slices.Contains(subcommands, w.Text()) })
	if i < 0 {
		return nil, false, false
	}
	for j, w := range words {
		options = append(options, w.Text())
		variable := w.Only()
		if variable == nil || j == i {
			continue
		}
		isImage := j == len(words)-1
		isValue := j > 0 && strings.HasPrefix(words[j-1].Text(), "-")
		open = open || variable.NamesOptions() || !isValue && !isImage
	}
	return options, open, true
}

// startedBy returns the command that c starts directly.
func (s *subject) startedBy(c *script.Command) *script.Command {
	for _, inner := range s.Commands {
		if n := len(inner.Via); n > 0 && inner.Via[n-1] == c {
			return inner
		}
	}
	return &script.Command{}
}

func apptainerWithoutNV(s *subject) []hit {
	for a := range s.sets() {
		if gpuVariable.MatchString(a.Name) { // it has the effect of --nv
			return nil
		}
	}
	var hits []hit
	for _, c := range s.commandsNamed("apptainer", "singularity") {
		words, open, found := containerOptions(c, s.startedBy(c), "exec", "run", "shell")
		if !found || open || c.Captured || !s.trainsOnGPUs(c) || slices.ContainsFunc(words, gpuOption.MatchString) {
			continue
		}
		hits = append(hits, hit{at: c.At, says: c.Name() + " runs a training without --nv"})
	}
	return hits
}

// gpuOption and gpuVariable match what gives a container its GPUs.
var (
	gpuOption   = regexp.MustCompile(`^(--(nv|nvccli|rocm)(=.*)?$|instance://)`)
	gpuVariable = regexp.MustCompile(`^(APPTAINER|SINGULARITY)_(NV|NVCCLI|ROCM)$`)
)

// trainsOnGPUs reports whether a container runs a training on GPUs.
func (s *subject) trainsOnGPUs(container *script.Command) bool {
	st := s.job
	if srun := container.Starter("srun"); srun != nil {
		st = s.stepOfStarter(srun)
	}
	wants := st.wantsGPUs()
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		if !slices.Contains(c.Via, container) || onCPU(c) {
			return false
		}
		if l := newLaunch(c); l != nil {
			n, known := 0, false
			if f, ok := l.nproc(); ok {
				n, known = f.value.Int()
			}
			return len(l.program) > 0 && (wants || !s.isBatch() && known && n > 1)
		}
		return wants && runsPython(c)
	})
}

// cpuOption matches the words with which programs choose the CPU.
var cpuOption = regexp.MustCompile(`(?is)^(.*=)?(cpu|gloo)$|^--cpu([^-]|$)|no[-_]cuda`)

// onCPU reports whether a command chooses the CPU explicitly.
func onCPU(c *script.Command) bool {
	for _, name := range []string{"JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "ACCELERATE_USE_CPU"} {
		if a := c.Getenv(name); a != nil {
			if text, known := a.Value.Literal(); known && (text == "" || text == "-1" || strings.EqualFold(text, "cpu") || name == "ACCELERATE_USE_CPU") {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.Words, func(w script.Word) bool { return cpuOption.MatchString(w.Text()) })
}

func dockerWithoutHostNetwork(s *subject) []hit {
	var hits []hit
	for _, c := range s.commandsNamed(dockerNames()...) {
		words, open, found := containerOptions(c, s.startedBy(c), "run", "create")
		if !found || open || c.Captured || !ownNetwork(words) || !s.spansNodes(c) {
			continue
		}
		hits = append(hits, hit{at: c.At, says: c.Name() + " run gives a training of several nodes a network of its own"})
	}
	return hits
}

// ownNetwork reports whether the options give a container a network that no other host
// reaches. A named network may be of any type.
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
