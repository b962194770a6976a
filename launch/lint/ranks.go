package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// ofTask reports whether a variable of Slurm differs between tasks.
func ofTask(name string) bool {
	return name == "SLURM_PROCID" || name == "SLURM_NODEID" || name == "SLURM_LOCALID"
}

func rankOnBatchLine(s *subject) []hit {
	var hits []hit
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil && c.Name() == "srun" {
			hits = append(hits, outerRanks(s, c, c.Env, nil, c.Depth+1)...)
		}
		if srun != nil {
			hits = append(hits, outerRanks(s, srun, c.Env, c.Words, c.Depth)...)
		}
	}

	for _, a := range s.Assignments { // export RANK=$SLURM_PROCID in front of srun
		ranks := []string{"RANK", "LOCAL_RANK", "NODE_RANK", "MACHINE_RANK", "GLOBAL_RANK", "GROUP_RANK", "PET_NODE_RANK"}
		if !slices.Contains(ranks, a.Name) || a.Depth > 0 || a.Exported == 0 {
			continue
		}

		for _, c := range a.Value.Chars {
			if c.Ref != nil && ofTask(c.Ref.Name) && s.laterStepsRead(a) {
				says := a.Name + "=$" + c.Ref.Name + " is set by the batch script, not by the tasks of srun"
				hits = append(hits, hit{at: c.At, message: says})
			}
		}
	}
	return hits
}

// outerRanks finds task variables that the shell outside the step expands.
func outerRanks(s *subject, srun *script.Command, env []*script.Assignment, words []script.Word, depth int) []hit {
	if s.stepOfStarter(srun).tasks == 1 {
		return nil
	}
	for _, a := range env {
		words = append(slices.Clip(words), a.Value)
	}
	var hits []hit
	for _, w := range words {
		for _, c := range w.Chars {
			if c.Ref != nil && ofTask(c.Ref.Name) && c.Ref.Depth < depth && !s.ignoresRank(c.At) && !c10dText.MatchString(w.Text()) {
				says := "$" + c.Ref.Name + " is expanded by the batch script, not by the tasks of srun"
				hits = append(hits, hit{at: c.At, message: says})
			}
		}
	}
	return hits
}

// c10dText matches the text of a shell that cannot be read, with a rank that its c10d rendezvous ignores.
var c10dText = regexp.MustCompile(`(?s)torchrun.* .*--node[-_]rank[= ]\S*\$.*--rdzv[-_]backend[= ]c10d`)

// ignoresRank reports whether the text at a place is the node rank of a c10d
// rendezvous, which ignores it (rule c10d-with-node-rank).
func (s *subject) ignoresRank(at int) bool {
	return slices.ContainsFunc(s.launches, func(l *launch) bool {
		f, ok := l.nodeRank()
		return ok && l.backend() == "c10d" && slices.ContainsFunc(f.value.Chars, func(c script.Char) bool {
			return c.At == at
		})
	})
}

// readsVariable reports whether a training may read a rank, or MASTER_ADDR, from its environment.
// torchrun assigns ranks to its processes, and so do other launchers with a flag for the node's rank.
// torchrun reads PET_NODE_RANK if the flag is not set.
func readsVariable(c *script.Command, name string) bool {
	l := newLaunch(c)
	if l == nil || name == "MASTER_ADDR" {
		return name != "PET_NODE_RANK"
	}
	if _, given := l.nodeRank(); given {
		return false
	}
	return (l.kind == "torchrun") == (name == "PET_NODE_RANK") && l.backend() == "static"
}

// laterStepsRead reports whether later tasks that read the variable inherit it.
func (s *subject) laterStepsRead(a *script.Assignment) bool {
	for _, c := range s.Commands {
		srun := c.Starter("srun")
		if srun == nil || srun.Seq < a.Exported || s.stepOfStarter(srun).tasks == 1 ||
			!startsTrainer(c) || !readsVariable(c, a.Name) {
			continue
		}
		inside := func(own *script.Assignment) bool { return own.Name == a.Name && slices.Contains(own.Via, srun) }
		if has := c.Getenv(a.Name); has == a || has == nil && !slices.ContainsFunc(s.Assignments, inside) {
			return true
		}
	}
	return false
}

func tasksPerNode(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		srun := l.Starter("srun")
		switch {
		case srun != nil && !l.perTask():
			st := s.stepOfStarter(srun)
			if st.perNode > 1 {
				says := fmt.Sprintf("%d tasks per node each start %s", st.perNode, l.kind)
				hits = append(hits, hit{at: tasksAt(s, srun), message: says})
			}
		case l.Depth > 0 || !s.isBatch() || l.kind != "torchrun":
		case s.job.perNode > 1 && !l.perTask() && l.isMultiNode(s.job):
			hits = append(hits, hit{
				at: tasksAt(s, nil), severity: Warning,
				message: fmt.Sprintf("%d tasks per node are requested, but there is only one torchrun", s.job.perNode),
				why:     "the CPUs are divided among tasks that do not exist, and once srun starts torchrun, each task starts its own",
			})
		}
	}
	return hits
}

// tasksAt returns the place of the number of tasks.
func tasksAt(s *subject, srun *script.Command) int {
	var options []script.Option
	if srun != nil {
		options = srun.Options
	}
	for _, list := range [][]script.Option{options, s.Batch} {
		for _, name := range []string{"ntasks-per-node", "ntasks"} {
			if o, ok := findOption(list, name); ok {
				return o.At
			}
		}
	}
	if srun != nil {
		return srun.At
	}
	return 0
}

func pythonRunsOnce(s *subject) []hit {
	if !s.isBatch() || !s.job.wantsGPUs() || len(s.launches) > 0 {
		return nil
	}
	// More tasks than GPUs on one node are probably meant as CPUs.
	if s.job.nodes <= 1 && (s.job.perNode <= 1 || s.job.gpus > 0 && s.job.perNode > s.job.gpus) {
		return nil
	}
	var hits []hit
	if s.startsUnread() || len(s.commandsNamed("mpirun", "mpiexec", "horovodrun", "jsrun", "ray")) > 0 ||
		slices.ContainsFunc(s.Commands, func(c *script.Command) bool { return c.Depth > 0 }) {
		return nil
	}
	for _, c := range s.Commands {
		if c.Depth > 0 {
			return nil
		}
		file, arguments := pythonScript(c)
		isLauncher := slices.ContainsFunc(arguments, func(w script.Word) bool { // the program itself is told the nodes
			name, _, _ := w.Cut('=')
			return strings.HasSuffix(name.Text(), ".py") || slices.Contains([]string{
				"--hostfile", "--nnodes", "--machine_rank", "--master_addr", "--master-addr",
			}, name.Text())
		})
		if file == "" || c.Test || c.Background || c.InFunction || isPreparation(file) || isLauncher {
			continue
		}
		if c.Loop && slices.ContainsFunc(arguments, func(w script.Word) bool { return len(w.Refs()) > 0 }) {
			continue // once for each task
		}
		size := fmt.Sprintf("%d tasks per node", s.job.perNode)
		switch {
		case s.job.tasks > 0 && s.job.nodes > 1:
			size = fmt.Sprintf("%d tasks on %d nodes", s.job.tasks, s.job.nodes)
		case s.job.nodes > 1:
			size = fmt.Sprintf("%d nodes", s.job.nodes)
		}
		h := hit{at: c.At, message: "the job has " + size + ", but python is started by the batch script itself"}
		if s.job.nodes == 1 { // the program may start its own processes, or use all GPUs from one
			h.severity = Warning
			h.why = "a batch script runs once: unless the program starts its own processes, it uses one GPU"
		}
		hits = append(hits, h)
	}
	return hits
}

// isPreparation reports whether a script's name suggests a step that runs once before a
// training.
func isPreparation(file string) bool {
	file = strings.ToLower(file)
	for _, word := range []string{
		"prep", "download", "setup.py", "convert", "tokeniz", "launch", "submit", "plot", "collect", "merge", "zero_to_fp32",
		"config", "spawn", "runner",
	} {
		if strings.Contains(file, word) {
			return true
		}
	}
	return false
}

// nnodesMismatch finds launchers and programs that are told another number of nodes than their step or job has.
func nnodesMismatch(s *subject) []hit {
	hits := programMismatch(s)
	for _, l := range s.launches {
		hits = append(hits, launchMismatch(s, l)...)
	}
	return hits
}

func launchMismatch(s *subject, l *launch) []hit {
	srun := l.Starter("srun")
	if l.kind != "torchrun" || srun == nil || l.Branch || l.open || usesPET(s) {
		return nil
	}
	st := s.stepOfStarter(srun)
	// The script may start one step per node.
	_, chosen := findOption(srun.Options, "nodelist")
	if st.tasks == 1 && s.job.nodes != 1 && (chosen || l.Background) {
		return nil
	}
	want := st.nodes
	if l.perTask() {
		want = st.tasks
	}
	low, high, known := l.nodeRange(st)
	if high == 1 && l.differsByTask() {
		return nil // separate runs
	}
	if !known || want == 0 || low <= want && want <= high {
		return nil
	}
	at, says := l.At, fmt.Sprintf("torchrun without --nnodes uses one node, but srun starts it %s", timesOf(want))
	if f, ok := l.nnodes(); ok {
		at, says = f.value.Origin(), fmt.Sprintf("torchrun waits for %s, but srun starts it %s",
			countOf(high, "node"), timesOf(want))
	}
	return []hit{{at: at, message: says}}
}

func timesOf(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// usesPET reports whether the script sets torchrun's flags as PET_... variables.
func usesPET(s *subject) bool {
	for a := range s.sets() {
		if strings.HasPrefix(a.Name, "PET_") {
			return true
		}
	}
	return false
}

func workersInOtherJobs(s *subject) []hit {
	if !s.isBatch() || s.job.nodes != 1 {
		return nil
	}
	var hits []hit
	for _, l := range s.launches {
		low, _, known := l.nodeRange(s.job)
		f, ok := l.nnodes()
		conf, _ := l.findFlag("rdzv-conf")
		ownTimeout := strings.Contains(conf.value.Text(), "timeout=")
		if l.kind != "torchrun" || !known || low < 2 || !ok || l.Branch || ownTimeout || l.Remote || s.sharesHost(l) {
			continue
		}
		if srun := l.Starter("srun"); srun != nil && l.perTask() {
			continue
		}
		hits = append(hits, hit{
			at:      f.value.Origin(),
			message: fmt.Sprintf("the job has one node, but torchrun waits for %d", low),
		})
	}
	return hits
}

// processesExceedGPUs finds more processes on a node than visible devices, or than GPUs of the job.
func processesExceedGPUs(s *subject, l *launch) []hit {
	st := s.stepOfLaunch(l)
	n, f, known := l.processesPerNode(st)
	// deepspeed ignores the devices if it gets a number.
	if !known || l.kind == "deepspeed" {
		return nil
	}
	if hits := exceedsVisible(l, n, f); hits != nil || l.Remote {
		return hits
	}
	_, devices := l.visibleDevices()
	h := hit{at: f.value.Origin(), message: fmt.Sprintf("%d processes per node, but %s", n, countOf(st.gpus, "GPU"))}
	switch {
	case st.gpus > 0 && n > st.gpus && devices >= n:
		h.severity = Warning
		h.why = "Slurm gives the job no more GPUs: other jobs use the rest, and most clusters hide them " +
			"(\"invalid device ordinal\")"
	case st.gpus > 0 && n > st.gpus:
	case st.gpus == 0 && st.allGPUs > 0 && n*st.nodes > st.allGPUs:
		h.message = fmt.Sprintf("%d processes on each of %s, but %s in all",
			n, countOf(st.nodes, "node"), countOf(st.allGPUs, "GPU"))
	default:
		return nil
	}
	return []hit{h}
}

func exceedsVisible(l *launch, n int, f flag) []hit {
	name, devices := l.visibleDevices()
	if devices == 0 || n <= devices {
		return nil
	}
	h := hit{at: f.value.Origin(), message: fmt.Sprintf("%d processes per node, but %s has %s", n, name, countOf(devices, "device"))}
	if a := l.Getenv(name); a != nil && isPartition(a.Value) {
		h.message = fmt.Sprintf("%d processes per node, but CUDA uses only the first MIG device of %s", n, name)
		h.fix = "start a launcher for each MIG device, with that device alone in " + name
	}
	return []hit{h}
}

// visibleDevices returns the number of visible devices, or 0 if unknown, and the flag or
// variable that sets it.
func (l *launch) visibleDevices() (name string, devices int) {
	if f, ok := l.findFlag("gpu-ids"); ok && l.kind == "accelerate" {
		return "--gpu_ids", countDevices(f.value)
	}
	for _, name := range []string{
		"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
	} {
		if a := l.Getenv(name); a != nil {
			return name, countDevices(a.Value)
		}
	}
	return "", 0
}

// isPartition reports whether a list of devices begins with a MIG device.
func isPartition(w script.Word) bool { return w.HasPrefix("MIG-") }

// countDevices counts the devices of a list. It returns 0 for other values: all, none, -1.
func countDevices(w script.Word) int {
	text, known := w.Literal()
	if text = strings.Trim(text, ", "); !known || text == "" || strings.HasPrefix(text, "-") {
		return 0
	}
	if isPartition(w) {
		return 1 // CUDA uses one MIG device
	}
	names := strings.Split(text, ",")
	if first := names[0]; strings.Trim(first, "0123456789 ") != "" &&
		!strings.HasPrefix(first, "GPU-") && !strings.HasPrefix(first, "MIG-") {
		return 0
	}
	// CUDA ignores the entries from the first invalid one on.
	isInvalid := func(name string) bool { return strings.HasPrefix(strings.TrimSpace(name), "-") }
	if end := slices.IndexFunc(names, isInvalid); end > 0 {
		return end
	}
	return len(names)
}

// toldNodes matches arguments of programs that say the number of nodes.
var toldNodes = regexp.MustCompile(`^(?:--?|\+{0,2}trainer\.|--trainer\.)(?:nnodes|num[-_]nodes|n_nodes)(?:=(\d+))?$`)

// programMismatch finds programs that are told another number of nodes than the job has.
func programMismatch(s *subject) (hits []hit) {
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
				hits = append(hits, hit{
					at: w.Origin(), severity: Warning,
					message: fmt.Sprintf("the program is told %s, but the job has %d", countOf(n, "node"), s.job.nodes),
					why:     "it uses that many nodes, and the others stay idle, or it waits for some that the job does not have",
					fix:     "pass the job's own: trainer.nnodes=$SLURM_NNODES",
				})
			}
		}
	}
	return hits
}
