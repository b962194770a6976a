package lint

import (
	"path"
	"regexp"
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

// containerWithoutGPUs finds containers that start training and do not see the GPUs.
func containerWithoutGPUs(s *subject) (hits []hit) {
	for _, c := range s.Commands {
		if !startsTrainer(c) || c.Branch {
			continue
		}
		x := c.Starter("singularity", "apptainer")
		if x != nil {
			if hits := s.noImage(x); hits != nil {
				return hits
			}
		}
		if onCPU(c) || isTool(c) {
			continue
		}
		if x != nil {
			hits = append(hits, s.withoutDriver(x)...)
		}
		if d := c.Starter("docker", "podman", "nvidia-docker"); d != nil && newLaunch(c) != nil {
			hits = append(hits, s.dockerDevices(d, c)...)
		}
	}
	return hits
}

// isTool reports whether python prepares something.
func isTool(c *script.Command) bool {
	file, _ := pythonScript(c)
	return file != "" && isPreparation(path.Base(file))
}

// ofAMD matches names of AMD's software and of clusters with its GPUs.
var ofAMD = regexp.MustCompile(`(?i)rocm|\blumi|\bHIP_|\bROCR_|\bMI[23]\d\d|frontier`)

func (s *subject) withoutDriver(x *script.Command) []hit {
	text := x.Text()
	other := ofAMD.Match(s.Text) || strings.Contains(text, "--rocm") || strings.Contains(text, "--nv") || strings.Contains(text, "-nv")
	open := slices.ContainsFunc(x.Words, func(w script.Word) bool { // an unknown part may be --nv
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.NamesOptions() || r.Several })
	})
	if other || open || !s.job.wantsGPUs() && len(s.launches) == 0 ||
		s.assignsVariable("SINGULARITY_NV") || s.assignsVariable("APPTAINER_NV") {
		return nil
	}
	return []hit{{
		at: x.At, message: x.Name() + " without --nv",
		why: "the container has no driver of NVIDIA, so the program finds no GPU (\"Found no NVIDIA driver\")",
		fix: "use " + x.Name() + " exec --nv ... (--rocm for AMD)",
	}}
}

func (s *subject) dockerDevices(d, c *script.Command) (hits []hit) {
	options, open, found := containerOptions(d, c)
	text := strings.Join(options, " ")
	if open || !found || !slices.Contains(options, "run") {
		return nil
	}
	if a := s.notPassed(text, c); a != nil {
		hits = append(hits, hit{
			at: a.At, message: d.Name() + " run does not pass " + a.Name + " to the container",
			why: "a container gets only the variables of its options: the program does not see it",
			fix: "use " + d.Name() + " run -e " + a.Name + " ...",
		})
	}
	l := newLaunch(c)
	n, _, known := l.processesPerNode(s.stepOfLaunch(l))
	if !strings.Contains(text, "--gpus") && !strings.Contains(text, "nvidia") && !strings.Contains(text, "--device") &&
		!strings.Contains(text, "--privileged") &&
		d.Name() != "nvidia-docker" {
		hits = append(hits, hit{
			at: d.At, message: d.Name() + " run without --gpus", why: "unless nvidia is the default runtime, the container has no GPUs",
			fix: "use docker run --gpus all --ipc=host ...",
		})
	}
	if f, given := l.nproc(); (known && n > 1 || given && f.value.Text() == "gpu") && !strings.Contains(text, "--ipc") &&
		!strings.Contains(text, "--shm-size") && !strings.Contains(text, "/dev/shm") {
		hits = append(hits, hit{
			at: d.At, message: d.Name() + " run without --ipc=host or --shm-size",
			why: "the container has 64 MB of shared memory: NCCL (\"unhandled system error\") or the data loader (\"Bus error\") fails",
			fix: "use " + d.Name() + " run --ipc=host ..., or --shm-size=16g",
		})
	}
	return hits
}

// notPassed returns an exported variable for programs that a container in front of a program does not get.
func (s *subject) notPassed(options string, program *script.Command) *script.Assignment {
	text := program.Text()
	for _, a := range s.Assignments {
		if readByPrograms.MatchString(a.Name) && a.Exported > 0 && a.Exported < program.Seq && a.Depth == 0 && !a.Branch &&
			a.Name != "CUDA_VISIBLE_DEVICES" &&
			!strings.Contains(options, a.Name) && !strings.Contains(options, "--env-file") && !strings.Contains(text, a.Name) {
			return a
		}
	}
	return nil
}

// noImage finds singularity exec without an image: its first word that is no option is the program.
func (s *subject) noImage(x *script.Command) []hit {
	valued := strings.Fields(`bind env env-file home overlay pwd workdir scratch network network-args security app add-caps drop-caps dns
		hostname fusemount mount apply-cgroups`)
	i := slices.IndexFunc(x.Words, func(w script.Word) bool { return w.Text() == "exec" })
	for i++; i > 0 && i < len(x.Words); i++ {
		w := x.Words[i]
		name, _, found := w.Cut('=')
		switch option := strings.TrimLeft(name.Text(), "-"); {
		case len(w.Refs()) > 0:
			return nil
		case w.HasPrefix("--") && !found && slices.Contains(valued, option), !w.HasPrefix("--") && w.HasPrefix("-") && len(w.Text()) == 2 &&
			strings.Contains("BHWSo", option):
			i++
		case w.HasPrefix("-"):
		case pythonName.MatchString(w.Text()) || slices.Contains([]string{"torchrun", "bash", "sh", "accelerate", "deepspeed"}, w.Text()):
			return []hit{{
				at: w.At, severity: Error, message: x.Name() + " exec has no image in front of " + w.Text(),
				why: "it takes the program for the file of the image, and does not find it",
				fix: "write the image in front of the program",
			}}
		default:
			return nil
		}
	}
	return nil
}
