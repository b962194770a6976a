package lint

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
		double := bytes.HasPrefix(s.Text[o.At:], []byte("--"))
		if len(o.Name) < 2 && !double || slices.Contains(names, o.Name) || strings.HasPrefix(o.Name, "container-") || !startsWithLetter(o.Name) {
			continue
		}
		var meant []string
		for _, name := range names {
			if strings.HasPrefix(name, o.Name) {
				meant = append(meant, name)
			}
		}
		near := cmp.Or(map[string]string{
			"workdir": "chdir", "cores-per-task": "cpus-per-task", // the first up to Slurm 17.02
		}[o.Name], misspelled(strings.ReplaceAll(o.Name, "_", "-"), names))
		switch {
		case len(o.Name) == 1:
			hits = append(hits, hit{at: o.At, message: "Slurm has no option --" + o.Name, fix: "use -" + o.Name + ", or the long name"})
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
	usualHours  = regexp.MustCompile(`^(?:12|24|36|48|72|96|168)$`)
	hoursAsMMSS = regexp.MustCompile(`^(?:24|36|48|72|96):00$`)
	onlySeconds = regexp.MustCompile(`^(?:0+:)?0+:0([1-9])$`)
)

// slurmValue finds values that Slurm rejects, or understands in another unit.
func slurmValue(s *subject) []hit {
	var hits []hit
	for o := range s.slurmOptions {
		if h := valueOf(o); h.message != "" {
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

// valueOf finds a time limit in a smaller unit than its author meant.
func valueOf(o script.Option) hit {
	text, known := o.Value.Literal()
	if !known || o.Name != "time" {
		return hit{}
	}
	h := hit{
		at: o.Value.Origin(), severity: Warning, why: "if hours are meant, Slurm ends the job much too early",
		fix: "use --time=" + text + ":00:00 for hours",
	}
	switch m := onlySeconds.FindStringSubmatch(text); {
	case usualHours.MatchString(text):
		h.message = "--time=" + text + " is " + text + " minutes"
	case hoursAsMMSS.MatchString(text):
		h.message, h.fix = "--time="+text+" is "+text[:2]+" minutes and 0 seconds", "use --time="+text+":00 for hours"
	case m != nil:
		h.message = "--time=" + text + " is " + m[1] + " seconds"
		h.why, h.fix = "if minutes are meant, Slurm ends the job much too early", "use --time="+m[1]+" for minutes"
	}
	return h
}

// optionOf returns the option without which Slurm does not set a variable, or "".
func optionOf(name string) string {
	for _, option := range []string{
		"cpus-per-task", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu",
	} {
		if name == "SLURM_"+strings.ToUpper(strings.ReplaceAll(option, "-", "_")) {
			return option
		}
	}
	return ""
}

// ofSlurm matches Slurm's variables in text that is not expanded further.
var ofSlurm = regexp.MustCompile(`\$?\{?\b(SLURM_\w+)(:?[-=?+])?`)

// slurmVariableUnset finds variables of Slurm's options that the job does not use.
func slurmVariableUnset(s *subject) []hit {
	var hits []hit
	seen := map[string]bool{}
	for r, at := range s.refs {
		option := optionOf(r.Name)
		ofGPUs := option == "gpus-per-node" // the others usually come from salloc
		if option == "" || seen[r.Name] || !s.isBatch() && (!ofGPUs || len(s.commandsNamed("srun")) == 0) {
			continue
		}
		seen[r.Name] = true
		given := func(o script.Option) bool { return o.Name == option }
		if r.Default != nil || r.Required || r.Assigned || s.assignsVariable(r.Name) || containsFunc(s.slurmOptions, given) ||
			regexp.MustCompile(`-[nzv] +["']?\$?\{?`+r.Name+`\b`).Match(s.Text) {
			continue
		}
		h := hit{
			at: at, message: r.Name + " is used without --" + option,
			fix: "add #SBATCH --" + option + "=VALUE, or use ${" + r.Name + ":-VALUE}",
		}
		if ofGPUs { // --gres does not set it
			h.fix = "use $SLURM_GPUS_ON_NODE, or request GPUs with --gpus-per-node"
		}
		hits = append(hits, h)
	}
	return hits
}

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
