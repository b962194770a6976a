package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// slurmNames are the long options of sbatch, srun and salloc, Slurm 22.05 to 25.11. Plugins add others.
const slurmNames = `account accel-bind acctg-freq allocation array autocomplete batch bb bbf bcast bcast-exclude begin bell
	burst-buffer chdir cluster-constraint clusters comment compress constraint container container-id contiguous
	consolidate-segments core-spec cores-per-socket cpu-bind cpu_bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
	disable-status distribution error epilog exact exclude exclusive export export-file external-launcher extra extra-node-info
	get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags group help
	het-group hint hold ignore-pbs immediate input interactive job-name jobid kill-command kill-on-bad-exit
	kill-on-invalid-dep label licenses mail-type mail-user mcs-label mem mem-bind mem_bind mem-per-cpu mem-per-gpu mincpus mpi
	msg-timeout multi-prog network nice no-allocate no-bell no-kill no-requeue no-shell nodefile nodelist nodes ntasks
	ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit overlap oversubscribe
	parsable partition power prefer preserve-env preserve-slurm-env priority profile prolog propagate pty qos quiet
	quit-on-interrupt reboot relative requeue reservation resv-ports segment send-libs share signal slurmd-debug sockets-per-node
	spread-job spread-segments stepmgr switches task-epilog task-prolog tasks-per-node test-only thread-spec threads
	threads-per-core time time-min tmp tree-width tres-bind tres-per-job tres-per-task uid umask unbuffered usage
	use-min-nodes user verbose version wait wait-all-nodes wait-for-children wckey wrap x11`

// slurmOptions calls yield with the options of sbatch, srun and salloc in the script.
func (s *subject) slurmOptions(yield func(script.Option) bool) {
	lists := [][]script.Option{s.Batch}
	for _, c := range s.commandsNamed("srun", "sbatch", "salloc") {
		lists = append(lists, c.Options)
	}
	for _, list := range lists {
		for _, o := range list {
			if !yield(o) {
				return
			}
		}
	}
}

// slurmOptionUnknown finds misspelled options. Slurm takes the beginning of a name for it if no other name has it.
func slurmOptionUnknown(s *subject) []hit {
	names := strings.Fields(slurmNames)
	var hits []hit
	seen := map[string]bool{}
	for o := range s.slurmOptions {
		if seen[o.Name] {
			continue
		}
		seen[o.Name] = true
		if len(o.Name) < 2 || slices.Contains(names, o.Name) || strings.HasPrefix(o.Name, "container-") || !startsWithLetter(o.Name) {
			continue
		}
		var meant []string
		for _, name := range names {
			if strings.HasPrefix(name, o.Name) {
				meant = append(meant, name)
			}
		}
		written := strings.ReplaceAll(o.Name, "_", "-")
		near := misspelled(written, names)
		if o.Name == "workdir" { // up to Slurm 17.02
			hits = append(hits, hit{at: o.At, message: "Slurm has no option --workdir any more", fix: "use --chdir"})
			continue
		}
		switch {
		case len(meant) == 1 || len(meant) == 0 && near == "":
		case len(meant) > 1:
			says := "--" + o.Name + " is the beginning of --" + strings.Join(meant, ", --")
			hits = append(hits, hit{at: o.At, message: says, fix: "write the whole name"})
		default:
			hits = append(hits, hit{at: o.At, message: "Slurm has no option --" + o.Name, fix: "use --" + near})
		}
	}
	return hits
}

// Forms of values.
var (
	gresForm    = regexp.MustCompile(`^gpu(:[A-Za-z][\w.-]*|:\d[\w.-]+)?(:\d+[kKmM]?)?(\([A-Z]:[\d,-]+\))?$`)
	usualHours  = regexp.MustCompile(`^(?:12|24|36|48|72|96|168)$`)
	hoursAsMMSS = regexp.MustCompile(`^(?:24|36|48|72|96):00$`)
)

// slurmValue finds values that Slurm rejects, or understands in another unit.
func slurmValue(s *subject) []hit {
	var hits []hit
	for o := range s.slurmOptions {
		if h := valueOf(o, s.Text); h.message != "" {
			hits = append(hits, h)
		}
	}
	total, both := findOption(s.Batch, "ntasks")
	each, also := findOption(s.Batch, "ntasks-per-node")
	n, known := total.Value.Int()
	if per, sure := each.Value.Int(); both && also && known && sure && n < per {
		hits = append(hits, hit{
			at: total.At, severity: Warning, message: fmt.Sprintf("--ntasks=%d together with --ntasks-per-node=%d", n, per),
			why: "Slurm starts the smaller number, and programs that read SLURM_NTASKS_PER_NODE, such as Lightning, wait for the others",
			fix: "remove --ntasks, and use --nodes",
		})
	}
	return hits
}

func valueOf(o script.Option, file []byte) hit {
	text, known := o.Value.Literal()
	n, number := o.Value.Int()
	rejects := "Slurm rejects the script, or the step"
	switch short := string(file[o.At:min(o.At+3, len(file))]); {
	case len(short) == 3 && short[0] == '-' && short[1] != '-' && short[2] == '=' && strings.IndexByte("NncGtpwA", short[1]) >= 0:
		return hit{at: o.At, message: short + " has a value that begins with =", why: rejects,
			fix: "use " + short[:2] + " VALUE, or the long option with ="}
	case !known || text == "":
	case o.Name == "gres":
		for entry := range strings.SplitSeq(text, ",") {
			if entry = strings.TrimPrefix(entry, "gres:"); strings.HasPrefix(entry, "gpu") && !gresForm.MatchString(entry) {
				return hit{
					at: o.Value.Origin(), message: "--gres=" + lineerr.Clip(text) + " is not of the form gpu:TYPE:NUMBER",
					why: rejects + " (\"Invalid generic resource (gres) specification\")", fix: "use --gres=gpu:4, or --gres=gpu:a100:4",
				}
			}
		}
	case strings.HasPrefix(o.Name, "mem") && o.Name != "mem-bind" && number && n > 0 && n < 1000:
		h := hit{
			at: o.Value.Origin(), message: fmt.Sprintf("--%s=%d is %d MB", o.Name, n, n),
			why: "the unit is MB, so the job is killed as soon as it uses more", fix: fmt.Sprintf("use --%s=%dG", o.Name, n),
		}
		if n >= 256 {
			h.severity = Warning
		}
		return h
	case o.Name == "time" && usualHours.MatchString(text):
		return hit{
			at: o.Value.Origin(), severity: Warning, message: "--time=" + text + " is " + text + " minutes",
			why: "if hours are meant, Slurm ends the job much too early", fix: "use --time=" + text + ":00:00 for hours",
		}
	case o.Name == "time" && hoursAsMMSS.MatchString(text):
		return hit{
			at: o.Value.Origin(), severity: Warning, message: "--time=" + text + " is " + text[:2] + " minutes and 0 seconds",
			why: "if hours are meant, Slurm ends the job much too early", fix: "use --time=" + text + ":00 for hours",
		}
	}
	return hit{}
}

// slurmSets lists variables that Slurm sets only with an option.
func slurmSets(name string) []string {
	return map[string][]string{
		"SLURM_CPUS_PER_TASK":   {"cpus-per-task"},
		"SLURM_NTASKS_PER_NODE": {"ntasks-per-node"},
		"SLURM_GPUS":            {"gpus"},
		"SLURM_GPUS_PER_TASK":   {"gpus-per-task"},
		"SLURM_CPUS_PER_GPU":    {"cpus-per-gpu"},
		"SLURM_MEM_PER_CPU":     {"mem-per-cpu"},
		"SLURM_MEM_PER_GPU":     {"mem-per-gpu"},
	}[name]
}

// rightName returns the variable that is meant by a name that Slurm does not set, or "".
func rightName(name string) string {
	for right, wrong := range map[string]string{
		"SLURM_NODEID":          "SLURM_NODE_ID SLURM_NODE_RANK SLURM_NODERANK",
		"SLURM_LOCALID":         "SLURM_LOCAL_ID SLURM_LOCAL_RANK",
		"SLURM_PROCID":          "SLURM_PROC_ID SLURM_RANK SLURM_TASK_ID SLURM_TASKID SLURM_TASK_RANK",
		"SLURM_NNODES":          "SLURM_NUM_NODES SLURM_NODES SLURM_N_NODES SLURM_JOB_NNODES SLURM_NNODE SLURM_JOB_NODES",
		"SLURM_NTASKS":          "SLURM_NUM_TASKS SLURM_NTASK SLURM_NPROC SLURM_WORLD_SIZE SLURM_N_TASKS",
		"SLURM_JOB_NODELIST":    "SLURM_NODE_LIST SLURM_JOBNODELIST PBS_NODEFILE LSB_HOSTS PE_HOSTFILE",
		"SLURM_GPUS_ON_NODE":    "SLURM_NUM_GPUS SLURM_NGPUS SLURM_GPU_ON_NODE SLURM_GPUS_ON_NODES SLURM_GPU_PER_NODE",
		"SLURM_CPUS_PER_TASK":   "SLURM_CPU_PER_TASK",
		"SLURM_JOB_NAME":        "SLURM_JOBNAME",
		"SLURM_JOB_ID":          "PBS_JOBID LSB_JOBID",
		"SLURM_SUBMIT_DIR":      "PBS_O_WORKDIR LS_SUBCWD SLURM_SUBMITDIR",
		"SLURM_ARRAY_TASK_ID":   "PBS_ARRAYID SGE_TASK_ID LSB_JOBINDEX SLURM_ARRAYID SLURM_ARRAY_ID",
		"SLURM_NTASKS_PER_NODE": "SLURM_TASKS_PER_NODES SLURM_NTASK_PER_NODE",
	} {
		if slices.Contains(strings.Fields(wrong), name) {
			return right
		}
	}
	return ""
}

// ofSlurm matches variables of schedulers in text that is not expanded further.
var ofSlurm = regexp.MustCompile(`\$?\{?\b((?:SLURM|PBS|LSB|SGE)_\w+)(:?[-=?+])?`)

// slurmVariableUnset finds variables that Slurm does not set: misspelled names, and variables of options that the
// job does not use.
func slurmVariableUnset(s *subject) []hit {
	var hits []hit
	seen := map[string]bool{}
	for r, at := range s.refs {
		if seen[r.Name] || !ofScheduler.MatchString(r.Name) {
			continue
		}
		seen[r.Name] = true
		needs, right := slurmSets(r.Name), rightName(r.Name)
		if len(needs) == 0 && right == "" || r.Default != nil || r.Required || r.Assigned || s.assignsVariable(r.Name) ||
			regexp.MustCompile(`-[nzv] +["']?\$?\{?`+r.Name+`\b`).Match(s.Text) {
			continue
		}
		given := func(o script.Option) bool { return slices.Contains(needs, o.Name) }
		switch {
		case right != "" && (s.isBatch() || len(s.commandsNamed("srun")) > 0 || strings.HasPrefix(r.Name, "SLURM")):
			hits = append(hits, hit{at: at, severity: Error, message: "Slurm sets no variable " + r.Name, fix: "use $" + right})
		case len(needs) == 0 || !s.isBatch() || containsFunc(s.slurmOptions, given):
			continue
		default:
			hits = append(hits, hit{
				at: at, message: r.Name + " is used without --" + needs[0],
				why: "Slurm sets it only with that option: unless sbatch gets it on its command line, the variable is empty",
				fix: "add #SBATCH --" + needs[0] + "=VALUE, or use ${" + r.Name + ":-VALUE}",
			})
		}
	}
	return hits
}

// ofScheduler matches the names of a scheduler's variables.
var ofScheduler = regexp.MustCompile(`^(?:SLURM|PBS|LSB|LS|SGE|PE)_`)

// refs calls yield with the unknown parts of all words.
func (s *subject) refs(yield func(*script.Ref, int) bool) {
	look := func(w script.Word) bool {
		for _, c := range w.Chars {
			if c.Ref == nil {
				continue
			}
			if !yield(c.Ref, c.At) {
				return false
			}
			if c.Ref.Name != "" {
				continue
			}
			for _, m := range ofSlurm.FindAllStringSubmatch(c.Ref.String(), -1) { // $((SLURM_NNODES * 8))
				if m[2] == "" && !yield(&script.Ref{Name: m[1], Depth: c.Ref.Depth}, c.At) {
					return false
				}
			}
		}
		return true
	}
	for _, c := range s.Commands {
		for _, w := range c.Words {
			if !look(w) {
				return
			}
		}
	}
	for a := range s.sets() {
		if !look(a.Value) {
			return
		}
	}
}
