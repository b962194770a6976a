package pipeline

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// InspectScript is the name of the script that lists the tools of a build environment.
// ParseBuildHost reads its output.
const InspectScript = "inspect.sh"

// InspectText returns the text of InspectScript.
func InspectText() (string, error) {
	text, err := scripts.ReadFile("scripts/" + InspectScript)
	return string(text), err
}

// BuildHost is the result of InspectScript. The embedded part is for the choice of a toolchain; the
// other fields are for a builder on that system.
type BuildHost struct {
	compat.BuildHost

	Interpreters []Interpreter // one per X.Y, python3's first
	Compilers    []Compiler    // plain gcc first
	Tools        []string      // available tools that the steps use
	Digest       string        // sha256:… of everything above
}

// Interpreter is a Python.
type Interpreter struct {
	Version string   // X.Y.Z
	Path    string   // sys.executable
	Parts   []string // available ones of venv, ensurepip, pip and Python.h
}

// Minor returns the interpreter's version as X.Y.
func (i Interpreter) Minor() string { return wheel.Minor(i.Version) }

// Has reports whether Parts contains part.
func (i Interpreter) Has(part string) bool { return slices.Contains(i.Parts, part) }

// Compiler is a gcc.
type Compiler struct {
	Version string // X.Y.Z
	CC      string // path
	CXX     string // path of its g++, or ""
	Headers bool   // it finds the headers of the C and C++ libraries
}

// Major returns the compiler's version as X.
func (c Compiler) Major() string {
	major, _, _ := strings.Cut(c.Version, ".")
	return major
}

// Complete reports whether it compiles C++ with the system's headers.
func (c Compiler) Complete() bool { return c.CXX != "" && c.Headers }

// Limits on the output of InspectScript. Real output is far below them.
const (
	maxLook      = 64 << 10
	maxLookLines = 200
	maxLookField = 256
)

// ParseBuildHost parses the output of InspectScript, which comes from an untrusted base.
func ParseBuildHost(text string) (BuildHost, error) {
	fail := func(format string, args ...any) (BuildHost, error) {
		return BuildHost{}, fault.WithHint(fmt.Errorf("inspecting the base: the answer "+format, args...),
			"a base needs a shell and the usual programs: sed, tr, cut, uname")
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	switch {
	case len(text) > maxLook || len(lines) > maxLookLines:
		return fail("has %d bytes in %d lines", len(text), len(lines))
	case lines[0] != "look\t1":
		return fail("is from another version of dsbuild")
	case lines[len(lines)-1] != "end":
		return fail("is truncated")
	}
	var g BuildHost
	facts := lookFacts()
	for _, line := range lines[1 : len(lines)-1] {
		fields := strings.Split(line, "\t")
		fact, known := facts[fields[0]]
		if !known || len(fields)-1 != len(fact.shapes) {
			return fail("has a line that is not a fact: %.60q", line)
		}
		for j, shape := range fact.shapes {
			if len(fields[j+1]) > maxLookField || !shape.MatchString(fields[j+1]) {
				return fail("says %s %.60q", fields[0], fields[j+1])
			}
		}
		fact.take(&g, fields[1:])
	}
	sum := sha256.Sum256([]byte(text))
	g.Digest = "sha256:" + hex.EncodeToString(sum[:])
	return g, nil
}

// lookFact is a type of line: the syntax of its fields and their effect.
type lookFact struct {
	shapes []*regexp.Regexp
	take   func(*BuildHost, []string)
}

// The syntax of fields. A path becomes part of environment variables and commands, so it must not
// contain characters that are special in a shell or a list of paths. The expressions do not limit a
// path to maxLookField bytes: counting that far would take a millisecond of every start.
var (
	lookWord     = regexp.MustCompile(`^[A-Za-z0-9][\w.+-]{0,40}$`)
	lookMaybe    = regexp.MustCompile(`^([A-Za-z0-9][\w.+-]{0,40})?$`)
	lookText     = regexp.MustCompile(`^[ -~]{0,100}$`)
	lookVersion  = regexp.MustCompile(`^\d{1,4}(\.\d{1,4}){0,3}$`)
	lookTwo      = regexp.MustCompile(`^\d{1,4}\.\d{1,4}(\.\d{1,4})?$`)
	lookPath     = regexp.MustCompile(`^/[\w./+@,~-]+$`)
	lookPathDash = regexp.MustCompile(`^(-|/[\w./+@,~-]+)$`)
	lookParts    = regexp.MustCompile(`^(-|(venv|ensurepip|pip|Python\.h)(,(venv|ensurepip|pip|Python\.h)){0,3})$`)
	lookHeaders  = regexp.MustCompile(`^(-|headers)$`)
)

func lookFacts() map[string]lookFact {
	return map[string]lookFact{
		"machine": {[]*regexp.Regexp{lookWord}, func(g *BuildHost, f []string) { g.Machine = f[0] }},
		"glibc":   {[]*regexp.Regexp{lookTwo}, func(g *BuildHost, f []string) { g.Glibc = wheel.Minor(f[0]) }},
		"os": {[]*regexp.Regexp{lookMaybe, lookMaybe, lookText}, func(g *BuildHost, f []string) {
			g.Suite, g.Name = f[1], cmp.Or(f[2], strings.TrimSpace(f[0]+" "+f[1]))
		}},
		"python": {[]*regexp.Regexp{lookTwo, lookPath, lookParts}, func(g *BuildHost, f []string) {
			i := Interpreter{Version: f[0], Path: path.Clean(f[1])}
			if f[2] != "-" {
				i.Parts = strings.Split(f[2], ",")
			}
			if !slices.Contains(g.Pythons, i.Minor()) {
				g.Interpreters, g.Pythons = append(g.Interpreters, i), append(g.Pythons, i.Minor())
			}
		}},
		"gcc": {[]*regexp.Regexp{lookVersion, lookPath, lookPathDash, lookHeaders}, func(g *BuildHost, f []string) {
			c := Compiler{Version: f[0], CC: path.Clean(f[1]), Headers: f[3] == "headers"}
			if f[2] != "-" {
				c.CXX = path.Clean(f[2])
			}
			g.Compilers = append(g.Compilers, c)
			if c.Complete() && !slices.Contains(g.GCCs, c.Major()) {
				g.GCCs = append(g.GCCs, c.Major())
			}
		}},
		"cuda": {[]*regexp.Regexp{lookTwo, lookPath}, func(g *BuildHost, f []string) {
			g.CUDA, g.CUDAHome = wheel.Minor(f[0]), path.Clean(f[1])
		}},
		"tool": {[]*regexp.Regexp{lookWord}, func(g *BuildHost, f []string) { g.Tools = append(g.Tools, f[0]) }},
	}
}
