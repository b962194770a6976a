package lint

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// inComment reports whether a byte of the file is in a comment.
func (s *subject) inComment(at int) bool {
	return slices.ContainsFunc(s.Comments, func(c script.Comment) bool { return c.At <= at && at <= c.At+len(c.Text) })
}

func placeholder(s *subject) []hit {
	var hits []hit
	for _, span := range s.Unfilled {
		says := string(s.Text[span[0]:span[1]]) + " stands for a value"
		hits = append(hits, hit{at: span[0], message: says})
	}
	return hits
}

func unreadPart(s *subject) []hit {
	if s.End >= len(s.Text) {
		return nil
	}
	return []hit{{at: s.End}}
}

func commandCut(s *subject) []hit {
	var hits []hit
	for _, c := range s.Commands {
		text, _ := c.Words[0].Literal()
		if option := strings.TrimLeft(text, "-"); len(option) == len(text) || !startsWithLetter(option) {
			continue
		}
		hits = append(hits, hit{at: c.At, message: showWord(c.Words[0]) + " begins a separate command"})
	}
	for _, l := range s.launches {
		_, asks := l.findFlag("help", "h", "version")
		swallowed := func(f flag) bool { // by an option that this package does not know
			return strings.HasSuffix(f.value.Text(), ".py") || slices.ContainsFunc(f.value.Refs(), func(r *script.Ref) bool { return r.Several })
		}
		if len(l.program) > 0 || l.open || asks || l.anyFlag(swallowed) {
			continue
		}
		hits = append(hits, hit{
			at: l.At, message: l.kind + " has no program after its options",
			why: "it ends immediately with a message about its arguments, and the lines below run without it",
		})
	}
	for _, c := range s.commandsNamed("srun") {
		if startsNothing(s, c) {
			hits = append(hits, hit{
				at: c.At, message: "srun has no program after its options",
				why: "it ends immediately (\"No command given to execute\"), and the lines below run once, on the first node",
			})
		}
	}
	return hits
}

func startsWithLetter(text string) bool {
	return text != "" && (text[0]|0x20 >= 'a' && text[0]|0x20 <= 'z')
}

func (l *launch) anyFlag(is func(flag) bool) bool {
	for _, f := range l.flags {
		if is(f) {
			return true
		}
	}
	return false
}

// startsNothing reports whether srun has options only, each of which has no value or one behind =.
func startsNothing(s *subject, srun *script.Command) bool {
	if srun.Open || len(srun.Words) < 2 || slices.ContainsFunc(srun.Options, func(o script.Option) bool {
		return slices.Contains([]string{"help", "usage", "version", "test-only"}, o.Name)
	}) {
		return false
	}
	started := slices.ContainsFunc(s.Commands, func(c *script.Command) bool { return slices.Contains(c.Via, srun) })
	return !started && !slices.ContainsFunc(srun.Words[1:], func(w script.Word) bool { return !w.HasPrefix("-") || w.Text() == "--" })
}

// ofJob matches patterns of Slurm that differ between jobs.
var ofJob = regexp.MustCompile(`%[0-9]*[jJAa]`)

func outputFolder(s *subject) []hit {
	for _, name := range []string{"output", "error"} {
		o, ok := findOption(s.Batch, name)
		file, known := o.Value.Literal()
		folder := path.Dir(file)
		if !ok || !known || folder == "." || strings.HasPrefix(folder, "/dev") {
			continue
		}
		if ofJob.MatchString(folder) {
			return []hit{{at: o.At, message: folder + " in --" + name + " is a different directory for each job"}}
		}
		for _, c := range s.commandsNamed("mkdir") {
			makes := func(w script.Word) bool {
				made := path.Clean(w.Text())
				return !w.HasPrefix("-") && (made == folder || strings.HasPrefix(made, folder+"/") || strings.HasPrefix(folder, made+"/"))
			}
			if c.Depth == 0 && slices.ContainsFunc(c.Words[1:], makes) {
				return []hit{{
					at: o.At, severity: Warning,
					message: "--" + name + " is in " + folder + ", which the script itself creates",
					why: "Slurm opens the file before the script runs, so the job fails at once, without a log, " +
						"if the directory does not exist yet",
				}}
			}
		}
	}
	return nil
}

// hostLine matches a line of a hostfile that DeepSpeed does not read.
var hostLine = regexp.MustCompile(`(?m)[ \t](slot)[ \t]*=[ \t]*[0-9$]`)

func hostfileSlot(s *subject) []hit {
	if !slices.ContainsFunc(s.launches, func(l *launch) bool { return l.kind == "deepspeed" }) {
		return nil
	}
	for _, m := range hostLine.FindAllSubmatchIndex(s.Text, -1) {
		if !s.inComment(m[0]) {
			return []hit{{at: m[2]}}
		}
	}
	return nil
}
