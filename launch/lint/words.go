package lint

import (
	"regexp"
	"slices"
	"strings"
)

// assignmentBlank finds blanks before the = of an assignment.
func assignmentBlank(s *subject) []hit {
	name := regexp.MustCompile(`^[A-Za-z_]\w*$`)
	var hits []hit
	for _, c := range s.Commands {
		text := c.Arg(0)
		if len(c.Words) < 2 || !c.Words[1].HasPrefix("=") || c.Words[1].HasPrefix("==") || !name.MatchString(text) {
			continue
		}
		// grep = FILE, tr = : and the like are no assignments.
		if text == strings.ToUpper(text) || s.expands(text) {
			hits = append(hits, hit{at: c.At, message: "a blank before the = of " + text})
		}
	}
	return hits
}

// torchrunNames are the options of torchrun.
const torchrunNames = `nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts
	monitor-interval start-method event-log-handler role m module no-python run-path log-dir r redirects t tee
	local-ranks-filter node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle
	duplicate-stdout-filters duplicate-stderr-filters virtual-local-rank shutdown-timeout use-env local-rank h help`

// withValue are the options of launchers that are wrong without a value.
const withValue = `nproc-per-node nnodes node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id num-processes
	num-machines machine-rank main-process-ip main-process-port num-cpu-threads-per-process mixed-precision config-file
	gpu-ids num-gpus num-nodes hostfile include`

// launcherOptions finds options that a launcher rejects, and those that make another word its program.
func launcherOptions(s *subject) (hits []hit) {
	for _, l := range s.launches {
		hits = append(hits, optionsOf(l)...)
	}
	return append(hits, hostsWithoutOption(s)...)
}

func optionsOf(l *launch) (hits []hit) {
	known := strings.Fields(torchrunNames)
	for name, f := range l.flags {
		shown := "--" + strings.ReplaceAll(name, "-", "_")
		if f.value.HasPrefix("--") && slices.Contains(strings.Fields(withValue), name) {
			hits = append(hits, hit{
				at: f.at, message: shown + " has no value, but is followed by " + showWord(f.value),
				fix: "write its value behind it",
			})
		}
		isPrefix := func(k string) bool { return strings.HasPrefix(k, name) } // the beginning of an option is enough
		if near := misspelled(name, known); l.kind == "torchrun" && near != "" && !slices.ContainsFunc(known, isPrefix) {
			hits = append(hits, hit{at: f.at, message: l.kind + " has no option " + shown, fix: "use --" + near})
		}
	}
	if len(l.program) > 0 && slices.Contains([]string{"true", "false", "True", "False"}, l.program[0].Text()) {
		hits = append(hits, hit{
			at: l.program[0].At, message: l.kind + " takes " + l.program[0].Text() + " for the program",
			why: "the option in front of it has no value",
			fix: "remove " + l.program[0].Text() + ", and the option if it is not wanted",
		})
	}
	if f, several := l.findFlag("multi-gpu"); several && l.flags["num-processes"].value.Text() == "1" {
		hits = append(hits, hit{
			at: f.at, message: "accelerate gets --multi_gpu with --num_processes 1",
			why: "it stops (\"You need to use at least 2 processes to use --multi_gpu\")", fix: "remove --multi_gpu, or start more processes",
		})
	}
	return hits
}

// hostWithSlots matches a host of horovodrun with its number of processes.
var hostWithSlots = regexp.MustCompile(`^[\w.-]+:\d+(,[\w.-]+:\d+)*$`)

// hostsWithoutOption finds hosts of horovodrun that do not stand behind -H.
func hostsWithoutOption(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("horovodrun") {
		for i, w := range c.Words[1:] {
			if isProgram := pythonName.MatchString(w.Text()); isProgram {
				break
			}
			if hostWithSlots.MatchString(w.Text()) && !c.Words[i].HasPrefix("-") {
				hits = append(hits, hit{
					at: w.At, message: "horovodrun takes " + showWord(w) + " for the program",
					fix: "write all hosts into one word: horovodrun -H HOST1:GPUS,HOST2:GPUS python ...",
				})
				break
			}
		}
	}
	return hits
}

// launcherOptionLate finds options of the launcher behind the program.
func launcherOptionLate(_ *subject, l *launch) (hits []hit) {
	late := map[string][]string{
		"torchrun":   {"nproc-per-node", "nnodes", "rdzv-endpoint", "rdzv-backend", "standalone"},
		"accelerate": {"num-processes", "num-machines", "machine-rank", "main-process-port", "main-process-ip", "multi-gpu"},
		"deepspeed":  {"num-gpus", "hostfile", "include"},
	}[l.kind]
	if len(l.program) < 2 || l.open || !strings.HasSuffix(l.program[0].Text(), ".py") {
		return nil
	}
	for _, w := range l.program[1:] {
		name, _, _ := w.Cut('=')
		key, isOption := strings.CutPrefix(strings.ReplaceAll(name.Text(), "_", "-"), "--")
		if _, also := l.findFlag(key); isOption && !also && slices.Contains(late, key) {
			hits = append(hits, hit{at: w.At, message: showWord(name) + " comes after " + showWord(l.program[0])})
		}
	}
	return hits
}
