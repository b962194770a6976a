package lint

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

var buildVariable = regexp.MustCompile(`^(DS_[A-Z0-9_]+|TORCH_CUDA_ARCH_LIST|MAX_JOBS|NVCC_[A-Z_]+)$`)

func buildVariablesLost(s *subject) []hit {
	var hits []hit
	for _, a := range s.Assignments {
		if !buildVariable.MatchString(a.Name) || a.Inherited || a.Depth > 0 {
			continue
		}
		if b := s.buildAfter(a); b != nil && (a.Exported == 0 || a.Exported > b.Seq) {
			says := a.Name + " is set without export, so " + showWord(b.Words[0]) + " does not see it"
			hits = append(hits, hit{at: a.At, message: says})
		}
	}
	return hits
}

// buildAfter returns the first build after an assignment that does not set the
// variable itself.
func (s *subject) buildAfter(a *script.Assignment) *script.Command {
	for _, c := range s.Commands {
		if c.Seq < a.Seq || !builds(c) {
			continue
		}
		for _, own := range c.Env {
			if own.Name == a.Name {
				return nil
			}
		}
		// PREFIX="DS_BUILD_OPS=$DS_BUILD_OPS"; env $PREFIX python setup.py
		for _, starter := range c.Via {
			for _, own := range starter.Env {
				if own.Name == a.Name {
					return nil
				}
			}
		}
		return c
	}
	return nil
}

// builds reports whether a command compiles a Python package.
func builds(c *script.Command) bool {
	name := c.Name()
	switch {
	case pythonName.MatchString(name):
		return hasWord(c, "setup.py") || hasWord(c, "pip") && (hasWord(c, "install") || hasWord(c, "wheel")) ||
			hasWord(c, "build")
	case strings.HasPrefix(name, "pip"), name == "uv":
		return hasWord(c, "install") || hasWord(c, "wheel") || hasWord(c, "build")
	}
	return false
}

func hasWord(c *script.Command, text string) bool {
	return slices.ContainsFunc(c.Words[1:], func(w script.Word) bool {
		return w.Text() == text || strings.HasSuffix(w.Text(), "/"+text)
	})
}

func setupPyJobs(s *subject) []hit {
	if !s.buildsOperators(nil) && !s.entersDeepSpeed() {
		return nil
	}
	var hits []hit
	for _, c := range s.Commands {
		if !builds(c) || !hasWord(c, "setup.py") || !hasWord(c, "build_ext") {
			continue
		}
		for i, w := range c.Words {
			if jobs, ok := jobsOption(c, i); ok && jobs != 1 {
				hits = append(hits, hit{at: w.Origin()})
			}
		}
	}
	return hits
}

// jobsOption reads -j8, -j 8 and --parallel=8; an unknown number is 0.
func jobsOption(c *script.Command, i int) (jobs int, ok bool) {
	text := c.Words[i].Text()
	value, ok := strings.CutPrefix(text, "-j")
	if !ok {
		value, ok = strings.CutPrefix(text, "--parallel")
		value = strings.TrimPrefix(value, "=")
	}
	if !ok {
		return 0, false
	}
	if value == "" && i+1 < len(c.Words) {
		value = c.Words[i+1].Text()
	}
	jobs, _ = strconv.Atoi(value)
	return jobs, true
}

// entersDeepSpeed reports whether the script changes to DeepSpeed's source directory, or fetches the source.
func (s *subject) entersDeepSpeed() bool {
	return slices.ContainsFunc(s.commandsNamed("cd", "git", "pushd"), func(c *script.Command) bool {
		return strings.Contains(strings.ToLower(c.Text()), "deepspeed")
	})
}

var gccPackage = regexp.MustCompile(`^(?:gcc|g\+\+)-([0-9]+)$`)

func oldGCC(s *subject) []hit {
	var hits []hit
	for _, c := range s.commandsNamed("apt", "apt-get", "aptitude") {
		if !hasWord(c, "install") {
			continue
		}
		for _, w := range c.Words {
			m := gccPackage.FindStringSubmatch(w.Text())
			if m == nil {
				continue
			}
			if n, _ := strconv.Atoi(m[1]); n < 9 {
				hits = append(hits, hit{at: w.Origin(), message: m[0] + " is too old for torch's headers"})
				break
			}
		}
	}
	return hits
}

func wheelOnOneNode(s *subject) []hit {
	copied := slices.ContainsFunc(s.commandsNamed("scp", "rsync"), func(c *script.Command) bool {
		return strings.Contains(c.Text(), ".whl") && strings.Contains(c.Text(), ":")
	})
	if !copied || s.startsUnread() {
		return nil
	}
	var here []hit
	for _, c := range s.Commands {
		if !builds(c) || !hasWord(c, "install") || !strings.Contains(c.Text(), ".whl") {
			continue
		}
		if c.Depth > 0 {
			return nil // on the nodes, too
		}
		here = append(here, hit{at: c.At})
	}
	return here
}

func deepspeedBuildIsolated(s *subject, c *script.Command) []hit {
	names := slices.ContainsFunc(c.Words, func(w script.Word) bool {
		text := strings.ToLower(w.Text())
		return strings.Contains(text, "deepspeed") && !strings.HasSuffix(text, ".whl") || text == "." && s.entersDeepSpeed()
	})
	if !names || !builds(c) || hasWord(c, "--no-build-isolation") || s.assignsVariable("PIP_NO_BUILD_ISOLATION") ||
		!s.buildsOperators(c) {
		return nil
	}
	return []hit{{at: c.At}}
}

// buildsOperators reports whether DS_BUILD_... enables operators for a command, or for any command if it is nil.
func (s *subject) buildsOperators(c *script.Command) bool {
	for a := range s.sets() {
		own := c == nil || a.command == c || a.command == nil && a.Exported > 0 && a.Exported < c.Seq
		if text, _ := a.Value.Literal(); own && strings.HasPrefix(a.Name, "DS_BUILD_") && text != "0" {
			return true
		}
	}
	return false
}
