package lint

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func sbatchWords(s *subject) []hit {
	var hits []hit
	for _, w := range s.Extra {
		h := hit{at: w.At, message: showWord(w) + " is not an sbatch option"}
		if strings.HasPrefix(w.Text(), "\n") {
			h.message, h.fix = "a \\ at the end of an #SBATCH line", "remove it: each #SBATCH line stands alone"
		}
		hits = append(hits, h)
	}
	for _, d := range s.Directives {
		for _, w := range d.Words {
			if before, _, joined := strings.Cut(w.Text(), "#SBATCH"); joined {
				hits = append(hits, hit{
					at: w.At, message: "two #SBATCH lines are joined behind " + lineerr.Clip(before),
					why: "sbatch takes the second for a part of the value", fix: "write each #SBATCH on a separate line",
				})
			}
		}
	}
	return hits
}

// otherCase matches a comment that would be an #SBATCH line in upper case.
var otherCase = regexp.MustCompile(`^(?i:sbatch)(\s+(--[a-z-]+(=\S+|\s+[^-\s]\S*)?|-[A-Za-z]\s*[^-\s]\S*))+\s*(#.*)?$`)

// nearlyBatch matches a misspelled #SBATCH line.
var nearlyBatch = regexp.MustCompile(`^S?[A-Z]{3,8}\s+--?[A-Za-z]`)

// spacedOptions returns the comments that would be #SBATCH lines without the space after or before #. If the script has
// #SBATCH lines, it returns none, because the comments may be disabled options.
func (s *subject) spacedOptions() (at []int) {
	if len(s.Directives)+len(s.Late) > 0 {
		return nil
	}
	for _, c := range s.Comments {
		text := strings.TrimLeft(c.Text, " ")
		indented := c.At > 0 && s.Text[c.At-1] != '\n' && onlyBlanksBefore(s.Text, c.At)
		if (text != c.Text || indented) && strings.HasPrefix(text, "SBATCH") && otherCase.MatchString(text) {
			at = append(at, c.At)
		}
	}
	return at
}

// onlyBlanksBefore reports whether a byte is the first on its line, but for blanks.
func onlyBlanksBefore(text []byte, at int) bool {
	return len(bytes.TrimLeft(text[bytes.LastIndexByte(text[:at], '\n')+1:at], " \t")) == 0
}

func sbatchLineIgnored(s *subject) []hit {
	var hits []hit
	for _, c := range s.Comments {
		name, _, _ := strings.Cut(c.Text, " ")
		near := otherCase.MatchString(c.Text) || nearlyBatch.MatchString(c.Text) && lineerr.Distance(name, "SBATCH") <= 2*lineerr.Letter
		if near && name != "SBATCH" && (c.At == 0 || s.Text[c.At-1] == '\n') {
			hits = append(hits, hit{
				at: c.At, severity: Warning, message: "#" + name + " is not #SBATCH",
				why: "sbatch takes this line for a comment and ignores the option", fix: "write #SBATCH",
			})
		}
	}
	for _, at := range s.spacedOptions() {
		h := hit{
			at: at, severity: Warning, message: "# SBATCH is not #SBATCH, and no other line has options",
			why: "sbatch takes this line for a comment and ignores the option", fix: "remove the space after #",
		}
		if bytes.HasPrefix(s.Text[at:], []byte("#SBATCH")) {
			h.message, h.fix = "#SBATCH is not at the beginning of its line, and no other line has options", "remove the space before #"
		}
		hits = append(hits, h)
	}
	// A line in a string or a here-document is not a comment.
	var late []script.Directive
	for _, d := range s.Late {
		if slices.ContainsFunc(s.Comments, func(c script.Comment) bool { return c.At == d.At }) {
			late = append(late, d)
		}
	}
	if len(late) == 0 {
		return hits
	}
	says := "this #SBATCH line comes"
	if len(late) > 1 {
		says = fmt.Sprintf("%d #SBATCH lines come", len(late))
	}
	return append(hits, hit{at: late[0].At, message: says + " after the first command"})
}

func variableInSbatchLine(s *subject) []hit {
	var hits []hit
	for _, o := range s.Batch {
		for i, c := range o.Value.Chars {
			if c.Ref != nil || c.Byte != '$' || i+1 >= len(o.Value.Chars) || !namesVariable(o.Value.Chars[i+1]) {
				continue
			}
			h := hit{at: c.At, message: "--" + o.Name + "=" + showWord(o.Value) + " contains a shell variable"}
			switch {
			case strings.HasPrefix(o.Name, "mail") || o.Name == "job-name" || o.Name == "comment":
				h.severity, h.why = Warning, "sbatch does not expand it, and uses exactly this text"
			case !slices.Contains([]string{"output", "error", "input", "chdir"}, o.Name):
				h.why = "sbatch does not expand it, and rejects this text, or uses it as it is"
			}
			hits = append(hits, h)
			break
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
		// Formats of date (+%Y%j, %s%N) and other commands contain spaces or +.
		text := w.Text()
		if pattern.MatchString(text) && !strings.ContainsAny(text, "+ ") {
			hits = append(hits, hit{at: w.At, message: showWord(w) + " has a pattern that only Slurm expands"})
		}
	}
	files := strings.Fields("tail cat less more head tee touch mkdir cp mv rm ln ls grep wc chmod rsync scp")
	for _, c := range s.Commands {
		if slices.Contains(files, c.Name()) {
			for _, w := range c.Words[1:] {
				look(w)
			}
		}
		for _, w := range c.Redirects {
			look(w)
		}
	}
	return hits
}

func exportDropsEnvironment(s *subject) []hit {
	var hits []hit
	look := func(options []script.Option) {
		o, ok := findOption(options, "export")
		text := o.Value.Text()
		if !ok || text == "" {
			return
		}
		if !slices.ContainsFunc(strings.Split(text, ","), func(item string) bool {
			name, _, _ := strings.Cut(item, "=")
			return strings.Contains(name, "$") || slices.Contains([]string{"ALL", "NONE", "NIL"}, strings.ToUpper(name))
		}) {
			hits = append(hits, hit{at: o.At, message: "--export=" + text + " lists variables without ALL"})
		}
	}
	look(s.Batch)
	for _, c := range s.commandsNamed("srun", "sbatch", "salloc") {
		look(c.Options)
	}
	return hits
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
		if scrubbed || submitsItself(c) ||
			env != nil && (strings.Contains(env.Text(), "-u") || strings.Contains(env.Text(), "-i")) {
			continue
		}
		if o, ok := findOption(c.Options, "export"); ok && o.Value.HasPrefix("NONE") {
			continue
		}
		hits = append(hits, hit{at: c.At})
	}
	return hits
}

// Conditions in scripts that submit themselves: about Slurm's variables, or about arguments.
var (
	asksSlurm     = regexp.MustCompile(`\bSLURM_`)
	asksArguments = regexp.MustCompile(`\$\{?[#1@*]`)
)

// submitsItself reports whether a script submits itself if it does not run in a job:
// if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"; exit; fi.
func submitsItself(c *script.Command) bool {
	itself := slices.ContainsFunc(c.Words, func(w script.Word) bool {
		return slices.ContainsFunc(w.Refs(), func(r *script.Ref) bool { return r.Name == "0" || r.Name == "BASH_SOURCE" })
	})
	return slices.ContainsFunc(c.Guards, func(condition string) bool {
		return asksSlurm.MatchString(condition) || itself && asksArguments.MatchString(condition)
	})
}

// tasksByCPUs finds steps whose number of tasks follows from the CPUs of whole nodes.
func tasksByCPUs(s *subject) []hit {
	has := func(options []script.Option, names ...string) bool {
		return slices.ContainsFunc(options, func(o script.Option) bool { return slices.Contains(names, o.Name) })
	}
	tasks := []string{"ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"}
	if !has(s.Batch, "exclusive") || !has(s.Batch, "cpus-per-task") || has(s.Batch, tasks...) || s.assignsVariable("SLURM_NTASKS") {
		return nil
	}
	var hits []hit
	for _, c := range s.commandsNamed("srun") {
		if !c.Open && !has(c.Options, tasks...) && s.startsTraining(c) {
			hits = append(hits, hit{at: c.At})
		}
	}
	return hits
}

// signalWithoutTrap finds jobs whose batch shell gets a signal before the time limit and does not handle it in time.
func signalWithoutTrap(s *subject) []hit {
	o, ok := findOption(s.Batch, "signal")
	text, known := o.Value.Literal()
	who, signal, ofShell := strings.Cut(text, ":")
	if !ok || !known || !ofShell || !strings.Contains(who, "B") {
		return nil
	}
	signal, _, _ = strings.Cut(strings.TrimPrefix(signal, "SIG"), "@")
	traps := slices.ContainsFunc(s.commandsNamed("trap"), func(c *script.Command) bool {
		return slices.ContainsFunc(c.Words[1:], func(w script.Word) bool {
			return strings.TrimPrefix(w.Text(), "SIG") == signal || len(w.Refs()) > 0
		})
	})
	if !traps {
		return []hit{{at: o.At, message: "the batch shell gets signal " + signal + ", and has no trap for it"}}
	}
	for _, c := range s.Commands {
		trains := c.Name() == "srun" && s.startsTraining(c) || len(c.Via) == 0 && startsTrainer(c)
		if c.Depth == 0 && trains && !c.Background && !c.InFunction {
			return []hit{{
				at: c.At, message: "the batch shell gets signal " + signal + " while " + c.Name() + " runs in the foreground",
				why: "a shell runs a trap only after the command in the foreground has ended, which is too late",
				fix: "run it in the background, and wait: " + c.Name() + " ... & wait",
			}}
		}
	}
	return nil
}
