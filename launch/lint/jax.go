package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// jaxRules are about JAX, which does not read what torch reads.
func jaxRules() []Rule {
	return []Rule{{
		ID: "jax-platform-name", Severity: Warning,
		Title: "JAX_PLATFORM_NAME is the old name",
		Why:   "it is deprecated, and only picks among the platforms that JAX has initialised; JAX_PLATFORMS says which those are",
		Fix:   "JAX_PLATFORMS=cuda (or cuda,cpu).",
		check: jaxPlatformName,
	}, {
		ID: "jax-reads-no-rank", Severity: Warning,
		Title: "JAX is given the variables of torch",
		Why:   "JAX reads none of RANK, WORLD_SIZE and MASTER_ADDR: unless the script passes them on itself, every process trains alone",
		Fix:   "jax.distributed.initialize(coordinator_address, num_processes, process_id); under Slurm, without arguments.",
		check: jaxReadsNoRank,
	}}
}

func jaxPlatformName(s *subject) []hit {
	var hits []hit
	for a := range s.sets() {
		if a.Name == "JAX_PLATFORM_NAME" {
			hits = append(hits, hit{at: a.At})
		}
	}
	return hits
}

func jaxReadsNoRank(s *subject) []hit {
	if !s.jax() || len(s.launches) > 0 || !slices.ContainsFunc(s.Commands, func(c *script.Command) bool { return trains(c) && !tellsCoordinator(c) }) {
		return nil
	}
	for a := range s.sets() {
		if strings.Contains(strings.ToUpper(a.Name), "COORDINATOR") {
			return nil
		}
	}
	for a := range s.sets() {
		if slices.Contains([]string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR"}, a.Name) && a.Exported > 0 {
			return []hit{{at: a.At, says: "JAX is given " + a.Name}}
		}
	}
	return nil
}

// jax reports whether the script is one for JAX.
func (s *subject) jax() bool {
	for a := range s.sets() {
		if strings.HasPrefix(a.Name, "JAX_") || strings.HasPrefix(a.Name, "XLA_PYTHON_CLIENT_") {
			return true
		}
	}
	return slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		file, _ := python(c)
		return strings.Contains(strings.ToLower(file), "jax")
	})
}

// tellsCoordinator reports whether a program is told where to meet.
func tellsCoordinator(c *script.Command) bool {
	return slices.ContainsFunc(c.Words, func(w script.Word) bool { return strings.Contains(strings.ToLower(w.Text()), "coordinator") })
}
