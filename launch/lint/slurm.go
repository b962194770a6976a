package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

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
	files := strings.Fields("tail cat less more head tee touch mkdir cp mv rm ln ls grep wc chmod rsync scp")
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
	// The steps of a job with --export=NONE get none of the variables that the script exports.
	o, _ := findOption(s.Batch, "export")
	kept := slices.ContainsFunc(s.commandsNamed("unset"), func(c *script.Command) bool { return hasWord(c, "SLURM_EXPORT_ENV") })
	if text, known := o.Value.Literal(); !known || text != "NONE" || kept || s.assignsVariable("SLURM_EXPORT_ENV") {
		return hits
	}
	for _, srun := range s.srunSteps() {
		if _, own := findOption(srun.Options, "export"); own || srun.Open {
			continue
		}
		for _, a := range s.Assignments {
			if a.Exported > 0 && a.Exported < srun.Seq && a.Depth == 0 {
				hits = append(hits, hit{
					at: srun.At, says: "the tasks of srun do not get " + a.Name,
					why: "with --export=NONE Slurm sets SLURM_EXPORT_ENV=NONE in the job, and srun passes on no variable",
				})
				break
			}
		}
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
		if scrubbed || env != nil && (strings.Contains(env.Text(), "-u") || strings.Contains(env.Text(), "-i")) || submitsItself(c) {
			continue
		}
		if o, ok := findOption(c.Options, "export"); ok && o.Value.HasPrefix("NONE") {
			continue
		}
		hits = append(hits, hit{at: c.At})
	}
	return hits
}

// submitsItself reports whether a script submits itself where it is not yet in a job:
// if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"; exit; fi.
func submitsItself(c *script.Command) bool {
	itself := slices.ContainsFunc(c.Words, func(w script.Word) bool {
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Name == "0" || r.Name == "BASH_SOURCE" })
	})
	return slices.ContainsFunc(c.Guards, func(name string) bool {
		return strings.HasPrefix(name, "SLURM_") || itself && slices.Contains([]string{"#", "1", "@", "*"}, name)
	})
}

// optionOf has the options of sbatch that make Slurm set a variable.
var optionOf = map[string]string{
	"SLURM_CPUS_PER_TASK":   "cpus-per-task",
	"SLURM_CPUS_PER_GPU":    "cpus-per-gpu",
	"SLURM_NTASKS_PER_NODE": "ntasks-per-node",
	"SLURM_NTASKS_PER_GPU":  "ntasks-per-gpu",
	"SLURM_GPUS":            "gpus",
	"SLURM_GPUS_PER_TASK":   "gpus-per-task",
}

func slurmVariableUnset(s *subject) []hit {
	if !s.isBatch() || s.setsUnknown() {
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
	option := optionOf[r.Name]
	if option == "" || r.Depth > 0 || r.Default != nil || r.Required || r.Alternate || r.Assigned || s.assignsVariable(r.Name) {
		return ""
	}
	if _, ok := findOption(s.Batch, option); ok {
		return ""
	}
	return option
}
