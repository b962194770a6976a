package lint

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// exitStatusLost finds training whose exit status a pipe hides.
func exitStatusLost(s *subject) []hit {
	keeps := slices.ContainsFunc(s.commandsNamed("set"), func(c *script.Command) bool { return strings.Contains(c.Text(), "pipefail") })
	if !s.isBatch() || keeps || bytes.Contains(s.Text, []byte("PIPESTATUS")) || bytes.Contains(s.Text, []byte("pipefail")) {
		return nil
	}
	matters := regexp.MustCompile(`\$\?|set -\w*e|requeue|afterok`).Match(s.Text)
	for i, c := range s.Commands {
		if !c.Piped || c.Depth > 0 || c.Background || !(c.Name() == "srun" && s.startsTraining(c) || startsTrainer(c)) {
			continue
		}
		next := slices.IndexFunc(s.Commands[i+1:], func(o *script.Command) bool { return len(o.Via) <= len(c.Via) })
		if next < 0 || s.Commands[i+1+next].Name() != "tee" {
			continue
		}
		if !matters {
			return []hit{{at: c.At, severity: Note}}
		}
		return []hit{{at: c.At}}
	}
	return nil
}

// condaInBatch finds conda activate in a shell that does not know it.
func condaInBatch(s *subject) []hit {
	shell := firstLine(s.Text)
	if !s.isBatch() || strings.Contains(shell, " -l") || strings.Contains(shell, " -i") || strings.Contains(shell, "--login") {
		return nil
	}
	setsU, unsetsU := regexp.MustCompile(`^set (-\w*u|-o nounset|.* -o nounset)`), regexp.MustCompile(`^set \+\w*u`)
	ready, strict := false, -1
	for _, c := range s.Commands {
		text := c.Text()
		switch name := c.Name(); {
		case c.Depth > 0 || len(c.Via) > 0:
		case slices.Contains([]string{"source", ".", "eval", "module", "ml", "load", ""}, name):
			ready = true
		case name == "set" && setsU.MatchString(text):
			strict = c.At
		case name == "set" && unsetsU.MatchString(text):
			strict = -1
		case (name == "conda" || name == "mamba" || name == "micromamba") && c.Arg(1) == "activate":
			switch {
			case !ready && !c.InFunction && !c.Branch:
				return []hit{{at: c.At, message: name + " activate in a batch script that does not set it up"}}
			case strict >= 0:
				return []hit{{
					at: c.At, message: name + " activate under set -u",
					why: "the activation scripts of compilers and other packages read variables that are not set, which ends the " +
						"job (\"unbound variable\")",
					fix: "use set +u in front of it, and set -u after it",
				}}
			}
		}
	}
	return nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text[:min(len(text), 200)]), "\n")
	return line
}

// variableMisspelled finds names that are almost those that programs read.
func variableMisspelled(s *subject) (hits []hit) {
	known := strings.Fields(`MUSA_VISIBLE_DEVICES MLU_VISIBLE_DEVICES XPU_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_RANK
		NCCL_SOCKET_IFNAME
		GLOO_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_P2P_DISABLE OMP_NUM_THREADS TOKENIZERS_PARALLELISM PYTORCH_CUDA_ALLOC_CONF CUDA_LAUNCH_BLOCKING`)

	seen := map[string]bool{}
	for a := range s.sets() {
		if seen[a.Name] {
			continue
		}
		seen[a.Name] = a.Exported > 0 || a.command != nil
		if slices.Contains(known, a.Name) || len(a.Name) < 8 || a.Exported == 0 && a.command == nil {
			continue
		}
		if right := misspelled(a.Name, known); right != "" && !s.assignsVariable(right) && !s.expands(a.Name) {
			hits = append(hits, hit{at: a.At, message: a.Name + " is set, and nothing reads it", fix: "use " + right})
		}
	}
	return hits
}

// misspelled returns the known name from which a name differs in at most two letters, or "".
func misspelled(name string, known []string) string {
	near := lineerr.Nearest(name, known)
	if near == "" || lineerr.Distance(name, near) > 2*lineerr.Letter {
		return ""
	}
	return near
}

// expands reports whether the script has $NAME or ${NAME somewhere, also where it is not run.
func (s *subject) expands(name string) bool {
	return regexp.MustCompile(`\$\{?` + regexp.QuoteMeta(name) + `\b`).Match(s.Text)
}

// ownFolder matches the folder of the script itself.
var ownFolder = regexp.MustCompile(`\b(?:dirname|realpath|readlink)\b[^|)]*(?:\$0|\$\{?BASH_SOURCE)|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/`)

// scriptFolder finds the folder of the batch script, which Slurm has copied elsewhere.
func scriptFolder(s *subject) (hits []hit) {
	if !s.isBatch() || bytes.Contains(s.Text, []byte("SLURM_SUBMIT_DIR")) || bytes.Contains(s.Text, []byte("scontrol show job")) {
		return nil
	}
	for _, m := range ownFolder.FindAllIndex(s.Text, -1) {
		if !s.inComment(m[0]) {
			return []hit{{at: m[0]}}
		}
	}
	return nil
}
