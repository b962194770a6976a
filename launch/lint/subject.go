package lint

import (
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// subject is the input of a rule: a script with its job and its launches.
type subject struct {
	*script.Script
	job      step
	launches []*launch
	// marked: the file begins with a byte order mark.
	marked bool
}

// step holds the numbers in the options of sbatch or srun. Zero means unknown.
type step struct {
	nodes, tasks, perNode, gpus int
	allGPUs                     int // of all nodes, where the number of each is not known
	options                     []script.Option
}

// isBatch reports whether the script is for sbatch.
func (s *subject) isBatch() bool { return len(s.Directives) > 0 }

// newStep reads the numbers from options. The last option of a name wins. whole means that
// these are all options, so that Slurm's defaults apply.
func newStep(outer step, options []script.Option, whole bool) step {
	st := outer
	st.options = slices.Concat(outer.options, options)
	if o, ok := findOption(options, "nodes"); ok {
		st.nodes = outer.resolveNumber(o.Value)
		if outer.tasks == 0 || outer.perNode > 0 {
			st.tasks = 0
		}
	}
	if o, ok := findOption(options, "ntasks"); ok {
		st.tasks = outer.resolveNumber(o.Value)
		st.perNode = 0
	}
	if o, ok := findOption(options, "ntasks-per-node"); ok {
		st.perNode = outer.resolveNumber(o.Value)
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(st.options, func(o script.Option) bool { return slices.Contains(names, o.Name) })
	}
	perGPU := has("ntasks-per-gpu")
	if whole && !perGPU {
		// Set one node if no option sets nodes or tasks.
		if !has("nodes", "ntasks", "nodelist", "nodefile", "gpus") {
			st.nodes = 1
		}
		if !has("ntasks", "ntasks-per-node") {
			st.perNode = 1
		}
	}
	if st.tasks > 0 { // Slurm takes no more nodes than tasks
		st.nodes = min(st.nodes, st.tasks)
	}
	switch { // the missing number of tasks
	case perGPU:
		st.tasks, st.perNode = 0, 0
	case st.perNode == 0 && st.tasks > 0 && st.nodes > 0:
		st.perNode = (st.tasks + st.nodes - 1) / st.nodes
	case st.tasks == 0 && st.perNode > 0 && st.nodes > 0:
		st.tasks = st.perNode * st.nodes
	}
	// The GPUs of a node may follow from the GPUs of a task or of the job.
	if n := gpusPerNode(options); n >= 0 {
		st.gpus, st.allGPUs = n, 0
	} else if o, ok := findOption(options, "gpus-per-task"); ok {
		st.gpus = lastNumber(o.Value) * st.perNode
	} else if o, ok := findOption(options, "gpus"); ok && st.nodes > 0 {
		st.gpus, st.allGPUs = 0, 0
		if n := lastNumber(o.Value); strings.Contains(o.Value.Text(), ",") {
		} else if st.allGPUs = n; n%st.nodes == 0 {
			st.gpus = n / st.nodes
		}
	}
	return st
}

// resolveNumber returns the number in a word, which may be a variable of the job.
func (st *step) resolveNumber(w script.Word) int {
	if n, ok := w.Int(); ok {
		return n
	}
	if low, high, found := w.Cut('-'); found {
		a, okA := low.Int()
		b, okB := high.Int()
		if okA && okB && a == b {
			return a
		}
	}
	if r := w.Only(); r != nil {
		switch r.Name {
		case "SLURM_NNODES", "SLURM_JOB_NUM_NODES":
			return st.nodes
		case "SLURM_NTASKS", "SLURM_NPROCS":
			return st.tasks
		case "SLURM_NTASKS_PER_NODE":
			return st.perNode
		case "SLURM_GPUS":
			return st.allGPUs
		case "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE":
			return st.gpus
		}
	}
	return 0
}

// findOption returns the last option with a name.
func findOption(options []script.Option, name string) (script.Option, bool) {
	for i := len(options) - 1; i >= 0; i-- {
		if options[i].Name == name {
			return options[i], true
		}
	}
	return script.Option{}, false
}

// gpusPerNode returns the requested GPUs per node. It returns -1 without such an option, and 0
// if the number is unknown.
func gpusPerNode(options []script.Option) int {
	if o, ok := findOption(options, "gpus-per-node"); ok {
		return lastNumber(o.Value)
	}
	o, ok := findOption(options, "gres")
	if !ok {
		return -1
	}
	for _, entry := range strings.Split(o.Value.Text(), ",") {
		entry, _, _ = strings.Cut(entry, "(") // gpu:4(S:0-1)
		if name, rest, _ := strings.Cut(entry, ":"); name == "gpu" {
			if rest == "" {
				return 1
			}
			i := strings.LastIndexByte(rest, ':')
			n, err := strconv.Atoi(rest[i+1:])
			switch {
			case err == nil:
				return n
			case strings.ContainsAny(rest, "$"):
				return 0
			default:
				return 1 // gpu:a100
			}
		}
	}
	return -1
}

// lastNumber returns the number in 4 or a100:4.
func lastNumber(w script.Word) int {
	_, last, found := w.CutLast(':')
	if !found {
		last = w
	}
	n, _ := last.Int()
	return n
}

// wantsGPUs reports whether any option requests GPUs.
func (st *step) wantsGPUs() bool {
	return slices.ContainsFunc(st.options, func(o script.Option) bool {
		return strings.HasPrefix(o.Name, "gpus") || o.Name == "gres" && strings.Contains(o.Value.Text(), "gpu")
	})
}

// stepOfStarter returns the step of the srun that starts a command.
func (s *subject) stepOfStarter(starter *script.Command) step {
	if starter == nil || starter.Name() != "srun" || starter.Open {
		return step{}
	}
	return newStep(s.job, starter.Options, false)
}

// set is an assignment for all later commands or for one.
type set struct {
	*script.Assignment
	command *script.Command // the only command with the variable, or nil
}

// sets iterates over all assignments of the script.
func (s *subject) sets() iter.Seq[set] {
	return func(yield func(set) bool) {
		for _, a := range s.Assignments {
			if !yield(set{a, nil}) {
				return
			}
		}
		for _, c := range s.Commands {
			for _, a := range c.Env {
				if !yield(set{a, c}) {
					return
				}
			}
		}
	}
}

// containsFunc reports whether f is true for an element of a sequence.
func containsFunc[T any](all iter.Seq[T], is func(T) bool) bool {
	for one := range all {
		if is(one) {
			return true
		}
	}
	return false
}

// assignsVariable reports whether the script sets a variable anywhere.
func (s *subject) assignsVariable(name string) bool {
	return containsFunc(s.sets(), func(a set) bool { return a.Name == name && !isItself(a.Assignment) })
}

func (s *subject) commandsNamed(names ...string) []*script.Command {
	var all []*script.Command
	for _, c := range s.Commands {
		if slices.Contains(names, c.Name()) {
			all = append(all, c)
		}
	}
	return all
}

var pythonName = regexp.MustCompile(`^python[0-9.]*$`)

// pythonScript returns the script or the module that python runs. It returns "" for other
// commands, launchers and Python's own tools.
func pythonScript(c *script.Command) (file string, arguments []script.Word) {
	if kind, _ := parseLauncher(c); kind != "" || !pythonName.MatchString(c.Name()) {
		return "", nil
	}
	for i := 1; i < len(c.Words); i++ {
		text := c.Words[i].Text()
		switch {
		case text == "-m" && !slices.Contains([]string{
			"pip", "venv", "ensurepip", "build", "http.server", "site", "json.tool", "",
		}, c.Arg(i+1)):
			return c.Arg(i + 1), c.Words[i+2:]
		case text == "-m" || text == "-c" || text == "-":
			return "", nil
		case text == "-W" || text == "-X":
			i++
		case strings.HasPrefix(text, "-"):
		default:
			return text, c.Words[i+1:]
		}
	}
	return "", nil
}

// setsUnknown reports whether a file or a program may set variables of the job, such as MASTER_ADDR.
func (s *subject) setsUnknown() bool {
	harmless := []string{
		"activate", "conda", "mamba", "bashrc", "profile", "modulecmd", "modules", "lmod", "venv", "pyenv",
		"ssh-agent", "spack",
	}
	return slices.ContainsFunc(s.Unread, func(w script.Word) bool {
		text := strings.ToLower(w.Text())
		return !slices.ContainsFunc(harmless, func(part string) bool { return strings.Contains(text, part) })
	})
}
