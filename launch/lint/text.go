package lint

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strconv"
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

// hostLine matches a line of a hostfile, also one that DeepSpeed does not read: a host, a word and a number.
var hostLine = regexp.MustCompile(`(?m)^[ \t]*([\w.-]+)[ \t]+([A-Za-z]+)[ \t]*=[ \t]*([0-9]+)[ \t]*$|[ \t](slot)[ \t]*=[ \t]*[0-9$]`)

// hostsOnly matches commands that write a file with a host in each line.
var hostsOnly = regexp.MustCompile(`^(scontrol show hostnames?|srun (-\S+ )*hostname)\b`)

// mpiLine matches lines of other hostfiles: gpu01:8, gpu01 slots 8.
var mpiLine = regexp.MustCompile(`(?m)^[A-Za-z][\w.-]*(?::\d+| slots[ :]\d+)$`)

// hostfileWithoutSlots finds hostfiles of deepspeed that have only the names of hosts.
func hostfileWithoutSlots(s *subject, l *launch) []hit {
	f, ok := l.findFlag("hostfile", "H")
	if l.kind != "deepspeed" || !ok {
		return nil
	}
	if m := mpiLine.FindIndex(s.Text); m != nil && !s.inComment(m[0]) {
		return []hit{{at: m[0], message: "a line of deepspeed's hostfile is not of the form gpu01 slots=8",
			fix: "write a blank and slots=NUMBER behind the host"}}
	}
	if bytes.Contains(s.Text, []byte("slots")) {
		return nil
	}
	for _, c := range s.Commands {
		writes := slices.ContainsFunc(c.Redirects, func(w script.Word) bool { return path.Base(w.Text()) == path.Base(f.value.Text()) })
		if writes && !c.Piped && hostsOnly.MatchString(c.Text()) {
			return []hit{{
				at: c.At, message: "deepspeed's hostfile has only the names of hosts",
				fix: "write slots behind each: scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed 's/$/ slots=8/' > hostfile",
			}}
		}
	}
	return nil
}

func hostfileSlot(s *subject) []hit {
	for _, l := range s.launches {
		if hits := hostfileWithoutSlots(s, l); hits != nil {
			return hits
		}
	}
	slots := map[string]int{}
	for _, l := range s.launches {
		if l.kind != "deepspeed" {
			continue
		}
		for _, m := range hostLine.FindAllSubmatchIndex(s.Text, -1) {
			if m[8] >= 0 && !s.inComment(m[0]) {
				return []hit{{at: m[8]}}
			}
			declares := m[2] >= 0 &&
				slices.Contains([]string{"export", "local", "declare", "readonly", "typeset", "env", "let"}, string(s.Text[m[2]:m[3]]))
			if m[2] < 0 || declares || s.inComment(m[2]) {
				continue
			}
			word := string(s.Text[m[4]:m[5]])
			if word != "slots" && s.hasHostfile(l) {
				return []hit{{at: m[4], message: "a line of deepspeed's hostfile has " + word + "= in place of slots="}}
			}
			slots[string(s.Text[m[2]:m[3]])], _ = strconv.Atoi(string(s.Text[m[6]:m[7]])) //nolint:errcheck // digits
		}
		if hits := includesMissingSlot(l, slots); hits != nil {
			return hits
		}
	}
	return nil
}

// includesMissingSlot finds GPUs in --include that the script's hostfile does not have.
func includesMissingSlot(l *launch, slots map[string]int) []hit {
	f, _ := l.findFlag("include", "i")
	text, known := f.value.Literal()
	for part := range strings.SplitSeq(text, "@") {
		host, list, _ := strings.Cut(part, ":")
		for device := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(device); known && err == nil && slots[host] > 0 && n >= slots[host] {
				return []hit{{
					at:      f.value.Origin(),
					message: "--include has GPU " + device + " of " + host + ", which has " + strconv.Itoa(slots[host]) + " slots in the hostfile",
					why:     "deepspeed stops (\"No slot " + device + " specified\"): slots count all GPUs of a host, and --include chooses among them",
					fix:     "write the number of the host's GPUs behind slots=",
				}}
			}
		}
	}
	return nil
}
