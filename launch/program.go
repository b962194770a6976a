package launch

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// program returns the interpreter's arguments: a file, or -m and a module.
func (j *Job) program() []string {
	if j.Module {
		return []string{"-m", j.Script}
	}
	return []string{j.Script}
}

// takeCommand reads the words after "--": a Python file, or -m and a module as for
// torchrun, and the arguments.
func (b *builder) takeCommand(words []string) {
	j := b.job
	if len(words) > 0 {
		j.Script, j.Args, j.Module = words[0], words[1:], false
		if slices.Contains([]string{"-m", "--module"}, words[0]) && len(words) > 1 {
			j.Script, j.Args, j.Module = words[1], words[2:], true
		}
		for _, key := range []string{"script", "module", "args"} {
			delete(b.said, key)
		}
	}
	if _, both := b.said["module"]; both && b.isSet("script") {
		b.addProblem(b.said["module"], "remove one of them", "script and module are mutually exclusive")
	}
	for _, w := range append([]string{j.Script}, j.Args...) {
		if strings.ContainsRune(w, 0) {
			b.Add(b.said["script"].At, "", "invalid command: contains a NUL byte")
			return
		}
	}
	if j.Module {
		script := b.job.Script
		module, isFile := strings.CutSuffix(script, ".py")
		switch {
		case !regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`).MatchString(script): // as Python imports it
			b.addProblem(b.said["module"], "specify a module: -- -m pkg.train --epochs 3",
				"%q is not the name of a Python module", script)
		case isFile:
			b.addProblem(b.said["module"], "use -- "+script+" to run the file, or -- -m "+module+" for the module",
				"%q is a file, but -m requires a module", script)
		}
	} else {
		b.checkScript()
	}
	// Reject paired lists of different lengths: each data set needs its configuration.
	names, ok1 := b.findArgument("--dataset_name")
	configs, ok2 := b.findArgument("--dataset_config_name", "--dataset_config")
	if n, c := strings.Count(names, ",")+1, strings.Count(configs, ",")+1; ok1 && ok2 && n != c && (n > 1 || c > 1) {
		b.Add(b.said["args"].At, `use one configuration per data set, or "none" for data sets without configurations`,
			"--dataset_name lists %d data sets, but --dataset_config_name lists %d configurations", n, c)
	}
}

// checkScript rejects commands that launchers cannot run as a Python file.
func (b *builder) checkScript() {
	script := b.job.Script
	said := b.said["script"]
	if script == "" {
		b.Add(said.At, "add the script at the end: -- train.py --epochs 3", "missing script")
		return
	}
	word := script
	fields := strings.Fields(script)
	if len(fields) > 1 && (classifyFirstWord(fields[0]) != pythonFile || strings.HasPrefix(fields[1], "-")) {
		if word = fields[0]; classifyFirstWord(word) == pythonFile {
			b.addProblem(said, "remove the quotes: -- "+script,
				"invalid script %q: arguments must be separate words", script)
			return
		}
	}
	const start = "specify only the Python program: -- train.py --epochs 3"
	switch classifyFirstWord(word) {
	case interpreter:
		b.addProblem(said,
			"omit the interpreter and its options: -- train.py, or -- -m pkg.train; to choose an interpreter, use --python",
			"the command begins with %q, but the launcher starts the interpreter itself", word)
	case launcher:
		b.addProblem(said, start,
			"the command begins with the launcher %q, which would run in every process", word)
	case shell:
		b.addProblem(said,
			start+"; to prepare its environment, use --python .venv/bin/python or --setup",
			"the command begins with %q, which is not a Python program", word)
	case variable:
		name, _, _ := strings.Cut(word, "=")
		b.addProblem(said, "set it with --env "+name+"=VALUE", "the command begins with %q, which sets a variable", word)
	case option:
		b.addProblem(said, "start with the path of a Python file, or -m MODULE",
			"invalid script %q: looks like an option", word)
	case other:
		b.addProblem(said, "specify a Python file: -- train.py --epochs 3",
			"invalid script %q: not a Python file", word)
	}
}

// firstWord is the kind of the first word of a user's command.
type firstWord int

const (
	pythonFile  firstWord = iota // anything else is treated as a Python file
	interpreter                  // python train.py
	launcher                     // torchrun train.py
	shell                        // bash run.sh, ./run.sh, env, sudo
	variable                     // A=b
	option                       // --epochs
	other                        // a notebook, a configuration
)

var (
	pythonName   = regexp.MustCompile(`^(i?python|pypy)[0-9.]*t?$`)
	assignment   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	shellProgram = regexp.MustCompile(`\.(sh|bash|zsh|csh|fish|sbatch|slurm)$`)
	otherFile    = regexp.MustCompile(`\.(ipynb|ya?ml|json|toml|txt|so|whl)$`)
)

// classifyFirstWord returns the kind of a command's first word.
func classifyFirstWord(word string) firstWord {
	name := path.Base(word)
	switch {
	case strings.HasPrefix(word, "-"):
		return option
	case pythonName.MatchString(name):
		return interpreter
	case slices.Contains([]string{
		"torchrun", "torch.distributed.run", "torch.distributed.launch",
		"accelerate", "deepspeed", "ds", "composer", "colossalai", "horovodrun", "torchx", "ray",
		"mpirun", "mpiexec", "orterun", "srun", "sbatch", "salloc", "pdsh", "ssh",
		"docker", "podman", "apptainer", "singularity", "kubectl",
	}, name):
		return launcher
	case shellProgram.MatchString(name), slices.Contains([]string{
		"bash", "sh", "zsh", "dash", "ksh", "csh", "tcsh", "fish",
		"env", "sudo", "nohup", "exec", "eval", "source", ".", "time", "nice", "numactl", "taskset", "timeout",
		"conda", "mamba", "micromamba", "uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "pixi",
		"cd", "export", "module", "nsys", "ncu",
	}, name):
		return shell
	case assignment.MatchString(word):
		return variable
	case otherFile.MatchString(name):
		return other
	}
	return pythonFile
}

// findArgument returns the value of the program's first option with one of these
// names. ok is false without such an option.
func (b *builder) findArgument(names ...string) (value string, ok bool) {
	for i, w := range b.job.Args {
		name, v, joined := strings.Cut(w, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if joined || i+1 == len(b.job.Args) || strings.HasPrefix(b.job.Args[i+1], "-") {
			return v, true
		}
		return b.job.Args[i+1], true
	}
	return "", false
}
