package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// bindsToOne matches values of --gpu-bind that show each task one GPU.
var bindsToOne = regexp.MustCompile(`^(verbose,|v,)?(single:1$|per_task:1$|map_gpu:)`)

func oneDeviceVisible(s *subject) []hit {
	var hits []hit
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil || !runsPython(c) && !importsJAX(c) {
			continue
		}
		st := s.stepOfStarter(srun)
		gpus, _ := findOption(st.options, "gpus-per-task")
		one, shows := lastNumber(gpus.Value) == 1, "--gpus-per-task=1 shows each task one GPU"
		if bind, bound := findOption(st.options, "gpu-bind"); bound {
			text, _ := bind.Value.Literal()
			gpus, one, shows = bind, bindsToOne.MatchString(text), "--gpu-bind="+text+" shows each task one GPU"
		}
		if flags, _ := findOption(st.options, "gres-flags"); strings.Contains(flags.Value.Text(), "allow-task-sharing") {
			continue
		}
		if !one || st.perNode == 1 {
			continue
		}
		a := c.Getenv("LOCAL_RANK")
		switch {
		case a != nil && isLocalID(a.Value):
			hits = append(hits, hit{at: a.At, message: "LOCAL_RANK is $SLURM_LOCALID, but " + shows})
		case choosesDevices(c) && slices.ContainsFunc(c.Words, isLocalID):
			hits = append(hits, hit{at: c.At, message: "the local rank is $SLURM_LOCALID, but " + shows})
		case s.usesJAX() && !s.assignsVariable("JAX_LOCAL_DEVICE_IDS") && !choosesDevices(c):
			hits = append(hits, hit{
				at: gpus.At, message: "JAX uses SLURM_LOCALID as its GPU, but " + shows,
				fix: "use --gpus-per-node instead of --gpus-per-task, or --gpu-bind=none; or export JAX_LOCAL_DEVICE_IDS=0 " +
					"(JAX does not read LOCAL_RANK)",
			})
		}
	}
	return hits
}

func isLocalID(w script.Word) bool {
	return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Name == "SLURM_LOCALID" })
}

func totalProcesses(s *subject, l *launch) []hit {
	f, _ := l.findFlag("num-processes")
	st := s.stepOfLaunch(l)
	if n := st.resolveNumber(f.value); l.kind == "accelerate" && n > 1 && n == st.gpus && l.isMultiNode(st) {
		says := fmt.Sprintf("--num_processes %d is the number of GPUs of one machine, but the job has several machines", n)
		return []hit{{at: f.value.Origin(), message: says}}
	}
	return nil
}

func llamaFactoryNodeRank(s *subject) []hit {
	var hits []hit
	for _, c := range s.commandsNamed("llamafactory-cli", "lmf") {
		nodes := c.Getenv("NNODES")
		if nodes == nil || c.Getenv("NODE_RANK") != nil || s.assignsVariable("NODE_RANK") {
			continue
		}
		if n, known := nodes.Value.Int(); known && n < 2 {
			continue
		}
		h := hit{at: nodes.At, message: "NNODES is set for llamafactory-cli, but not NODE_RANK", severity: Warning}
		if rank := c.Getenv("RANK"); rank != nil {
			h = hit{at: rank.At, message: "llamafactory-cli reads NODE_RANK, not RANK"}
		}
		hits = append(hits, h)
	}
	return hits
}

func deepspeedMasterAddr(s *subject, l *launch) []hit {
	_, host := l.host()
	_, chosen := l.findFlag("include", "i")
	if l.kind != "deepspeed" || !s.hasHostfile(l) || host || chosen || l.open || s.assignsVariable("MASTER_ADDR") {
		return nil
	}
	return []hit{{at: l.At}}
}

// devicesIgnored finds GPUs in CUDA_VISIBLE_DEVICES that deepspeed does not use, because a flag chooses among all.
func devicesIgnored(_ *subject, l *launch) []hit {
	a := l.Getenv("CUDA_VISIBLE_DEVICES")
	if l.kind != "deepspeed" || a == nil || a.Branch {
		return nil
	}
	text, known := a.Value.Literal()
	devices := strings.Split(strings.ReplaceAll(text, " ", ""), ",")
	first := true // the same GPUs as those that deepspeed counts
	for i, device := range devices {
		first = first && device == strconv.Itoa(i)
	}
	for _, name := range []string{"num-gpus", "include", "i", "exclude", "e"} {
		f, ok := l.findFlag(name)
		chosen, literal := f.value.Literal()
		if _, list, _ := strings.Cut(chosen, ":"); !ok || !known || text == "" || first || !literal || list == strings.Join(devices, ",") {
			continue
		}
		return []hit{{at: a.At, message: "deepspeed ignores CUDA_VISIBLE_DEVICES=" + lineerr.Clip(text) + " because of --" + strings.ReplaceAll(name, "-", "_")}}
	}
	return nil
}

func deepspeedWithoutHostfile(s *subject, l *launch) []hit {
	f, _ := l.findFlag("num-nodes")
	n, known := f.value.Int()
	launcher, _ := l.findFlag("launcher")
	if l.kind != "deepspeed" || !known || n < 2 || l.open || s.hasHostfile(l) || len(launcher.value.Chars) > 0 || s.isBatch() || l.Depth > 0 || l.Remote {
		return nil
	}
	return []hit{{at: f.value.Origin(), message: fmt.Sprintf("deepspeed --num_nodes %d without --hostfile", n)}}
}

func gidIndexPinned(_ *subject, a set) []hit {
	if text, known := a.Value.Literal(); a.Name == "NCCL_IB_GID_INDEX" && known && text != "" && text != "-1" {
		return []hit{{at: a.At, message: "NCCL_IB_GID_INDEX is always " + text}}
	}
	return nil
}

func (s *subject) startsTraining(srun *script.Command) bool {
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		return slices.Contains(c.Via, srun) && startsTrainer(c)
	})
}

// backgroundWithoutWait finds background steps of a batch script that are not followed by
// wait or by a long-running command.
func backgroundWithoutWait(s *subject) []hit {
	if !s.isBatch() {
		return nil
	}
	brief := []string{
		"echo", "printf", "date", "true", ":", "[", "test", "set", "unset", "shift", "sleep", "hostname", "exit",
	}
	var first *script.Command
	for _, c := range s.Commands {
		seconds := script.Word{}
		if len(c.Words) > 1 {
			seconds = c.Words[1]
		}
		n, known := seconds.Int()
		switch {
		case c.Test && c.Loop: // a loop may wait: until [ -f done ]; do sleep 5; done
			first = nil
		case c.InFunction:
		case first == nil && c.Background && (c.Name() == "srun" && s.startsTraining(c) || c.Depth == 0 && startsTrainer(c)):
			first = c
		case c.Background:
		case !slices.Contains(brief, c.Name()) || c.Name() == "sleep" && (c.Loop || !known || n > 60):
			first = nil
		}
	}
	if first == nil {
		return nil
	}
	return []hit{{at: first.At}}
}

func backslashNotLast(s *subject) []hit {
	var hits []hit
	for _, at := range s.Blanks {
		hits = append(hits, hit{at: at})
	}
	return hits
}

func dosLineEnds(s *subject) []hit {
	if at := s.CarriageReturn; at >= 0 {
		return []hit{{at: at}}
	}
	return nil
}

func shebangNotFirst(s *subject) []hit {
	switch {
	case len(s.Directives) > 0 && s.marked:
		return []hit{{at: 0, message: "a byte order mark (UTF-8 BOM) precedes the first line"}}
	case len(s.Directives) == 0 && s.Shebang < 0 && len(s.spacedOptions()) > 0:
		return []hit{{at: 0, severity: Warning, message: "a script with sbatch options has no #! line"}}
	case len(s.Directives) == 0 || s.Shebang == 0:
		return nil
	case s.Shebang < 0:
		return []hit{{at: s.Directives[0].At, severity: Warning, message: "a script with #SBATCH lines has no #! line"}}
	}
	return []hit{{at: s.Shebang}}
}
