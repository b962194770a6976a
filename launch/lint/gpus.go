package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// gpusUnused finds launchers that start fewer processes on a node than the job has GPUs there.
func gpusUnused(s *subject) (hits []hit) {
	if len(s.launches) != 1 || usesPET(s) {
		return append(s.pythonOnOneGPU(), s.deepspeedWithoutLauncher()...)
	}
	l := s.launches[0]
	st := s.stepOfLaunch(l)
	if st.gpus < 2 || st.perNode > 1 || l.open || l.Background || l.Loop || l.InFunction || l.Branch || l.Remote || onCPU(l.Command) ||
		len(l.program) == 0 || s.startsUnread() {
		return nil
	}
	n, f, known := l.processesPerNode(s.stepOfLaunch(l))
	h := hit{at: f.value.Origin()}
	switch _, given := l.nproc(); {
	case l.kind == "torchrun" && !given:
		h.at, n, known = l.At, 1, true
	case !known || n < 1 || l.kind == "deepspeed" || l.kind == "accelerate" && st.nodes != 1:
		return nil
	}
	if n >= st.gpus {
		return nil
	}
	h.message = fmt.Sprintf("%s starts %s on a node, and the job has %d GPUs there", l.kind, countOf(n, "process"), st.gpus)
	if l.kind == "torchrun" && h.at == l.At {
		h.fix = fmt.Sprintf("use --nproc-per-node=%d: without it, torchrun starts one process", st.gpus)
	}
	return []hit{h}
}

// forSeveral matches options of programs that say how many GPUs of a node they use.
var forSeveral = regexp.MustCompile(
	`^--?(trainer\.)?(devices|gpus|num[-_]gpus|ngpus|n[-_]gpus)(=(\d+))?$|^(?:\+?trainer\.)(?:devices|gpus)=(\d+)$`)

// pythonOnOneGPU finds srun python with one task per node on nodes with several GPUs, where the program wants as many processes as GPUs.
func (s *subject) pythonOnOneGPU() (hits []hit) {
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil || !runsPython(c) || s.usesJAX() || c.Branch || len(s.launches) > 0 {
			continue
		}
		st := s.stepOfStarter(srun)
		i := slices.IndexFunc(c.Words, func(w script.Word) bool { return forSeveral.MatchString(w.Text()) })
		if st.perNode < 1 || st.gpus < 2 || st.perNode >= st.gpus || i < 0 {
			continue
		}
		n, known := 0, false
		if _, value, found := c.Words[i].Cut('='); found {
			n, known = value.Int()
		} else if i+1 < len(c.Words) {
			n, known = c.Words[i+1].Int()
		}
		if known && n > st.perNode {
			hits = append(hits, hit{
				at:      tasksAt(s, srun),
				message: fmt.Sprintf("srun starts %s per node, and the program wants %d GPUs there", countOf(st.perNode, "task"), n),
				why: "Lightning and other programs that read Slurm's variables expect a task per GPU: they wait for ranks that " +
					"nothing starts, or use one GPU",
				fix: fmt.Sprintf("use --ntasks-per-node=%d, or srun torchrun --nproc-per-node=%d", n, n),
			})
		}
	}
	return hits
}

// deepspeedWithoutLauncher finds python with DeepSpeed's configuration that nothing starts on all GPUs.
func (s *subject) deepspeedWithoutLauncher() (hits []hit) {
	for _, c := range s.Commands {
		file, arguments := pythonScript(c)
		_, visible := (&launch{Command: c, kind: "python"}).visibleDevices()
		uses := slices.ContainsFunc(arguments, func(w script.Word) bool {
			name, value, _ := w.Cut('=')
			return name.Text() == "--deepspeed" && !strings.HasPrefix(value.Text(), "false")
		})
		if file == "" || !uses || c.Depth > 0 || c.Branch || c.InFunction || isPreparation(file) || max(visible, s.job.gpus) < 2 ||
			visible == 1 {
			continue
		}
		hits = append(hits, hit{
			at: c.At, message: fmt.Sprintf("python starts one process, for %d GPUs", max(visible, s.job.gpus)),
			why: "without a launcher, DeepSpeed uses one GPU and splits nothing: the model may not fit",
			fix: "use deepspeed or torchrun --nproc-per-node=GPUS in place of python",
		})
	}
	return hits
}

// noGPUs finds jobs that start a launcher for several GPUs and ask for none.
func noGPUs(s *subject) []hit {
	asks := func(o script.Option) bool {
		text := o.Value.Text()
		return strings.HasPrefix(o.Name, "gpu") || o.Name == "gres" || strings.HasPrefix(o.Name, "tres") || o.Name == "exclusive" ||
			(o.Name == "constraint" || o.Name == "partition") && strings.Contains(text, ":")
	}
	if !s.isBatch() || s.Heterogeneous || containsFunc(s.slurmOptions, asks) {
		return nil
	}
	for _, l := range s.launches {
		n, _, known := l.processesPerNode(s.stepOfLaunch(l))
		f, given := l.nproc()
		byGPU := given && (f.value.Text() == "gpu" || f.value.Text() == "auto")
		if l.InFunction || l.Branch || onCPU(l.Command) || !byGPU && (!known || n < 2) {
			continue
		}
		return []hit{{at: s.Directives[0].At,
			message: fmt.Sprintf("the job asks for no GPUs, and %s starts %s per node", l.kind, countOf(max(n, 2), "process"))}}
	}
	return nil
}

// oneCPU finds launchers that start more processes than their task has CPUs.
func oneCPU(s *subject) []hit {
	for _, l := range s.launches {
		st := s.stepOfLaunch(l)
		o, given := findOption(st.options, "cpus-per-task")
		cpus, known := o.Value.Int()
		n, f, sure := l.processesPerNode(st)
		if s.isBatch() && given && known && sure && n > 1 && cpus < n && st.perNode == 1 && !l.InFunction {
			return []hit{{at: f.value.Origin(), message: fmt.Sprintf("%s starts %d processes in a task with %s", l.kind, n, countOf(cpus, "CPU"))}}
		}
	}
	return nil
}

// devicesShared finds tasks of a step that all see fewer GPUs than there are tasks.
func devicesShared(s *subject) (hits []hit) {
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil || !runsPython(c) || c.Branch || choosesDevices(c) {
			continue
		}
		a := c.Getenv("CUDA_VISIBLE_DEVICES")
		if a == nil || a.Depth > 0 {
			continue
		}
		st := s.stepOfStarter(srun)
		if n := countDevices(a.Value); n > 0 && st.perNode > n && st.wantsGPUs() {
			hits = append(hits, hit{
				at: a.At, severity: Warning,
				message: fmt.Sprintf("%d tasks per node, but CUDA_VISIBLE_DEVICES has %s", st.perNode, countOf(n, "device")),
				why:     "those with a local rank without a device fail with \"invalid device ordinal\", or all share the first",
				fix:     "remove CUDA_VISIBLE_DEVICES: Slurm sets it for the job's GPUs",
			})
		}
	}
	return hits
}

// toldNodes matches arguments of programs that say the number of nodes.
var toldNodes = regexp.MustCompile(`^(?:--?|\+{0,2}trainer\.|--trainer\.)(?:nnodes|num[-_]nodes|n_nodes)(?:=(\d+))?$`)

// nodesTold finds programs that are told another number of nodes than the job has.
func nodesTold(s *subject) (hits []hit) {
	if !s.isBatch() || s.job.nodes < 2 || s.Heterogeneous {
		return nil
	}
	for _, c := range s.Commands {
		if !runsPython(c) || c.Branch || c.InFunction || c.Background {
			continue
		}
		for i, w := range c.Words {
			if !toldNodes.MatchString(w.Text()) {
				continue
			}
			_, value, found := w.Cut('=')
			if !found && i+1 < len(c.Words) {
				value = c.Words[i+1]
			}
			if n, known := value.Int(); known && n != s.job.nodes {
				hits = append(hits, hit{at: w.Origin(),
					message: fmt.Sprintf("the program is told %s, but the job has %d", countOf(n, "node"), s.job.nodes)})
			}
		}
	}
	return hits
}
