package lint

import (
	"regexp"
	"slices"
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
		if b := s.buildBehind(a); b != nil && (a.Exported == 0 || a.Exported > b.Seq) {
			hits = append(hits, hit{at: a.At, says: a.Name + " is set without export, and " + showWord(b.Words[0]) + " does not get it"})
		}
	}
	return hits
}

// buildBehind returns the first build after an assignment that does not set the
// variable itself.
func (s *subject) buildBehind(a *script.Assignment) *script.Command {
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
		return hasWord(c, "setup.py") || hasWord(c, "pip") && (hasWord(c, "install") || hasWord(c, "wheel")) || hasWord(c, "build")
	case strings.HasPrefix(name, "pip"), name == "uv":
		return hasWord(c, "install") || hasWord(c, "wheel") || hasWord(c, "build")
	}
	return false
}

func hasWord(c *script.Command, text string) bool {
	return slices.ContainsFunc(c.Words[1:], func(w script.Word) bool { return w.Text() == text || strings.HasSuffix(w.Text(), "/"+text) })
}
