package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// slurmRules check misleading options of Slurm.
func slurmRules() []Rule {
	return []Rule{{
		ID: "sbatch-line-ignored", Severity: Error,
		Title: "an #SBATCH line comes after the first command",
		Why:   "sbatch stops reading there and ignores the option without any message",
		Fix:   "move all #SBATCH lines up, before the first command.",
		check: sbatchLineIgnored,
	}, {
		ID: "variable-in-sbatch-line", Severity: Error,
		Title: "a shell variable in an #SBATCH line",
		Why:   "sbatch does not expand it: the job writes to a file of that name, or fails without a log",
		Fix:   "Slurm's patterns (%x job name, %j job id, %u user), or an option on the command line: sbatch --output=\"$LOGS/%j.out\" job.sh.",
		check: variableInSbatchLine,
	}, {
		ID: "output-pattern-in-shell", Severity: Error,
		Title: "a file name pattern of Slurm is used in the shell",
		Why:   "only --output expands %x and %j; the shell uses a file with exactly that name",
		Fix:   "\"$SLURM_JOB_NAME-$SLURM_JOB_ID.out\" in a job; outside, the name itself: scontrol show job ID shows StdOut.",
		check: outputPatternInShell,
	}, {
		ID: "export-drops-environment", Severity: Error,
		Title: "--export names variables without ALL",
		Why:   "the job loses the rest of the environment: PATH, the virtual environment, MASTER_ADDR",
		Fix:   "--export=ALL,NAME=value.",
		check: exportDropsEnvironment,
	}, {
		ID: "srun-cpus-per-task", Severity: Warning,
		Title: "srun does not repeat --cpus-per-task",
		Why:   "since Slurm 22.05 srun does not take it from the job: each task gets one CPU, and data loading starves",
		Fix:   "srun --cpus-per-task=\"$SLURM_CPUS_PER_TASK\" ..., or export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\" before.",
		check: srunCPUsPerTask,
	}, {
		ID: "sbatch-inside-job", Severity: Warning,
		Title: "a job is submitted from within a job",
		Why:   "the new job inherits this one's SLURM_* variables, and those that it does not set itself (SLURM_CPUS_PER_TASK, SLURM_NTASKS, SLURM_GPUS_PER_NODE) are wrong in it",
		Fix:   "remove them, except SLURM_CONF: env $(compgen -e SLURM_ | grep -v '^SLURM_CONF$' | sed 's/^/-u /') sbatch job.sh.",
		check: sbatchInsideJob,
	}, {
		ID: "slurm-variable-unset", Severity: Error,
		Title: "a variable of Slurm is used without the option that sets it",
		Why:   "Slurm sets it only with that option; otherwise it is empty, srun refuses the empty number, and a launcher uses the next word as the value",
		Fix:   "add the option to the #SBATCH lines (--cpus-per-task=8 sets SLURM_CPUS_PER_TASK), or leave the variable out.",
		check: slurmVariableUnset,
	}}
}

func sbatchLineIgnored(s *subject) []hit {
	// A line in a string or a here-document is not a comment.
	var late []script.Directive
	for _, d := range s.Late {
		if slices.ContainsFunc(s.Comments, func(c script.Comment) bool { return c.At == d.At }) {
			late = append(late, d)
		}
	}
	if len(late) == 0 {
		return nil
	}
	says := "this #SBATCH line comes"
	if len(late) > 1 {
		says = fmt.Sprintf("%d #SBATCH lines come", len(late))
	}
	return []hit{{at: late[0].At, says: says + " after the first command"}}
}

func variableInSbatchLine(s *subject) []hit {
	var hits []hit
	for _, d := range s.Directives {
		for _, w := range d.Words {
			for i, c := range w.Chars {
				if c.Ref == nil && c.Byte == '$' && i+1 < len(w.Chars) && namesVariable(w.Chars[i+1]) {
					hits = append(hits, hit{at: c.At, says: showWord(w) + " holds a variable of the shell"})
					break
				}
			}
		}
	}
	return hits
}

func namesVariable(c script.Char) bool {
	return c.Ref == nil && (c.Byte == '{' || c.Byte == '(' || c.Byte == '_' || c.Byte|0x20 >= 'a' && c.Byte|0x20 <= 'z')
}

// pattern matches file name patterns that only Slurm uses.
var pattern = regexp.MustCompile(`%[0-9]*[xjJAN]`)

func outputPatternInShell(s *subject) []hit {
	var hits []hit
	look := func(w script.Word) {
		// Formats of date (+%Y%j, %s%N) and other commands hold blanks or +.
		text := w.Text()
		if pattern.MatchString(text) && !strings.ContainsAny(text, "+ ") {
			hits = append(hits, hit{at: w.At, says: showWord(w) + " has a pattern that only Slurm expands"})
		}
	}
	files := []string{"tail", "cat", "less", "more", "head", "tee", "touch", "mkdir", "cp", "mv", "rm", "ln", "ls", "grep", "wc", "chmod", "rsync", "scp"}
	for _, c := range s.Commands {
		if slices.Contains(files, c.Name()) {
			for _, w := range c.Words[1:] {
				look(w)
			}
		}
		for _, r := range c.Redirects {
			look(r.Word)
		}
	}
	return hits
}

func exportDropsEnvironment(s *subject) []hit {
	var hits []hit
	look := func(options []script.Option) {
		o, ok := findOption(options, "export")
		text, known := o.Value.Literal()
		if !ok || !known || text == "" {
			return
		}
		names := strings.Split(text, ",")
		if !slices.Contains(names, "ALL") && !slices.Contains(names, "NONE") && !slices.Contains(names, "NIL") {
			hits = append(hits, hit{at: o.At, says: "--export=" + text + " names variables without ALL"})
		}
	}
	look(s.Batch)
	for _, c := range s.commandsNamed("srun", "sbatch", "salloc") {
		look(c.Options)
	}
	return hits
}

func srunCPUsPerTask(s *subject) []hit {
	o, ok := findOption(s.Batch, "cpus-per-task")
	if n, known := o.Value.Int(); !ok || known && n == 1 || s.assignsVariable("SRUN_CPUS_PER_TASK") {
		return nil
	}
	var hits []hit
	for _, srun := range s.srunSteps() {
		_, given := findOption(srun.Options, "cpus-per-task")
		_, exclusive := findOption(srun.Options, "exclusive")
		if given || exclusive || srun.Open || srun.Test || !s.startsTraining(srun) {
			continue
		}
		hits = append(hits, hit{at: srun.At})
	}
	return hits
}

// startsTraining reports whether an srun starts a training.
func (s *subject) startsTraining(srun *script.Command) bool {
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		return slices.Contains(c.Via, srun) && startsTrainer(c)
	})
}

func sbatchInsideJob(s *subject) []hit {
	if !s.isBatch() {
		return nil
	}
	scrubbed := slices.ContainsFunc(s.commandsNamed("unset"), func(c *script.Command) bool {
		return strings.Contains(c.Text(), "SLURM") || c.Loop
	})
	var hits []hit
	for _, c := range s.commandsNamed("sbatch") {
		env := c.Starter("env")
		if scrubbed || env != nil && (strings.Contains(env.Text(), "-u") || strings.Contains(env.Text(), "-i")) {
			continue
		}
		if o, ok := findOption(c.Options, "export"); ok && o.Value.HasPrefix("NONE") {
			continue
		}
		hits = append(hits, hit{at: c.At})
	}
	return hits
}

// optionOf returns the option of sbatch that makes Slurm set a variable; "" for
// variables that need no option.
func optionOf(variable string) string {
	return map[string]string{
		"SLURM_CPUS_PER_TASK":   "cpus-per-task",
		"SLURM_CPUS_PER_GPU":    "cpus-per-gpu",
		"SLURM_NTASKS_PER_NODE": "ntasks-per-node",
		"SLURM_NTASKS_PER_GPU":  "ntasks-per-gpu",
		"SLURM_GPUS":            "gpus",
		"SLURM_GPUS_PER_TASK":   "gpus-per-task",
	}[variable]
}

func slurmVariableUnset(s *subject) []hit {
	if !s.isBatch() || s.sourcesVariables() {
		return nil
	}
	var hits []hit
	look := func(w script.Word) {
		for _, c := range w.Chars {
			if c.Ref == nil {
				continue
			}
			for _, r := range append([]*script.Ref{c.Ref}, c.Ref.Uses...) {
				if option := s.missingOption(r); option != "" {
					hits = append(hits, hit{at: c.At, says: "$" + r.Name + " is used, and the job does not ask for --" + option})
				}
			}
		}
	}
	for _, c := range s.Commands {
		if c.Branch || c.Test || c.Name() != "srun" && !startsTrainer(c) {
			continue
		}
		for _, w := range c.Words {
			look(w)
		}
	}
	for _, a := range s.Assignments {
		if a.Name == "SRUN_CPUS_PER_TASK" && !a.Branch {
			look(a.Value)
		}
	}
	return hits
}

// missingOption returns the missing option of an unset variable.
func (s *subject) missingOption(r *script.Ref) string {
	option := optionOf(r.Name)
	if option == "" || r.Depth > 0 || r.Default != nil || r.Required || r.Alternate || r.Assigned || s.assignsVariable(r.Name) {
		return ""
	}
	if _, ok := findOption(s.Batch, option); ok {
		return ""
	}
	return option
}
