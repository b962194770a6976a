package script

import (
	"slices"
	"strings"
)

// Option is an option of a command with its long name: nodes, for -N 2,
// -N2, --nodes 2 and --nodes=2.
type Option struct {
	Name  string
	Value Word
	At    int
}

// slurmOptions is the syntax of the options of sbatch, srun and salloc (Slurm 22.05 to
// 25.11) and of pyxis. Long options with a value in the next word need no entry.
type slurmOptions struct {
	short map[byte]string // short option → long
	flags map[string]bool // long options without a value, or with one only behind =
}

func newSlurmOptions(batch bool) slurmOptions {
	short := map[byte]string{
		'A': "account", 'B': "extra-node-info", 'C': "constraint", 'D': "chdir", 'F': "nodefile", 'G': "gpus",
		'H': "hold", 'I': "immediate", 'J': "job-name", 'K': "kill-on-bad-exit", 'L': "licenses", 'M': "clusters",
		'N': "nodes", 'O': "overcommit", 'Q': "quiet", 'S': "core-spec", 'V': "version", 'b': "begin",
		'c': "cpus-per-task", 'd': "dependency", 'e': "error", 'h': "help", 'i': "input", 'k': "no-kill",
		'm': "distribution", 'n': "ntasks", 'o': "output", 'p': "partition", 'q': "qos", 's': "oversubscribe",
		't': "time", 'v': "verbose", 'w': "nodelist", 'x': "exclude",
	}
	if batch {
		short['a'], short['W'] = "array", "wait"
	} else {
		short['E'], short['T'], short['W'] = "preserve-env", "threads", "wait"
		short['X'], short['Z'] = "disable-status", "no-allocate"
		short['l'], short['r'], short['u'] = "label", "relative", "unbuffered"
	}
	flags := map[string]bool{}
	for _, name := range strings.Fields(`
		bcast compress container-entrypoint container-mount-home container-readonly container-remap-root
		container-writable no-container-entrypoint no-container-mount-home no-container-remap-root
		contiguous disable-status exact exclusive get-user-env
		help hold ignore-pbs immediate interactive kill-on-bad-exit label multi-prog nice no-allocate no-bell no-kill
		no-requeue no-shell overcommit overlap oversubscribe parsable preserve-env preserve-slurm-env propagate pty
		quiet quit-on-interrupt reboot requeue resv-ports send-libs spread-job stepmgr test-only unbuffered usage
		use-min-nodes verbose version x11`) {
		flags[name] = true
	}
	if batch {
		flags["wait"] = true
	}
	return slurmOptions{short, flags}
}

// parseOptions splits the words behind a command's name into its options and the rest:
// a program with its arguments. open reports whether a variable may hold more options.
func (o slurmOptions) parseOptions(words []Word) (options []Option, rest []Word, open bool) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		text, unknown := w.Text(), w.Only()
		// --nodelist="${N[@]:0:2}": srun takes the second word for its program.
		open = open || w.HasPrefix("-") && slices.ContainsFunc(w.Refs(), func(r *Ref) bool { return r.Several })
		switch {
		case text == "--":
			return options, words[i+1:], open
		case w.HasPrefix("--"):
			name, value, found := w.Slice(2, len(w.Chars)).Cut('=')
			option := Option{Name: name.Text(), Value: value, At: w.At}
			if option.Name == "tasks-per-node" { // an old name
				option.Name = "ntasks-per-node"
			}
			if !found && !o.flags[option.Name] && i+1 < len(words) && mayBeValue(option.Name, words[i+1]) {
				i++
				option.Value = words[i]
			}
			options = append(options, option)
		case w.HasPrefix("-") && len(w.Chars) > 1:
			more, used := o.parseShortOptions(w, words[i+1:])
			options = append(options, more...)
			i += used
		case unknown != nil && i+1 < len(words) &&
			(unknown.NamesOptions() || words[i+1].HasPrefix("-") || isProgram(words[i+1])):
			open = true // $SRUN_ARGS
		default:
			return options, words[i:], open
		}
	}
	return options, nil, open
}

// mayBeValue reports whether a word may be the value of an option. The option of a plugin that is not
// known may have none: it takes neither a further option nor a program.
func mayBeValue(option string, next Word) bool {
	named := strings.Fields(`account chdir comment
		container-image container-name container-save container-workdir
		error input job-name output partition qos reservation wckey`) // any name or path
	text := next.Text()
	negative := len(text) > 1 && text[1] >= '0' && text[1] <= '9'
	return (!strings.HasPrefix(text, "-") || negative) && (slices.Contains(named, option) || !isProgram(next))
}

// parseShortOptions reads combined options such as -lN2; used is 1 if the value is the
// next word.
func (o slurmOptions) parseShortOptions(w Word, next []Word) (options []Option, used int) {
	for i := 1; i < len(w.Chars); i++ {
		c := w.Chars[i]
		if c.Ref != nil {
			return options, 0
		}
		name, known := o.short[c.Byte]
		if !known {
			name = string(rune(c.Byte))
		}
		option := Option{Name: name, At: w.At, Value: Word{At: w.At}}
		if o.flags[name] || !known {
			options = append(options, option)
			continue
		}
		switch {
		case i+1 < len(w.Chars):
			value := w.Slice(i+1, len(w.Chars))
			if value.HasPrefix("=") {
				value = value.Slice(1, len(value.Chars))
			}
			option.Value = value
		case len(next) > 0:
			option.Value, used = next[0], 1
		}
		return append(options, option), used
	}
	return options, 0
}

// exportedVariables returns the assignments in --export=ALL,NAME=value.
func exportedVariables(options []Option) []Word {
	var all []Word
	for _, o := range options {
		if o.Name != "export" {
			continue
		}
		for rest, found := o.Value, true; found; {
			var one Word
			one, rest, found = rest.Cut(',')
			if _, _, sets := one.Cut('='); sets {
				all = append(all, one)
			}
		}
	}
	return all
}

const directive = "#SBATCH"

// findDirectives finds the #SBATCH lines. Slurm reads those before the first command, and only if
// the line begins with the #.
func findDirectives(text string) (before, after []Directive) {
	started, at := false, 0
	for line := range strings.Lines(text) {
		options, found := strings.CutPrefix(line, directive)
		switch {
		case found && (options == "" || strings.ContainsAny(options[:1], " \t\r\n")):
			d := Directive{At: at, Words: directiveWords(options, at+len(directive))}
			if started {
				after = append(after, d)
			} else {
				before = append(before, d)
			}
		case template.MatchString(line) && strings.HasPrefix(strings.TrimSpace(line), "{%"):
		case strings.TrimSpace(line) != "" && !strings.HasPrefix(strings.TrimSpace(line), "#"):
			started = true
		}
		at += len(line)
	}
	return before, after
}

// directiveWords splits a line as sbatch does: at blanks, with both quotes and
// backslashes, up to a # at the beginning of a word. sbatch expands nothing.
func directiveWords(line string, at int) []Word {
	var words []Word
	started, escaped := false, false
	var quote byte
	begin := func(i int) *Word {
		if !started {
			words, started = append(words, Word{At: at + i}), true
		}
		return &words[len(words)-1]
	}
	unknown := append(template.FindAllStringIndex(line, -1), fillIn.FindAllStringIndex(line, -1)...)
	for i := 0; i < len(line); i++ {
		if j := slices.IndexFunc(unknown, func(span []int) bool { return span[0] == i }); j >= 0 {
			w := begin(i)
			w.Chars = append(w.Chars, Char{Ref: &Ref{text: line[i:unknown[j][1]]}, At: at + i})
			i = unknown[j][1] - 1
			continue
		}
		b := line[i]
		switch {
		case !escaped && b == '\\' && quote != '\'':
			escaped = true
		case !escaped && quote != 0 && b == quote:
			quote = 0
		case !escaped && quote == 0 && (b == '"' || b == '\''):
			quote = b
			begin(i)
		case !escaped && quote == 0 && (isBlank(b) || b == '\r'):
			started = false
		case !escaped && quote == 0 && !started && b == '#':
			return words
		default:
			w := begin(i)
			w.Chars = append(w.Chars, Char{Byte: b, At: at + i})
			escaped = false
		}
	}
	return words
}
