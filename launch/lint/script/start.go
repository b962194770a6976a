package script

import (
	"bytes"
	"path"
	"slices"
	"strings"
)

// starter says how a command names the program that it starts.
type starter struct {
	// values are the short options whose value may be the next word.
	values string
	// skip is how many words follow the options before the program: the host of
	// ssh, the limit of timeout.
	skip int
	// search finds the program as the first word that is called like one, for
	// commands with too many options to know.
	search bool
	// tasks: the program runs once for each task or node.
	tasks bool
	// remote: without our environment.
	remote bool
	// shell: the words are put together and given to a shell.
	shell bool
	// sets are the options that set a variable: docker run -e NAME=value.
	sets []string
}

// starters are the commands that start another, by name.
func starters() map[string]starter {
	return map[string]starter{
		"env":           {values: "uSC"},
		"exec":          {values: "a"},
		"command":       {},
		"builtin":       {},
		"nohup":         {},
		"setsid":        {},
		"catchsegv":     {},
		"time":          {values: "fo"},
		"timeout":       {values: "ks", skip: 1},
		"nice":          {values: "n"},
		"ionice":        {values: "cnp"},
		"stdbuf":        {values: "ioe"},
		"sudo":          {values: "ugpCDhRTr"},
		"sshpass":       {values: "fdpP"},
		"unbuffer":      {},
		"xvfb-run":      {search: true},
		"numactl":       {search: true},
		"taskset":       {search: true},
		"chrt":          {search: true},
		"conda":         {search: true},
		"mamba":         {search: true},
		"micromamba":    {search: true},
		"poetry":        {search: true},
		"pipenv":        {search: true},
		"uv":            {search: true},
		"pixi":          {search: true},
		"nsys":          {search: true},
		"ncu":           {search: true},
		"dcgm":          {search: true},
		"strace":        {search: true},
		"gdb":           {search: true},
		"apptainer":     {search: true, sets: []string{"--env"}},
		"singularity":   {search: true, sets: []string{"--env"}},
		"enroot":        {search: true},
		"shifter":       {search: true},
		"docker":        {search: true, remote: true, sets: []string{"-e", "--env"}},
		"nvidia-docker": {search: true, remote: true, sets: []string{"-e", "--env"}},
		"podman":        {search: true, remote: true, sets: []string{"-e", "--env"}},
		"nerdctl":       {search: true, remote: true, sets: []string{"-e", "--env"}},
		"kubectl":       {search: true, remote: true},
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
		"pssh":          {values: "hHlptoeOx", tasks: true, remote: true, shell: true},
		"parallel":      {search: true},
		"xargs":         {search: true},
		"eval":          {shell: true},
	}
}

// isProgram reports whether a word is called like something that launches.
func isProgram(w Word) bool {
	c := Command{Words: []Word{w}}
	switch name := c.Name(); {
	case strings.HasPrefix(name, "python"):
		return !strings.ContainsAny(name, "=:") && !strings.HasSuffix(name, ".sif")
	default:
		return slices.Contains([]string{
			"torchrun", "accelerate", "accelerate-launch", "deepspeed", "colossalai", "composer", "bash", "sh", "srun", "env", "numactl", "nsys", "singularity", "apptainer",
		}, name)
	}
}

// start follows what a command starts.
func (in *interpreter) start(cmd *Command, document *Word) {
	if in.shells >= maxShells {
		return
	}
	name := cmd.Name()
	switch name {
	case "srun", "salloc":
		in.slurm(cmd, document)
	case "sbatch":
		in.submit(cmd, document)
	case "bash", "sh", "dash", "ksh", "zsh":
		in.shell(cmd, document)
	default:
		if s, ok := starters()[name]; ok {
			in.program(cmd, s, document)
		} else if document != nil {
			in.write(cmd, *document)
		}
	}
}

// slurm reads the options of srun and salloc.
func (in *interpreter) slurm(cmd *Command, document *Word) {
	var rest []Word
	cmd.Options, rest, cmd.Open = newSlurmOptions(false).parse(cmd.Words[1:])
	for _, w := range exported(cmd.Options) {
		in.setsVariable(cmd, w)
	}
	in.launch(cmd, starter{tasks: cmd.Name() == "srun"}, rest, document)
}

// program finds what a command starts, and follows it.
func (in *interpreter) program(cmd *Command, s starter, document *Word) {
	rest := cmd.Words[1:]
	if s.search {
		i := slices.IndexFunc(rest, isProgram)
		if i < 0 {
			i = len(rest)
		}
		in.optionsThatSet(cmd, s.sets, rest[:i])
		in.launch(cmd, s, rest[i:], document)
		return
	}
	rest = behindOptions(rest, s.values)
	for len(rest) > 0 && (cmd.Name() == "env" || cmd.Name() == "sudo") && in.setsVariable(cmd, rest[0]) {
		rest = rest[1:]
	}
	if cmd.Name() == "pdsh" || cmd.Name() == "clush" {
		s.skip = 0
	}
	if cmd.Name() == "ssh" && len(rest) > 0 {
		cmd.Target = rest[0]
	}
	in.launch(cmd, s, rest[min(s.skip, len(rest)):], document)
}

// behindOptions passes over a command's options.
func behindOptions(words []Word, values string) []Word {
	for i := 0; i < len(words); i++ {
		text := words[i].Text()
		switch {
		case text == "--":
			return words[i+1:]
		case !strings.HasPrefix(text, "-") || text == "-":
			return words[i:]
		case len(text) == 2 && strings.IndexByte(values, text[1]) >= 0:
			i++
		}
	}
	return nil
}

// setsVariable notes NAME=value in front of a program.
func (in *interpreter) setsVariable(cmd *Command, w Word) bool {
	name, value, found := w.Cut('=')
	text, known := name.Literal()
	if !found || !known || text == "" || strings.ContainsAny(text, " /") {
		return false
	}
	a := in.newAssignment(text, value, w.At)
	a.Exported = a.Seq
	cmd.Env = append(cmd.Env, a)
	return true
}

// optionsThatSet notes the variables of options such as docker's -e.
func (in *interpreter) optionsThatSet(cmd *Command, names []string, words []Word) {
	for i, w := range words {
		name, value, found := w.Cut('=')
		switch {
		case slices.Contains(names, w.Text()) && i+1 < len(words):
			in.setsVariable(cmd, words[i+1])
		case found && slices.Contains(names, name.Text()):
			in.setsVariable(cmd, value)
		}
	}
}

// launch runs words, or a script on standard input, by means of cmd.
func (in *interpreter) launch(cmd *Command, s starter, words []Word, document *Word) {
	sub := in.started(cmd, s)
	switch {
	case cmd.Name() == "eval" || cmd.Name() == "exec" || cmd.Name() == "command" || cmd.Name() == "builtin":
		sub.env = in.env // the same shell
		if cmd.Name() == "eval" {
			sub.via = in.via
		}
	}
	switch {
	case s.shell && len(words) > 0:
		sub.payload(join(words), document)
	case len(words) > 0:
		sub.command(sub.newCommand(words), document)
	case document != nil && s.shell:
		sub.payload(*document, nil)
	}
	in.script = sub.script
}

// started is the situation of what cmd starts.
func (in *interpreter) started(cmd *Command, s starter) *interpreter {
	sub := in.fork()
	sub.shells++
	sub.via = append(slices.Clone(in.via), cmd)
	if s.tasks {
		sub.depth++
	}
	if s.remote {
		sub.remote, sub.env = true, newEnvironment()
	}
	for _, a := range cmd.Env {
		v := &variable{value: a.Value, array: a.Array, exported: true, record: a}
		sub.env.vars[a.Name] = v
	}
	return sub
}

// shell is bash -c PAYLOAD, or bash with a here-document.
func (in *interpreter) shell(cmd *Command, document *Word) {
	sub := in.started(cmd, starter{})
	for i := 1; i < len(cmd.Words); i++ {
		arg := cmd.Words[i].Text()
		switch {
		case strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, "c") && i+1 < len(cmd.Words):
			sub.newShell()
			sub.payload(cmd.Words[i+1], nil)
			return
		case arg == "-o" || arg == "+o" || arg == "--rcfile" || arg == "--init-file":
			i++
		case !strings.HasPrefix(arg, "-") || arg == "-":
			if arg != "-" {
				return // a script that is not here
			}
		}
	}
	if document != nil {
		sub.newShell()
		sub.payload(*document, nil)
	}
}

// newShell leaves what another shell does not have.
func (in *interpreter) newShell() { in.env = in.env.child() }

// payload runs a text in another shell. What is no shell is passed over: it
// may become one by what is unknown.
func (in *interpreter) payload(text Word, document *Word) {
	if len(text.Chars) == 0 || in.budget.spent() || !in.enter() {
		return
	}
	defer in.leave()
	src := sourceOf(text)
	if nesting(src.text) > maxNesting {
		return
	}
	in.budget.chars += len(src.text)
	file, err := src.parse()
	if err != nil {
		return
	}
	saved := in.src
	in.src = src
	in.stmts(file.Stmts)
	in.src = saved
	if document != nil && len(file.Stmts) == 1 && in.onlyShell(text) {
		in.newShell()
		in.payload(*document, nil)
	}
}

// onlyShell reports whether a remote command reads its script from standard
// input: ssh host bash <<EOF.
func (in *interpreter) onlyShell(text Word) bool {
	fields := text.Fields()
	name, _ := fields[0].Literal()
	name = path.Base(name)
	return (name == "bash" || name == "sh") && (len(fields) == 1 || fields[1].HasPrefix("-"))
}

// submit is sbatch: a script in a here-document or in --wrap is read.
func (in *interpreter) submit(cmd *Command, document *Word) {
	options, rest, open := newSlurmOptions(true).parse(cmd.Words[1:])
	cmd.Options, cmd.Open = options, open
	for _, w := range exported(options) {
		in.setsVariable(cmd, w)
	}
	for _, o := range options {
		if o.Name == "wrap" {
			in.inner(o.Value, options)
			return
		}
	}
	if document != nil && len(rest) == 0 {
		in.inner(*document, options)
	}
}

// write is a here-document that goes to a file: is it a script?
func (in *interpreter) write(cmd *Command, document Word) {
	if name := cmd.Name(); name != "cat" && name != "tee" {
		return
	}
	text := sourceOf(document).text
	first, _, _ := bytes.Cut(text, []byte("\n"))
	shebang, ok := strings.CutPrefix(string(first), "#!")
	if ok && shellLine(shebang) || bytes.Contains(text, []byte("\n"+directive+" ")) || bytes.HasPrefix(text, []byte(directive+" ")) {
		in.inner(document, nil)
	}
}

// inner reads a script of its own. Options of the command line go before what
// the script says.
func (in *interpreter) inner(text Word, options []Option) {
	if in.budget.spent() || in.shells >= maxShells {
		return
	}
	src := sourceOf(text)
	if nesting(src.text) > maxNesting {
		return
	}
	in.budget.chars += len(src.text)
	file, err := src.parse()
	if err != nil {
		return
	}
	levels := in.budget.levels
	s := run(src, file, in.budget)
	in.budget.levels = levels
	s.Submitted = options != nil
	s.Batch = append(s.Batch, options...)
	in.script.Inner = append(in.script.Inner, s)
}
