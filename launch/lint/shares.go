package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
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
	h.message = fmt.Sprintf("%s starts %s on a node, and the job has %d GPUs there", l.kind, processes(n), st.gpus)
	if l.kind == "torchrun" && h.at == l.At {
		h.fix = fmt.Sprintf("use --nproc-per-node=%d: without it, torchrun starts one process", st.gpus)
	}
	return []hit{h}
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
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
			message: fmt.Sprintf("the job asks for no GPUs, and %s starts %s per node", l.kind, processes(max(n, 2)))}}
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

// transportOff finds NCCL_IB_DISABLE=1 in a job of several nodes.
func transportOff(s *subject, a set) []hit {
	if text, _ := a.Value.Literal(); a.Name == "NCCL_IB_DISABLE" && text == "1" && !a.Branch && (a.Exported > 0 || a.command != nil) &&
		s.spansSeveral(a.command) {
		return []hit{{at: a.At}}
	}
	return nil
}

// exitStatusLost finds training whose exit status a pipe hides.
func exitStatusLost(s *subject) []hit {
	matters := regexp.MustCompile(`\$\?|set -\w*e|requeue|afterok`).Match(s.Text)
	keeps := slices.ContainsFunc(s.commandsNamed("set"), func(c *script.Command) bool { return strings.Contains(c.Text(), "pipefail") })
	if !s.isBatch() || keeps || strings.Contains(string(s.Text), "PIPESTATUS") || strings.Contains(string(s.Text), "pipefail") {
		return nil
	}
	for i, c := range s.Commands {
		if !c.Piped || c.Depth > 0 || c.Background || !(c.Name() == "srun" && s.startsTraining(c) || startsTrainer(c)) {
			continue
		}
		next := slices.IndexFunc(s.Commands[i+1:], func(o *script.Command) bool { return len(o.Via) <= len(c.Via) })
		if next < 0 || s.Commands[i+1+next].Name() != "tee" {
			continue
		}
		if !matters {
			return []hit{{at: c.At, severity: Note}}
		}
		return []hit{{at: c.At}}
	}
	return nil
}

// condaInBatch finds conda activate in a shell that does not know it.
func condaInBatch(s *subject) []hit {
	if !s.isBatch() || strings.Contains(firstLine(s.Text), " -l") || strings.Contains(firstLine(s.Text), " -i") ||
		strings.Contains(firstLine(s.Text), "--login") {
		return nil
	}
	ready, strict := false, -1
	for _, c := range s.Commands {
		text := c.Text()
		switch name := c.Name(); {
		case c.Depth > 0 || len(c.Via) > 0:
		case slices.Contains([]string{"source", ".", "eval", "module", "ml", "load", ""}, name):
			ready = true
		case name == "set" && regexp.MustCompile(`^set (-\w*u|-o nounset|.* -o nounset)`).MatchString(text):
			strict = c.At
		case name == "set" && regexp.MustCompile(`^set \+\w*u`).MatchString(text):
			strict = -1
		case (name == "conda" || name == "mamba" || name == "micromamba") && c.Arg(1) == "activate":
			switch {
			case !ready && !c.InFunction && !c.Branch:
				return []hit{{at: c.At, message: name + " activate in a batch script that does not set it up"}}
			case strict >= 0:
				return []hit{{
					at: c.At, message: name + " activate under set -u",
					why: "the activation scripts of compilers and other packages read variables that are not set, which ends the " +
						"job (\"unbound variable\")",
					fix: "use set +u in front of it, and set -u after it",
				}}
			}
		}
	}
	return nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text[:min(len(text), 200)]), "\n")
	return line
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
	if other || containsFunc(s.refsOf(x), func(r *script.Ref) bool { return r.NamesOptions() || r.Several }) || !s.job.wantsGPUs() &&
		len(s.launches) == 0 ||
		s.assignsVariable("SINGULARITY_NV") || s.assignsVariable("APPTAINER_NV") {
		return nil
	}
	return []hit{{
		at: x.At, message: x.Name() + " without --nv",
		why: "the container has no driver of NVIDIA, so the program finds no GPU (\"Found no NVIDIA driver\")",
		fix: "use " + x.Name() + " exec --nv ... (--rocm for AMD)",
	}}
}

// refsOf returns the unknown parts of a command in front of the program that it starts.
func (s *subject) refsOf(x *script.Command) func(func(*script.Ref) bool) {
	return func(yield func(*script.Ref) bool) {
		for _, w := range x.Words {
			for _, r := range w.Refs() {
				if !yield(r) {
					return
				}
			}
		}
	}
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

// variableMisspelled finds names that are almost those that programs read.
func variableMisspelled(s *subject) (hits []hit) {
	known := strings.Fields(`CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_RANK
		NCCL_SOCKET_IFNAME
		GLOO_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_P2P_DISABLE OMP_NUM_THREADS TOKENIZERS_PARALLELISM PYTORCH_CUDA_ALLOC_CONF CUDA_LAUNCH_BLOCKING`)
	others := map[string]string{
		"MASTER_ADDRESS": "MASTER_ADDR", "MASTER_IP": "MASTER_ADDR",
		"CUDA_VISIBLE_GPUS": "CUDA_VISIBLE_DEVICES", "CUDA_DEVICES_VISIBLE": "CUDA_VISIBLE_DEVICES",
		"NCCL_IFNAME": "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
		"NCCL_DISABLE_IB": "NCCL_IB_DISABLE", "NCCL_DISABLE_P2P": "NCCL_P2P_DISABLE",
	}
	seen := map[string]bool{}
	for a := range s.sets() {
		if seen[a.Name] {
			continue
		}
		seen[a.Name] = a.Exported > 0 || a.command != nil
		if slices.Contains(known, a.Name) || len(a.Name) < 8 || a.Exported == 0 && a.command == nil {
			continue
		}
		right := others[a.Name]
		if near := lineerr.Nearest(a.Name, known); right == "" && near != "" && lineerr.Distance(a.Name, near) <= 2*lineerr.Letter {
			right = near
		}
		if right == "" || s.assignsVariable(right) || regexp.MustCompile(`\$\{?`+regexp.QuoteMeta(a.Name)+`\b`).Match(s.Text) {
			continue
		}
		hits = append(hits, hit{at: a.At, message: a.Name + " is set, and nothing reads it", fix: "use " + right})
	}
	return hits
}

// ownFolder matches the folder of the script itself.
var ownFolder = regexp.MustCompile(`\b(?:dirname|realpath|readlink)\b[^|)]*(?:\$0|\$\{?BASH_SOURCE)|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/`)

// scriptFolder finds the folder of the batch script, which Slurm has copied elsewhere.
func scriptFolder(s *subject) (hits []hit) {
	if !s.isBatch() || strings.Contains(string(s.Text), "SLURM_SUBMIT_DIR") || strings.Contains(string(s.Text), "scontrol show job") {
		return nil
	}
	for _, m := range ownFolder.FindAllIndex(s.Text, -1) {
		if !s.inComment(m[0]) {
			return []hit{{at: m[0]}}
		}
	}
	return nil
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

// ofBash matches what only bash understands, at the beginning of a command.
var ofBash = regexp.MustCompile(`(?m)^\s*(?:source\s|if \[\[ |\[\[ |function \w+ *\{|(?:export\s+)?\w+=\(|declare -)`)

// bashInSh finds bash's own syntax in a script for sh.
func bashInSh(s *subject) []hit {
	shell := strings.TrimSpace(strings.TrimPrefix(firstLine(s.Text), "#!"))
	if shell != "/bin/sh" && shell != "/usr/bin/env sh" || len(s.launches) == 0 && !s.isBatch() {
		return nil
	}
	for _, m := range ofBash.FindAllIndex(s.Text, -1) {
		if !s.inComment(m[0]) {
			at := m[0] + len(s.Text[m[0]:m[1]]) - len(strings.TrimLeft(string(s.Text[m[0]:m[1]]), " \t\n"))
			return []hit{{at: at, message: strings.TrimSpace(string(s.Text[m[0]:m[1]])) + " in a script for /bin/sh"}}
		}
	}
	return nil
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
