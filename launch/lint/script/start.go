package script

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// starter describes how a command names the program that it starts.
type starter struct {
	// values are the short options whose value may be the next word, long such long ones.
	values, long string
	// skip is the number of words between the options and the program: the host
	// of ssh, the limit of timeout.
	skip int
	// search: the program is the first word with the name of a known program, for
	// commands with too many options to list.
	search bool
	// behind are the subcommands that start a program; "" for a command without subcommands.
	behind string
	// image: the name of an image or a container stands in front of the program.
	image bool
	// tasks: the program runs once for each task or node.
	tasks bool
	// remote: without the script's environment.
	remote bool
	// shell: the command joins the words and gives them to a shell.
	shell bool
	// sets are the options that set a variable: docker run -e NAME=value.
	sets []string
}

// starters lists the commands that start another, by name.
func starters() map[string]starter {
	docker := starter{search: true, behind: "run exec create", image: true, remote: true, sets: []string{"-e", "--env"}}
	apptainer := starter{search: true, behind: "exec run shell", image: true, sets: []string{"--env"}}
	conda := starter{search: true, behind: "run", values: "np", long: "name prefix"}
	return map[string]starter{
		"env":           {values: "uSC", long: "unset chdir split-string"},
		"exec":          {values: "a"},
		"command":       {},
		"builtin":       {},
		"nohup":         {},
		"setsid":        {},
		"catchsegv":     {},
		"time":          {values: "fo", long: "format output"},
		"timeout":       {values: "ks", long: "kill-after signal", skip: 1},
		"nice":          {values: "n", long: "adjustment"},
		"ionice":        {values: "cnp", long: "class classdata pid"},
		"stdbuf":        {values: "ioe", long: "input output error"},
		"sudo":          {values: "ugpCDhRTrt", long: "user group prompt close-from chdir host chroot command-timeout role type"},
		"sshpass":       {values: "fdpP"},
		"unbuffer":      {},
		"xvfb-run":      {search: true},
		"numactl":       {search: true},
		"taskset":       {search: true},
		"chrt":          {search: true},
		"conda":         conda,
		"mamba":         conda,
		"micromamba":    conda,
		"poetry":        {search: true, behind: "run", values: "CP", long: "directory project"},
		"pipenv":        {search: true, behind: "run"},
		"uv":            {search: true, behind: "run", values: "pw", long: "with with-editable with-requirements python package extra group env-file directory project"},
		"pixi":          {search: true, behind: "run exec", values: "ews", long: "environment with spec manifest-path"},
		"nsys":          {search: true, values: "o", long: "output"},
		"ncu":           {search: true, values: "o", long: "export"},
		"dcgm":          {search: true},
		"strace":        {search: true, values: "o", long: "output"},
		"gdb":           {search: true},
		"apptainer":     apptainer,
		"singularity":   apptainer,
		"enroot":        {search: true, behind: "start exec", image: true},
		"shifter":       {search: true, values: "iVwm", long: "image volume workdir module"},
		"docker":        docker,
		"nvidia-docker": docker,
		"podman":        docker,
		"nerdctl":       docker,
		"kubectl":       {search: true, behind: "exec run", image: true, remote: true},
		"mpirun":        {search: true, tasks: true, sets: []string{"-x"}},
		"mpiexec":       {search: true, tasks: true, sets: []string{"-x"}},
		"orterun":       {search: true, tasks: true, sets: []string{"-x"}},
		"prun":          {search: true, tasks: true},
		"horovodrun":    {search: true, tasks: true},
		"jsrun":         {search: true, tasks: true},
		"flux":          {search: true, tasks: true},
		"aprun":         {search: true, tasks: true},
		"ssh":           {values: "BbcDEeFIiJLlmOopQRSWw", skip: 1, tasks: true, remote: true, shell: true},
		"pdsh":          {values: "wxlutfgR", tasks: true, remote: true, shell: true},
		"clush":         {values: "wxglutfo", tasks: true, remote: true, shell: true},
		"pssh":          {values: "hHlptoeOx", long: "hosts host user par timeout outdir errdir option extra-args", tasks: true, remote: true, shell: true},
		"parallel":      {search: true},
		"xargs":         {search: true},
		"eval":          {shell: true},
	}
}

// isProgram reports whether a word names a known program.
func isProgram(w Word) bool {
	c := Command{Words: []Word{w}}
	name := c.Name()
	if version, python := strings.CutPrefix(name, "python"); python {
		return strings.Trim(version, "0123456789.") == ""
	}
	return slices.Contains([]string{
		"torchrun", "accelerate", "accelerate-launch", "deepspeed", "colossalai", "composer", "bash", "sh", "srun", "env",
		"numactl", "nsys", "singularity", "apptainer",
	}, name)
}

// launcher follows the programs that a shell starts.
type launcher struct{ *shell }

// startProgram follows the program that a command starts.
func (l launcher) startProgram(cmd *Command, document *Word) {
	if l.shells >= maxShells {
		return
	}
	name := cmd.Name()
	switch name {
	case "srun", "salloc":
		// Read the options of srun and salloc.
		var rest []Word
		cmd.Options, rest, cmd.Open = newSlurmOptions(false).parseOptions(cmd.Words[1:])
		for _, w := range exportedVariables(cmd.Options) {
			l.addVariable(cmd, w)
		}
		l.launchWords(cmd, starter{tasks: cmd.Name() == "srun"}, rest, document)
	case "sbatch":
		l.submitBatch(cmd, document)
	case "bash", "sh", "dash", "ksh", "zsh":
		l.startShell(cmd, document)
	default:
		if s, ok := starters()[name]; ok {
			l.startWrapped(cmd, s, document)
		} else if document != nil {
			l.readWrittenScript(cmd, *document)
		} else {
			l.runFile(cmd, cmd.Words[0].Text())
		}
	}
}

// startWrapped finds the program behind a command's options, and follows it.
func (l launcher) startWrapped(cmd *Command, s starter, document *Word) {
	rest := cmd.Words[1:]
	if s.search {
		i := s.findProgram(rest)
		for j, w := range rest[:i] { // docker run -e NAME=value
			name, value, found := w.Cut('=')
			switch {
			case slices.Contains(s.sets, w.Text()) && j+1 < i:
				l.addVariable(cmd, rest[j+1])
			case found && slices.Contains(s.sets, name.Text()):
				l.addVariable(cmd, value)
			}
		}
		l.launchWords(cmd, s, rest[i:], document)
		return
	}
	options := rest
	rest = s.behindOptions(rest)
	if cmd.Name() == "env" {
		cmd.removed, cmd.cleared = removedVariables(options[:len(options)-len(rest)])
	}
	for len(rest) > 0 && (cmd.Name() == "env" || cmd.Name() == "sudo") && l.addVariable(cmd, rest[0]) {
		rest = rest[1:]
	}
	if cmd.Name() == "pdsh" || cmd.Name() == "clush" {
		s.skip = 0
	}
	if cmd.Name() == "ssh" && len(rest) > 0 {
		cmd.Target = rest[0]
	}
	l.launchWords(cmd, s, rest[min(s.skip, len(rest)):], document)
}

// findProgram returns the place of the program; len(words) without one. An environment, a container or an image may have
// the name of a known program.
func (s starter) findProgram(words []Word) int {
	from := 0
	if s.behind != "" {
		from = 1 + slices.IndexFunc(words, func(w Word) bool { return slices.Contains(strings.Fields(s.behind), w.Text()) })
		switch {
		case from > 0 && s.image:
			from++
		case from == 0 && (len(words) == 0 || words[0].Only() == nil):
			return len(words)
		}
	}
	for i := from; i < len(words); i++ {
		option := ""
		if i > 0 && words[i-1].HasPrefix("-") {
			option = words[i-1].Text()
		}
		named := s.takesNext(option) || s.image && option != "" && option != "--" && !strings.Contains(option, "=") ||
			s.image && i+1 < len(words) && isProgram(words[i+1])
		if isProgram(words[i]) && !named {
			return i
		}
	}
	return len(words)
}

// takesNext reports whether the next word is the value of an option.
func (s starter) takesNext(option string) bool {
	if name, long := strings.CutPrefix(option, "--"); long {
		return slices.Contains(strings.Fields(s.long), name)
	}
	// Of short options in one word the first with a value takes the rest of the word.
	return len(option) > 1 && strings.IndexAny(option, s.values) == len(option)-1
}

// behindOptions skips a command's options.
func (s starter) behindOptions(words []Word) []Word {
	for i := 0; i < len(words); i++ {
		text := words[i].Text()
		switch {
		case text == "--":
			return words[i+1:]
		case !strings.HasPrefix(text, "-") || text == "-":
			return words[i:]
		case s.takesNext(text):
			i++
		}
	}
	return nil
}

// removedVariables returns the variables that env takes out of the environment of its program: those
// of -u, or all.
func removedVariables(options []Word) (names []string, all bool) {
	for i, w := range options {
		text := w.Text()
		switch name, long := strings.CutPrefix(text, "--unset="); {
		case long:
			names = append(names, name)
		case text == "-i" || text == "--ignore-environment":
			all = true
		case (text == "-u" || text == "--unset") && i+1 < len(options):
			names = append(names, options[i+1].Text())
		case strings.HasPrefix(text, "-u"):
			names = append(names, text[2:])
		}
	}
	return names, all
}

// addVariable records NAME=value in front of a program.
func (l launcher) addVariable(cmd *Command, w Word) bool {
	name, value, found := w.Cut('=')
	text, known := name.Literal()
	if !found || !known || text == "" || strings.ContainsAny(text, " /") {
		return false
	}
	a := l.newAssignment(text, value, w.At)
	a.Exported = a.Seq
	cmd.Env = append(cmd.Env, a)
	return true
}

// launchWords follows a program, or a script on standard input, that cmd starts.
func (l launcher) launchWords(cmd *Command, s starter, words []Word, document *Word) {
	sub := l.newChild(cmd, s)
	switch {
	case cmd.Name() == "eval" || cmd.Name() == "exec" || cmd.Name() == "command" || cmd.Name() == "builtin":
		sub.env = l.env // the same shell
		if cmd.Name() == "eval" {
			sub.via = l.via
		}
	}
	switch {
	case s.shell && len(words) > 0:
		// Join words with blanks, as ssh and eval do.
		var joined Word
		for i, w := range words {
			if i == 0 {
				joined.At = w.At
			} else {
				joined.Chars = append(joined.Chars, Char{Byte: ' ', At: w.At})
			}
			joined.Chars = append(joined.Chars, w.Chars...)
		}
		launcher{sub}.runText(joined, document)
	case len(words) > 0:
		interpreter{sub}.runCommand(sub.newCommand(words), document)
	case document != nil && s.shell:
		launcher{sub}.runText(*document, nil)
	}
}

// newChild returns the shell state of the programs that cmd starts.
func (l launcher) newChild(cmd *Command, s starter) *shell {
	sub := l.newSubshell()
	sub.shells++
	sub.via = append(slices.Clone(l.via), cmd)
	if s.tasks {
		sub.depth++
	}
	if s.remote {
		sub.remote, sub.env = true, newEnvironment()
	}
	if cmd.cleared {
		sub.env = newEnvironment()
	}
	for _, name := range cmd.removed {
		sub.env.vars[name] = &variable{unset: true}
	}
	for _, a := range cmd.Env {
		v := &variable{value: a.Value, array: a.Array, exported: true, record: a}
		sub.env.vars[a.Name] = v
	}
	return sub
}

// startShell follows bash -c TEXT, or bash with a here-document.
func (l launcher) startShell(cmd *Command, document *Word) {
	sub := l.newChild(cmd, starter{})
	for i := 1; i < len(cmd.Words); i++ {
		arg := cmd.Words[i].Text()
		switch {
		case strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, "c") && i+1 < len(cmd.Words):
			launcher{sub}.keepExported()
			launcher{sub}.runText(cmd.Words[i+1], nil)
			return
		case arg == "-o" || arg == "+o" || arg == "--rcfile" || arg == "--init-file":
			i++
		case !strings.HasPrefix(arg, "-") || arg == "-":
			if arg != "-" {
				l.runFile(cmd, arg)
				return
			}
		}
	}
	if document != nil {
		launcher{sub}.keepExported()
		launcher{sub}.runText(*document, nil)
	}
}

// recordFiles records the text of a here-document that a command writes to files. The text of any other command is unknown.
func (l launcher) recordFiles(cmd *Command, document *Word) {
	var text Word
	if name := cmd.Name(); document != nil && (name == "cat" || name == "tee") {
		text = *document
		for _, w := range cmd.Words[1:] { // tee run.sh
			l.files[path.Clean(w.Text())] = text
		}
	}
	for _, r := range cmd.Redirects {
		name := path.Clean(r.Word.Text())
		switch r.Op {
		case ">>":
			l.files[name] = Word{Chars: slices.Concat(l.files[name].Chars, text.Chars), At: text.At}
			l.budget.chars += len(l.files[name].Chars)
		case ">", ">|":
			l.files[name] = text
		}
	}
}

// runFile follows a script in a file that a here-document of this script has written.
func (l launcher) runFile(cmd *Command, name string) {
	if text, ok := l.files[path.Clean(name)]; ok {
		sub := launcher{l.newChild(cmd, starter{})}
		sub.keepExported()
		sub.runText(text, nil)
	}
}

// keepExported drops the variables that a new shell does not inherit.
func (l launcher) keepExported() {
	child := newEnvironment()
	for name, v := range l.env.vars {
		switch {
		case v.exported && v.array == nil, v.unset:
			child.vars[name] = v
		case !v.exported && v.record != nil && !v.record.Inherited:
			child.vars[name] = &variable{unknown: true, hidden: v.record}
		}
	}
	l.env = child
}

// runText follows a text in another shell. It ignores a text with a syntax error, which
// unknown parts may cause.
func (l launcher) runText(text Word, document *Word) {
	if len(text.Chars) == 0 || l.budget.isSpent() || !l.enterLevel() {
		return
	}
	defer l.leaveLevel()
	src, file, ok := l.parseInner(text)
	if !ok {
		return
	}
	saved := l.src
	l.src = src
	interpreter{l.shell}.runStatements(file.Stmts)
	l.src = saved
	if document == nil || len(file.Stmts) != 1 {
		return
	}
	fields := text.Fields() // ssh host bash <<EOF reads its script from standard input
	name, _ := fields[0].Literal()
	if name = path.Base(name); (name == "bash" || name == "sh") && (len(fields) == 1 || fields[1].HasPrefix("-")) {
		l.keepExported()
		l.runText(*document, nil)
	}
}

// parseInner parses a text for another shell. It is false for a text with a syntax error or too
// much nesting.
func (l launcher) parseInner(text Word) (*source, *syntax.File, bool) {
	src := sourceOf(text)
	if nestingDepth(src.text) > maxNesting {
		return nil, nil, false
	}
	l.budget.chars += len(src.text)
	file, err := src.parseShell()
	return src, file, err == nil
}

// submitBatch follows sbatch: it reads a script in a here-document or in --wrap.
func (l launcher) submitBatch(cmd *Command, document *Word) {
	options, rest, open := newSlurmOptions(true).parseOptions(cmd.Words[1:])
	cmd.Options, cmd.Open = options, open
	for _, w := range exportedVariables(options) {
		l.addVariable(cmd, w)
	}
	for _, o := range options {
		if o.Name == "wrap" {
			l.readInnerScript(o.Value, options)
			return
		}
	}
	if document != nil && len(rest) == 0 {
		l.readInnerScript(*document, options)
	}
}

// readWrittenScript reads a here-document that goes to a file, if it is a script.
func (l launcher) readWrittenScript(cmd *Command, document Word) {
	if name := cmd.Name(); name != "cat" && name != "tee" {
		return
	}
	text := sourceOf(document).text
	first, _, _ := bytes.Cut(text, []byte("\n"))
	shebang, ok := strings.CutPrefix(string(first), "#!")
	if ok && isShellLine(shebang) || bytes.Contains(text, []byte("\n"+directive+" ")) || bytes.HasPrefix(text, []byte(directive+" ")) {
		l.readInnerScript(document, nil)
	}
}

// readInnerScript reads a script in a here-document. Options of the command line
// override the script's.
func (l launcher) readInnerScript(text Word, options []Option) {
	if l.budget.isSpent() || l.shells >= maxShells {
		return
	}
	src, file, ok := l.parseInner(text)
	if !ok {
		return
	}
	levels := l.budget.levels
	s := readScript(src, file, l.budget)
	l.budget.levels = levels
	s.Submitted = options != nil
	s.Batch = append(s.Batch, options...)
	l.script.Inner = append(l.script.Inner, s)
}
