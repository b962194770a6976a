package lint

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func jaxPlatformName(_ *subject, a set) []hit {
	if a.Name == "JAX_PLATFORM_NAME" {
		return []hit{{at: a.At}}
	}
	return nil
}

func jaxReadsNoRank(s *subject) []hit {
	alone := slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		return startsTrainer(c) && !strings.Contains(strings.ToLower(c.Text()), "coordinator")
	})
	if !s.usesJAX() || len(s.launches) > 0 || !alone {
		return nil
	}
	for a := range s.sets() {
		if strings.Contains(strings.ToUpper(a.Name), "COORDINATOR") {
			return nil
		}
	}
	names := []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR"}
	for a := range s.sets() {
		if slices.Contains(names, a.Name) && a.Exported > 0 {
			return []hit{{at: a.At, message: a.Name + " is set for JAX"}}
		}
	}
	return nil
}

// usesJAX reports whether the script starts a JAX program.
func (s *subject) usesJAX() bool {
	for a := range s.sets() {
		if strings.HasPrefix(a.Name, "JAX_") || strings.HasPrefix(a.Name, "XLA_PYTHON_CLIENT_") {
			return true
		}
	}
	return slices.ContainsFunc(s.Commands, importsJAX)
}

// importsJAX reports whether python runs something with JAX in its name, or in its -c text.
func importsJAX(c *script.Command) bool {
	return pythonName.MatchString(c.Name()) && strings.Contains(strings.ToLower(c.Text()), "jax")
}

// jaxSteps returns the JAX programs that srun starts, each with its step, unless they choose their GPUs themselves.
func (s *subject) jaxSteps() iter.Seq2[*script.Command, step] {
	return func(yield func(*script.Command, step) bool) {
		if !s.usesJAX() || s.assignsVariable("JAX_LOCAL_DEVICE_IDS") {
			return
		}
		for _, c := range s.Commands {
			srun := c.Starter("srun")
			if srun == nil || c.Branch || !runsPython(c) && !importsJAX(c) || onCPU(c) || choosesDevices(c) {
				continue
			}
			if !yield(c, s.stepOfStarter(srun)) {
				return
			}
		}
	}
}

func jaxTasksExceedGPUs(s *subject) []hit {
	var hits []hit
	for c, st := range s.jaxSteps() {
		if st.gpus > 0 && st.perNode > st.gpus {
			says := fmt.Sprintf("%d JAX processes per node, but %s", st.perNode, countOf(st.gpus, "GPU"))
			hits = append(hits, hit{at: tasksAt(s, c.Starter("srun")), message: says})
		}
	}
	return hits
}

func jaxVariableUnread(_ *subject, a set) []hit {
	if a.Name == "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS" {
		return []hit{{at: a.At}}
	}
	return nil
}

func jaxOneTaskPerNode(s *subject) []hit {
	var hits []hit
	for c, st := range s.jaxSteps() {
		if st.nodes > 1 && st.perNode == 1 && st.gpus > 1 {
			hits = append(hits, hit{
				at:      c.At,
				message: fmt.Sprintf("JAX runs with one task per node, and each node has %s", countOf(st.gpus, "GPU")),
			})
		}
	}
	return hits
}

// cpuOption matches the words with which programs choose the CPU.
var cpuOption = regexp.MustCompile(`(?is)^(.*=)?(cpu|gloo)$|^--cpu([^-]|$)|no[-_]cuda`)

// onCPU reports whether a command chooses the CPU explicitly.
func onCPU(c *script.Command) bool {
	for _, name := range []string{"JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "ACCELERATE_USE_CPU"} {
		if a := c.Getenv(name); a != nil {
			if text, known := a.Value.Literal(); known &&
				(text == "" || text == "-1" || strings.EqualFold(text, "cpu") || name == "ACCELERATE_USE_CPU") {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.Words, func(w script.Word) bool { return cpuOption.MatchString(w.Text()) })
}

// runsPython reports whether python runs a program: a file, or a module.
func runsPython(c *script.Command) bool {
	file, _ := pythonScript(c)
	return file != "" && !isPreparation(file)
}

// choosesDevices reports whether a program's arguments select devices.
func choosesDevices(c *script.Command) bool {
	return slices.ContainsFunc(c.Words, func(w script.Word) bool {
		text := strings.ReplaceAll(strings.ToLower(w.Text()), "_", "-")
		return strings.Contains(text, "local-device") || strings.Contains(text, "local-rank")
	})
}
