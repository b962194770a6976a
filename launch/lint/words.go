package lint

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// assigns matches NAME=value.
var assigns = regexp.MustCompile(`^[A-Za-z_]\w*=`)

// srunStartsNoProgram finds words that only a shell understands in the place of srun's program.
func srunStartsNoProgram(s *subject) []hit {
	ofShell := []string{"export", "cd", "source", ".", "module", "ml", "conda", "set", "eval", "ulimit", "unset", "if", "for"}
	var hits []hit
	for _, c := range s.Commands {
		if len(c.Via) == 0 || c.Via[len(c.Via)-1].Name() != "srun" || c.Via[len(c.Via)-1].Open {
			continue
		}
		w := c.Words[0]
		text, known := w.Literal()
		says := "srun starts " + showWord(w)
		switch {
		case known && assigns.MatchString(text):
			hits = append(hits, hit{
				at: w.At, message: says, why: "srun takes the assignment for a program and does not find it",
				fix: "write it in front of srun (" + lineerr.Clip(text) + " srun ...), or use srun env NAME=value ...",
			})
		case hasBlank(w) && len(s.Unfilled) == 0:
			hits = append(hits, hit{
				at: w.At, message: says, why: "the whole text in quotes is one word, and there is no program of that name",
				fix: "remove the quotes around the command, or use srun bash -c '...'",
			})
		case slices.Contains(ofShell, text) && !(text == "conda" && c.Arg(1) != "activate"):
			hits = append(hits, hit{
				at: w.At, message: says + ", which only a shell understands",
				why: "outside of a shell it has no effect, and what follows && or ; runs once, on the first node",
				fix: "put all of it into the shell of each task: srun bash -c '... && python train.py'",
			})
		}
	}
	return append(hits, shellTextCut(s)...)
}

// shellTextCut finds bash -c without quotes around its text.
func shellTextCut(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("bash", "sh") {
		if len(c.Words) < 4 || c.Arg(1) != "-c" && c.Arg(1) != "-lc" {
			continue
		}
		program := script.Command{Words: c.Words[2:3]}
		if !strings.ContainsAny(c.Words[2].Text(), " \t\n;") &&
			startsTrainer(&script.Command{Words: append(slices.Clip(program.Words), c.Words[3:]...)}) {
			hits = append(hits, hit{
				at: c.Words[2].At, message: "bash -c runs only " + showWord(c.Words[2]),
				why: "the words after it become $0, $1 ... of that shell, and the program does not see them",
				fix: "put quotes around the whole text: bash -c '" + program.Name() + " ...'",
			})
		}
	}
	return hits
}

// assignmentBlank finds blanks around the = of an assignment.
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
	for _, a := range s.Assignments {
		// NAME= value runs the program value, export NAME= value exports a variable of that name.
		rest := s.Text[min(a.At, len(s.Text)):]
		line, _, _ := strings.Cut(string(rest[:min(len(rest), 200)]), "\n")
		value, found := strings.CutPrefix(line, a.Name+"= ")
		if word := strings.Fields(value); found && len(word) > 0 && emptyThenValue.MatchString(word[0]) && len(a.Value.Chars) == 0 {
			hits = append(hits, hit{at: a.At, message: "a blank after the = of " + a.Name})
		}
	}
	for _, c := range s.Commands {
		for _, a := range c.Env {
			_, number := c.Words[0].Int() // other words may be a program: CUDA_VISIBLE_DEVICES= $PYTHON
			if number && len(a.Value.Chars) == 0 && bytes.HasPrefix(s.Text[min(a.At, len(s.Text)):], []byte(a.Name+"= ")) {
				hits = append(hits, hit{at: a.At, message: "a blank after the = of " + a.Name})
			}
		}
	}
	return hits
}

// emptyThenValue matches words that are a value and no program or name.
var emptyThenValue = regexp.MustCompile(`^(?:["']|\$\(|\$\{?[A-Z]|-?\d+["']?$|` + "`" + `)`)

// typographic matches the dash or the quotation mark of word processors at the beginning of a word or a value.
var typographic = regexp.MustCompile("^(?:[–—−][A-Za-z–—−-]|[“”„]|--?[A-Za-z_-]+=[“”„])")

// typographyInCommand finds such characters outside of quotes.
func typographyInCommand(s *subject) []hit {
	var hits []hit
	look := func(at int) {
		found := typographic.Find(s.Text[min(at, len(s.Text)):])
		if len(found) == 0 {
			return
		}
		says, right := "the word begins with a dash of a word processor", "write - in place of it"
		if strings.ContainsAny(string(found), "“”„") {
			says, right = "a quotation mark of a word processor, which is part of the value", "write \" in place of it"
		}
		hits = append(hits, hit{at: at, message: says, fix: right})
	}
	for _, d := range s.Directives {
		for _, w := range d.Words {
			look(w.At)
		}
	}
	for _, c := range s.Commands {
		for _, w := range c.Words[1:] {
			if !slices.Contains([]string{"echo", "printf"}, c.Name()) {
				look(w.At)
			}
		}
	}
	for a := range s.sets() {
		look(a.Value.Origin())
	}
	return hits
}

// joinedLines finds lines that are joined without a blank: the value of an option ends in the next option.
func joinedLines(s *subject, l *launch) (hits []hit) {
	for name, f := range l.flags {
		at := strings.Index(f.value.Text(), "--")
		if at < 1 || at >= len(f.value.Chars) {
			continue
		}
		// ...=4\, end of line, --next
		if place := f.value.Chars[at].At; place > 1 && place < len(s.Text) && s.Text[place-1] == '\n' && s.Text[place-2] == '\\' {
			hits = append(hits, hit{at: f.value.Origin(), message: "--" + name + " has the value " + showWord(f.value)})
		}
	}
	return hits
}

// launcherNames returns the options of torchrun, or the options of other launchers that a launcher does not have.
func launcherNames(kind string) (known, foreign []string) {
	switch kind {
	case "torchrun":
		return strings.Fields(`nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts
			monitor-interval start-method event-log-handler role m module no-python run-path log-dir r redirects t tee
			local-ranks-filter node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle
			duplicate-stdout-filters duplicate-stderr-filters virtual-local-rank shutdown-timeout use-env local-rank h help`),
			strings.Fields(`num-processes num-machines machine-rank main-process-ip main-process-port num-gpus num-nodes hostfile
				multi-gpu config-file`)
	case "deepspeed":
		return nil, strings.Fields("nproc-per-node nnodes num-processes num-machines machine-rank rdzv-endpoint rdzv-backend rdzv-id standalone")
	}
	return nil, strings.Fields(`nproc-per-node nnodes node-rank master-addr master-port num-gpus num-nodes rdzv-endpoint rdzv-id
		hostfile include`)
}

// launcherOptions finds options that the launcher rejects: unknown ones, and those that contradict each other.
func launcherOptions(_ *subject, l *launch) (hits []hit) {
	known, foreign := launcherNames(l.kind)
	for name, f := range l.flags {
		shown := "--" + strings.ReplaceAll(name, "-", "_")
		if f.value.HasPrefix("--") &&
			slices.Contains(strings.Fields(`nproc-per-node nnodes node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id
			num-processes num-machines machine-rank main-process-ip main-process-port num-cpu-threads-per-process mixed-precision config-file
			gpu-ids num-gpus num-nodes hostfile include`), name) {
			hits = append(hits, hit{at: f.at, message: shown + " has no value, but is followed by " + showWord(f.value),
				fix: "write its value behind it"})
		}
		isPrefix := func(k string) bool { return strings.HasPrefix(k, name) }
		if slices.ContainsFunc(known, isPrefix) {
			continue // the beginning of an option is enough
		}
		near := misspelled(name, known)
		if near == "" && !slices.Contains(foreign, name) {
			continue // perhaps of a newer version
		}
		h := hit{at: f.at, message: l.kind + " has no option " + shown}
		if near != "" {
			h.fix = "use --" + near
		}
		hits = append(hits, h)
	}
	return append(hits, contradictions(l)...)
}

// contradictions finds options of a launcher that it does not take together.
func contradictions(l *launch) (hits []hit) {
	if len(l.program) > 0 && slices.Contains([]string{"true", "false", "True", "False"}, l.program[0].Text()) {
		hits = append(hits, hit{
			at: l.program[0].At, message: l.kind + " takes " + l.program[0].Text() + " for the program",
			why: "the option in front of it has no value",
			fix: "remove " + l.program[0].Text() + ", and the option if it is not wanted",
		})
	}
	chosen, chooses := l.findFlag("include", "i", "exclude", "e")
	_, counts := l.findFlag("num-gpus", "num-nodes")
	_, several := l.findFlag("multi-gpu")
	_, own := l.findFlag("use-deepspeed", "use-fsdp", "cpu")
	n, number := l.flags["num-processes"].value.Int()
	_, noSSH := l.findFlag("no-ssh")
	_, ranked := l.findFlag("node-rank")
	switch {
	case l.kind == "deepspeed" && chooses && strings.ContainsAny(chosen.value.Text(), " ;"):
		hits = append(hits, hit{
			at: chosen.value.Origin(), message: "--include or --exclude has a blank between hosts",
			why: "deepspeed takes it for a part of the host's name, and stops",
			fix: "write @ between hosts, and : in front of their GPUs: gpu01:0,1@gpu02:0,1",
		})
	case l.kind == "deepspeed" && noSSH && !ranked && !l.open:
		hits = append(hits, hit{
			at: l.flags["no-ssh"].at, message: "deepspeed --no_ssh without --node_rank", why: "it stops (\"--node_rank is not set correctly\")",
			fix: "add --node_rank=RANK, which differs between the nodes",
		})
	case l.kind == "deepspeed" && chooses && counts:
		hits = append(hits, hit{
			at: chosen.at, message: "deepspeed gets --include or --exclude together with --num_gpus or --num_nodes",
			why: "it stops (\"Cannot specify num_nodes/gpus with include/exclude\")", fix: "remove one of them",
		})
	case l.kind == "accelerate" && several && own:
		hits = append(hits, hit{
			at: l.flags["multi-gpu"].at, message: "accelerate gets --multi_gpu together with --use_deepspeed, --use_fsdp or --cpu",
			why: "it stops (\"You can only use one of ... at a time\")", fix: "remove --multi_gpu",
		})
	case l.kind == "accelerate" && several && number && n == 1:
		hits = append(hits, hit{
			at: l.flags["multi-gpu"].at, message: "accelerate gets --multi_gpu with --num_processes 1",
			why: "it stops (\"You need to use at least 2 processes to use --multi_gpu\")", fix: "remove --multi_gpu, or start more processes",
		})
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

// submitWords finds words of sbatch that do not do what they look like.
func submitWords(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("sbatch") {
		if len(c.Words) < 2 {
			continue
		}
		wrap, wraps := findOption(c.Options, "wrap")
		text, known := wrap.Value.Literal()
		for _, w := range c.Words[1:] {
			if name := path.Base(strings.TrimPrefix(w.Text(), "--wrap=")); wraps && known && name == text && startsTrainerAlone(text) &&
				c.Words[len(c.Words)-1].At > w.At {
				hits = append(hits, hit{
					at: w.At, message: "--wrap has only the word " + lineerr.Clip(text),
					why: "sbatch rejects the words after it (\"Script arguments not permitted with --wrap option\")",
					fix: "put quotes around the whole command: --wrap='" + lineerr.Clip(text) + " ...'",
				})
			}
		}
		for _, r := range wrap.Value.Refs() {
			if ofTask(r.Name) && !s.isBatch() {
				hits = append(hits, hit{
					at: wrap.At, message: "$" + r.Name + " in --wrap is expanded by this shell",
					why: "the job gets the value of this shell, which has none",
					fix: "use single quotes: --wrap='...'",
				})
			}
		}
		hits = append(hits, behindScript(c)...)
	}
	return hits
}

func startsTrainerAlone(name string) bool {
	return pythonName.MatchString(name) || slices.Contains([]string{"torchrun", "srun", "deepspeed", "accelerate", "bash", "mpirun"}, name)
}

// behindScript finds options of sbatch behind the script, which gets them as arguments.
func behindScript(c *script.Command) []hit {
	i := slices.IndexFunc(c.Words, func(w script.Word) bool {
		return slices.Contains([]string{".sh", ".sbatch", ".slurm", ".sub", ".job", ".batch", ".py"}, path.Ext(w.Text()))
	})
	ofSbatch := strings.Fields(
		"--gres --nodes --ntasks --ntasks-per-node --gpus-per-node --partition --time --cpus-per-task --nodelist --mem -p -N")
	if i < 1 {
		return nil
	}
	for _, w := range c.Words[i+1:] {
		if name, _, _ := w.Cut('='); slices.Contains(ofSbatch, name.Text()) {
			return []hit{{
				at: w.At, message: showWord(name) + " comes after " + showWord(c.Words[i]),
				why: "sbatch gives it to the script as an argument, and ignores it",
				fix: "put all options of sbatch in front of the script",
			}}
		}
	}
	return nil
}

// hasBlank reports whether the known text of a word has a blank within.
func hasBlank(w script.Word) bool {
	var known strings.Builder
	for _, c := range w.Chars {
		if c.Ref == nil {
			known.WriteByte(c.Byte)
		} else {
			known.WriteByte('$')
		}
	}
	return strings.Contains(strings.TrimSpace(known.String()), " ")
}
