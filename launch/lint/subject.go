package lint

import (
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// subject is a script as the rules see it.
type subject struct {
	*script.Script
	job      step
	launches []*launch
}

// step is what sbatch or srun was asked for. A number is 0 where it is not
// known.
type step struct {
	nodes, tasks, perNode, gpus int
	options                     []script.Option
}

func newSubject(s *script.Script) *subject {
	sub := &subject{Script: s}
	sub.job = newStep(step{}, s.Batch, sub.batch())
	for _, c := range s.Commands {
		if l := newLaunch(c); l != nil {
			sub.launches = append(sub.launches, l)
		}
	}
	return sub
}

// batch reports whether the script is given to sbatch.
func (s *subject) batch() bool { return len(s.Directives) > 0 || s.Submitted }

// newStep reads the numbers out of options, the last of a name counting.
// Whole says that nothing but the options decides, so that the defaults of
// Slurm are known, too.
func newStep(outer step, options []script.Option, whole bool) step {
	st := outer
	st.options = slices.Concat(outer.options, options)
	if o, ok := find(options, "nodes"); ok {
		st.nodes = outer.resolve(o.Value)
		if outer.tasks == 0 || outer.perNode > 0 {
			st.tasks = 0
		}
	}
	if o, ok := find(options, "ntasks"); ok {
		st.tasks = outer.resolve(o.Value)
		st.perNode = 0
	}
	if o, ok := find(options, "ntasks-per-node"); ok {
		st.perNode = outer.resolve(o.Value)
	}
	if n := gpusPerNode(options); n >= 0 {
		st.gpus = n
	}
	_, perGPU := find(st.options, "ntasks-per-gpu")
	if whole && !perGPU {
		st.defaults()
	}
	st.derive(perGPU)
	st.deriveGPUs(options)
	return st
}

// defaults are one node, where nothing is said about nodes and tasks.
func (st *step) defaults() {
	_, nodes := find(st.options, "nodes")
	_, tasks := find(st.options, "ntasks")
	_, list := find(st.options, "nodelist")
	_, file := find(st.options, "nodefile")
	_, gpus := find(st.options, "gpus")
	if !nodes && !tasks && !list && !file && !gpus {
		st.nodes = 1
	}
	if _, perNode := find(st.options, "ntasks-per-node"); !tasks && !perNode {
		st.perNode = 1
	}
}

// derive works out what follows from the other numbers.
func (st *step) derive(perGPU bool) {
	if perGPU {
		st.tasks, st.perNode = 0, 0
		return
	}
	if st.perNode == 0 && st.tasks > 0 && st.nodes > 0 {
		st.perNode = (st.tasks + st.nodes - 1) / st.nodes
	}
	if st.tasks == 0 && st.perNode > 0 && st.nodes > 0 {
		st.tasks = st.perNode * st.nodes
	}
}

// deriveGPUs works out the GPUs of a node from those of the job or of a task.
func (st *step) deriveGPUs(options []script.Option) {
	if gpusPerNode(options) >= 0 {
		return
	}
	if o, ok := find(options, "gpus-per-task"); ok {
		st.gpus = lastNumber(o.Value) * st.perNode
	} else if o, ok := find(options, "gpus"); ok && st.nodes > 0 {
		st.gpus = 0
		if n := lastNumber(o.Value); n%st.nodes == 0 {
			st.gpus = n / st.nodes
		}
	}
}

// resolve is the number of a word, which may be a variable of the job's own.
func (st *step) resolve(w script.Word) int {
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
		}
	}
	return 0
}

// find is the last option of a name.
func find(options []script.Option, name string) (script.Option, bool) {
	for i := len(options) - 1; i >= 0; i-- {
		if options[i].Name == name {
			return options[i], true
		}
	}
	return script.Option{}, false
}

// gpusPerNode is how many GPUs of a node are asked for, -1 if nothing is said
// about them, 0 if it is not known.
func gpusPerNode(options []script.Option) int {
	if o, ok := find(options, "gpus-per-node"); ok {
		return lastNumber(o.Value)
	}
	o, ok := find(options, "gres")
	if !ok {
		return -1
	}
	for _, entry := range strings.Split(o.Value.Text(), ",") {
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

// lastNumber is that of 4 and a100:4.
func lastNumber(w script.Word) int {
	_, last, found := w.CutLast(':')
	if !found {
		last = w
	}
	n, _ := last.Int()
	return n
}

// wantsGPUs reports whether any option asks for GPUs.
func (st *step) wantsGPUs() bool {
	return slices.ContainsFunc(st.options, func(o script.Option) bool {
		return strings.HasPrefix(o.Name, "gpus") || o.Name == "gres" && strings.Contains(o.Value.Text(), "gpu")
	})
}

// exclusive reports whether no other job runs on the nodes.
func (st *step) exclusive() bool {
	_, ok := find(st.options, "exclusive")
	return ok
}

// step is what the srun (or mpirun) that starts a command was asked for.
func (s *subject) step(starter *script.Command) step {
	if starter == nil || starter.Name() != "srun" || starter.Open {
		return step{}
	}
	return newStep(s.job, starter.Options, false)
}

// set is a variable that is given a value, for all or for one command.
type set struct {
	*script.Assignment
	command *script.Command // whose own it is, or nil
}

// sets are all variables that the script sets.
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

// assigns reports whether the script sets a variable anywhere.
func (s *subject) assigns(name string) bool {
	for a := range s.sets() {
		if a.Name == name {
			return true
		}
	}
	return false
}

// named returns the commands with one of the names.
func (s *subject) named(names ...string) []*script.Command {
	var all []*script.Command
	for _, c := range s.Commands {
		if slices.Contains(names, c.Name()) {
			all = append(all, c)
		}
	}
	return all
}

// steps are the srun commands that run something for its own sake.
func (s *subject) steps() []*script.Command {
	return slices.DeleteFunc(s.named("srun"), func(c *script.Command) bool { return c.Captured })
}

var pythonName = regexp.MustCompile(`^python[0-9.]*$`)

// python returns the script that python runs, "" for anything else.
func python(c *script.Command) (file string, arguments []script.Word) {
	if !pythonName.MatchString(c.Name()) {
		return "", nil
	}
	for i := 1; i < len(c.Words); i++ {
		text := c.Words[i].Text()
		switch {
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

// sourced reports whether the script reads another that may set variables.
func (s *subject) sourced() bool {
	return slices.ContainsFunc(s.named("source", "."), func(c *script.Command) bool {
		if len(c.Words) < 2 {
			return false
		}
		file := strings.ToLower(c.Words[1].Text())
		for _, harmless := range []string{"activate", "conda", "bashrc", "profile", "modules", "lmod", "venv"} {
			if strings.Contains(file, harmless) {
				return false
			}
		}
		return true
	})
}
