package lint

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// isItself reports whether an assignment sets a variable to its own value, and the script has not set it before.
func isItself(a *script.Assignment) bool {
	r := a.Value.Only()
	return r != nil && r.Name == a.Name && r.Default == nil && !r.Assigned && !r.Edited && !r.Required
}

func setToItself(s *subject) []hit {
	var hits []hit
	for _, a := range s.Assignments {
		if !isItself(a) || s.assignsVariable(a.Name) {
			continue
		}
		i := slices.IndexFunc(s.Assignments, func(o *script.Assignment) bool {
			return o.Name != a.Name && strings.EqualFold(o.Name, a.Name)
		})
		if i >= 0 {
			says := a.Name + " is set to itself; the script has set " + s.Assignments[i].Name
			hits = append(hits, hit{at: a.At, message: says, fix: "use export " + a.Name + "=$" + s.Assignments[i].Name})
		}
	}
	return hits
}

// readByPrograms matches variables that only programs read, and that neither Slurm nor a shell sets.
var readByPrograms = regexp.MustCompile(
	`^(NCCL|GLOO|TORCH|HF|WANDB|TRANSFORMERS|TOKENIZERS|PYTORCH|NVTE|TRITON|UCX|FI|JAX|XLA)_|` +
		`^(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|OMP_NUM_THREADS|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK)$`)

func notExported(s *subject) []hit {
	hits := s.lostInShells()
	setByLauncher := regexp.MustCompile(`^(MASTER_|WORLD_|RANK|LOCAL_)`)
	looked, mentioned := map[string]bool{}, s.mentioned()
	for _, a := range s.Assignments {
		ofSlurm := a.Name == "CUDA_VISIBLE_DEVICES" && s.isBatch() // which exports it
		ofRanks := len(s.launches) > 0 && setByLauncher.MatchString(a.Name)
		if ofRanks || looked[a.Name] || !readByPrograms.MatchString(a.Name) || a.Exported > 0 || a.Inherited || a.Depth > 0 || ofSlurm {
			continue
		}
		looked[a.Name] = true
		if mentioned[a.Name] {
			continue
		}
		if slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
			return c.Seq > a.Seq && (startsTrainer(c) || c.Name() == "srun") && c.Getenv(a.Name) == nil
		}) {
			hits = append(hits, hit{at: a.At, severity: Warning, message: a.Name + " is set without export, and nothing in the script reads it"})
		}
	}
	return hits
}

// ofSystem are variables that are usually exported already, so that programs see an assignment.
var ofSystem = regexp.MustCompile(`^(SLURM_.*|CUDA_VISIBLE_DEVICES|.*PATH|HOME|USER|HOSTNAME|TMPDIR|PWD|SHELL|LANG)$`)

// lostInShells finds variables that the script sets without export and the shell of bash -c reads.
func (s *subject) lostInShells() (hits []hit) {
	for r, at := range s.refs {
		if r.Lost && r.Default == nil && !r.Required && !r.Edited && !ofSystem.MatchString(r.Name) {
			hits = append(hits, hit{at: at, message: "$" + r.Name + " is empty in this shell: the script sets " + r.Name + " without export"})
		}
	}
	return hits
}

var word = regexp.MustCompile(`\w+`)

// mentioned returns the program variables that the script reads or passes on, besides assigning them.
func (s *subject) mentioned() map[string]bool {
	names := map[string]bool{}
	for _, m := range word.FindAllIndex(s.Text, -1) {
		assigns := m[1] < len(s.Text) && s.Text[m[1]] == '='
		passes := m[0] > 0 && strings.IndexByte("$,{", s.Text[m[0]-1]) >= 0
		name := s.Text[m[0]:m[1]]
		if (!assigns || passes) && !names[string(name)] && readByPrograms.Match(name) && !s.inComment(m[0]) {
			names[string(name)] = true
		}
	}
	return names
}

// setElsewhere matches variables that a shell, a scheduler or a platform sets.
var setElsewhere = regexp.MustCompile(`^(SLURMD?|PBS|LSB|OMPI|PMI|FLUX|SGE|NVIDIA)_|^(RANDOM|SECONDS|HOSTNAME|USER|HOME|UID|PWD|TMPDIR|MASTER_ADDR)$|^[^A-Za-z_]`)

func launcherVariableUnset(s *subject) []hit {
	if !s.isBatch() || s.setsUnknown() {
		return nil
	}
	var hits []hit
	for _, l := range s.launches {
		if l.Remote || l.InFunction {
			continue
		}
		if len(l.program) > 0 && l.program[0].Only() != nil && s.certainlyUnset(l.program[0].Only()) {
			hits = append(hits, hit{
				at: l.program[0].Origin(), message: showWord(l.program[0]) + ", the program of " + l.kind + ", is never set",
				why: "the launcher ends with a message about its arguments, or takes the next word for its program",
			})
		}
		for _, name := range []string{
			"nnodes", "num-machines", "num-nodes", "nproc-per-node", "num-gpus", "num-processes", "node-rank",
			"machine-rank", "master-addr", "main-process-ip", "master-port", "main-process-port", "rdzv-endpoint",
		} {
			meets := strings.Contains(name, "addr") || strings.Contains(name, "-ip") || strings.Contains(name, "port") || name == "rdzv-endpoint"
			if meets && s.job.nodes == 1 && !l.isSingleNode(s.job) {
				continue // who submits this one of several jobs passes it
			}
			f := l.flags[name]
			for _, c := range f.value.Chars {
				if c.Ref != nil && s.certainlyUnset(c.Ref) {
					hits = append(hits, hit{at: c.At, message: "$" + c.Ref.Name + " in --" + name + " is never set"})
				}
			}
		}
	}
	return hits
}

// certainlyUnset reports whether the script neither sets a variable nor expects its user to set it.
func (s *subject) certainlyUnset(r *script.Ref) bool {
	if r.Name == "" || r.Default != nil || r.Assigned || r.Required || r.Edited || r.Several ||
		setElsewhere.MatchString(r.Name) || s.assignsVariable(r.Name) {
		return false
	}
	expected := regexp.MustCompile(`-[nz] +"?\$\{?` + regexp.QuoteMeta(r.Name) + `\b`).Match(s.Text)
	return !expected && !slices.ContainsFunc(s.Comments, func(c script.Comment) bool { return strings.Contains(c.Text, r.Name) })
}
