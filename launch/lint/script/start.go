package script

import (
	"slices"
	"strings"
)

// wrapper describes a command that starts the program among its words.
type wrapper struct {
	// subcommands lists the subcommands that start a program; empty if the command has none.
	subcommands string
	// image reports whether the name of an image or a container precedes the program.
	image bool
	// named reports whether an option's value may be the name of an environment or a file.
	named bool
	// tasks reports whether the program runs once per task.
	tasks bool
	// remote reports whether the program lacks the script's environment.
	remote bool
}

// wrappers lists the commands that start another, by name.
func wrappers() map[string]wrapper {
	all := map[string]wrapper{}
	for names, w := range map[string]wrapper{
		"env nohup setsid time timeout nice ionice stdbuf sudo unbuffer numactl taskset chrt": {},
		"nsys ncu shifter": {named: true},
		"conda mamba micromamba poetry pipenv uv pixi": {subcommands: "run", named: true},
		"apptainer singularity enroot": {
			subcommands: "exec run shell start", image: true, named: true,
		},
		"docker nvidia-docker podman nerdctl kubectl": {
			subcommands: "run exec create", image: true, named: true, remote: true,
		},
		"mpirun mpiexec orterun prun horovodrun jsrun flux aprun": {tasks: true},
	} {
		for _, name := range strings.Fields(names) {
			all[name] = w
		}
	}
	return all
}

// isProgram reports whether a word names a launcher, python, or a command that starts other programs.
func isProgram(w Word) bool {
	c := Command{Words: []Word{w}}
	name := c.Name()
	if _, ok := wrappers()[name]; ok {
		return true
	}
	for _, versioned := range []string{"python", "pip"} {
		if version, ok := strings.CutPrefix(name, versioned); ok && strings.Trim(version, "0123456789.") == "" {
			return true
		}
	}
	return slices.Contains(strings.Fields(`torchrun accelerate accelerate-launch deepspeed colossalai composer
		llamafactory-cli lmf axolotl swift xtuner bash sh srun sbatch apt apt-get aptitude`), name)
}

// startProgram follows the program that a command starts.
func (sh *shell) startProgram(cmd *Command) {
	if sh.shells >= maxShells {
		return
	}
	rest := cmd.Words[1:]
	switch name := cmd.Name(); name {
	case "srun", "salloc":
		cmd.Options, rest, cmd.Open = newSlurmOptions(false).parseOptions(rest)
		sh.addVariables(cmd, exportedVariables(cmd.Options))
		sh.startWords(cmd, wrapper{tasks: name == "srun"}, rest)
	case "sbatch":
		cmd.Options, _, cmd.Open = newSlurmOptions(true).parseOptions(rest)
		sh.addVariables(cmd, exportedVariables(cmd.Options))
	case "bash", "sh", "dash", "ksh", "zsh":
		sh.startShell(cmd)
	case "exec", "command", "builtin": // in this shell
		if len(rest) > 0 && !rest[0].HasPrefix("-") {
			sub := sh.newChild(cmd, wrapper{})
			sub.env = sh.env
			sub.runCommand(sub.newCommand(rest))
		}
	default:
		if w, ok := wrappers()[name]; ok {
			i := w.findProgram(rest)
			sh.addVariables(cmd, rest[:i])
			sh.startWords(cmd, w, rest[i:])
		}
	}
}

// findProgram returns the index of the program, len(words) without one. The name of an environment,
// a container or an image is the value of an option or comes right before the program.
func (w wrapper) findProgram(words []Word) int {
	from := 0
	if w.subcommands != "" {
		from = 1 + slices.IndexFunc(words, func(one Word) bool {
			return slices.Contains(strings.Fields(w.subcommands), one.Text())
		})
		if from == 0 {
			return len(words)
		}
		if w.image {
			from++
		}
	}
	for i := from; i < len(words); i++ {
		if !isProgram(words[i]) {
			continue
		}
		behindOption := i > 0 && words[i-1].HasPrefix("-") && words[i-1].Text() != "--" &&
			!strings.Contains(words[i-1].Text(), "=")
		next := i + 1 + slices.IndexFunc(words[i+1:], isProgram)
		if !w.named || next == i || next > i+1 && !behindOption {
			return i
		}
	}
	return len(words)
}

// addVariables records the variables in front of a program: NAME=value, --env=NAME=value.
func (sh *shell) addVariables(cmd *Command, words []Word) {
	for _, w := range words {
		name, value, found := w.Cut('=')
		if name.Text() == "--env" {
			name, value, found = value.Cut('=')
		}
		text, known := name.Literal()
		if !found || !known || text == "" || strings.HasPrefix(text, "-") || strings.ContainsAny(text, " /") {
			continue
		}
		a := sh.newAssignment(text, value, w.At)
		a.Exported = a.Seq
		cmd.Env = append(cmd.Env, a)
	}
}

// startWords follows a program that cmd starts.
func (sh *shell) startWords(cmd *Command, w wrapper, words []Word) {
	if len(words) > 0 {
		sub := sh.newChild(cmd, w)
		sub.runCommand(sub.newCommand(words))
	}
}

// newChild returns the shell state of the programs that cmd starts.
func (sh *shell) newChild(cmd *Command, w wrapper) *shell {
	sub := sh.newSubshell()
	sub.shells++
	sub.Via = append(slices.Clone(sh.Via), cmd)
	if w.tasks {
		sub.Depth++
	}
	if w.remote {
		sub.Remote, sub.env = true, &environment{vars: map[string]*variable{}}
	}
	if cmd.Name() == "env" && len(cmd.Words) > 1 && cmd.Words[1].HasPrefix("-") { // env -i, env -u NAME
		for name := range sub.env.vars {
			sub.forget(name)
		}
	}
	for _, a := range cmd.Env {
		sub.env.vars[a.Name] = &variable{value: a.Value, exported: true, record: a}
	}
	return sub
}

// startShell follows bash -c TEXT. It ignores a text with a syntax error, which unknown parts may
// cause.
func (sh *shell) startShell(cmd *Command) {
	var text Word
	for i := 1; i+1 < len(cmd.Words) && len(text.Chars) == 0; i++ {
		switch option := cmd.Words[i].Text(); {
		case strings.HasPrefix(option, "-") && !strings.HasPrefix(option, "--") && strings.Contains(option, "c"):
			text = cmd.Words[i+1]
		case strings.HasPrefix(option, "-") && strings.HasSuffix(option, "o"): // -o pipefail
			i++
		case !strings.HasPrefix(option, "-"):
			return
		}
	}
	src := sourceOf(text)
	sh.budget.chars += len(src.text)
	if len(src.text) == 0 || nestingDepth(src.text) > maxNesting || sh.budget.isSpent() || !sh.enterLevel() {
		return
	}
	defer sh.leaveLevel()
	file, err := src.parseShell()
	if err != nil {
		return
	}
	sub := sh.newChild(cmd, wrapper{})
	for name, v := range sub.env.vars { // the new shell inherits only exported variables
		if !v.exported && !v.unset {
			sub.env.vars[name] = &variable{unknown: true, record: v.record, lost: !v.unknown && !v.record.Inherited}
		}
	}
	sub.src = src
	sub.runStatements(file.Stmts)
}
