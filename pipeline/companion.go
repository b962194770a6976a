package pipeline

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Companion is an extra wheel. It is built in the environment of DeepSpeed's wheel, with the same
// torch, and deployed with it.
type Companion struct {
	Name    string // normalised as PEP 503 says
	Version string // of the index; empty if Source is set
	Source  *Source
}

const companionForms = "write NAME==VERSION, NAME@VERSION, NAME@git+URL@REF or NAME@PATH (a directory, or a source distribution)"

var companionArg = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(==|@)(.+)$`)

// OpenCompanion reads a --with. It copies sources into dir, which the caller owns, in the same
// way as OpenSource.
func OpenCompanion(ctx context.Context, arg, dir string, environ []string) (Companion, error) {
	m := companionArg.FindStringSubmatch(arg)
	if m == nil {
		return Companion{}, badSource(redactURL(arg), errors.New("missing version or sources"), companionForms)
	}
	c := Companion{Name: pypi.CanonPackageName(m[1])}
	switch what := m[3]; {
	case wheel.IsTorchPackage(c.Name):
		return c, badSource(c.Name,
			errors.New("torch and its packages cannot be extra wheels: dsbuild never changes a node's torch"),
			"use --torch VERSION")
	case c.Name == "deepspeed":
		return c, badSource(c.Name, errors.New("DeepSpeed cannot be an extra wheel"),
			"use --deepspeed SOURCE")
	case m[2] == "==" && !pep440.MatchString(what):
		return c, badSource(redactURL(arg), fmt.Errorf("%.64q is not a version", what), companionForms)
	case m[2] == "==" || pep440.MatchString(what):
		c.Version = what
		return c, nil
	default:
		check := func(t *tree) (string, string, error) { // of any Python project
			if !t.hasFile("pyproject.toml") && !t.hasFile("setup.py") {
				return "", "", fault.New(fault.Usage, companionForms, "not a Python project: no pyproject.toml or setup.py")
			}
			return c.Name, "", nil
		}
		s, err := project{check, staleProject, environ}.openSource(ctx, what, dir)
		c.Source = &s
		return c, err
	}
}

var releaseTag = regexp.MustCompile(`@v?(\d+(?:\.\d+)+(?:(?:a|b|rc)\d+)?(?:\.post\d+)?)$`)

// assumedVersion returns the version for a companion whose project reads it from git, because the
// copy of its sources has no history.
func (c Companion) assumedVersion() string {
	if m := releaseTag.FindStringSubmatch(c.Source.Ref); m != nil && c.Source.Kind == SourceGit {
		return m[1]
	}
	return "0.1.dev0+" + c.Source.localVersion()
}

// requirement returns a companion as an argument for the scripts: a requirement, or the name of its
// copy.
func (c Companion) requirement() string {
	if c.Source == nil {
		return c.Name + "==" + c.Version
	}
	return c.Name
}
