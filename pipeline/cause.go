package pipeline

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// FailureLines returns the lines of a failed command's output with the reason: for a compiler, the
// most important diagnostic, with its file, and the last line; for any other program, its first error
// and the last lines.
func FailureLines(stdout, stderr string) string {
	lines := strings.Split(strings.TrimSpace(stdout+"\n"+stderr), "\n")
	last := len(lines) - 1
	if at := slices.IndexFunc(lines, hashLine.MatchString); at >= 0 {
		return indentLines(lines[at:min(last+1, at+hashLines)])
	}
	if at := diagnosis(lines); at >= 0 {
		end := at + 1
		for end < last && end-at <= sourceLines && quotesSource.MatchString(lines[end]) {
			end++
		}
		shown := slices.Clone(lines[at:end])
		if end <= last {
			shown = append(shown, "...", lines[last])
		}
		return indentLines(shown)
	}
	var shown []string
	for i, line := range lines {
		if i < len(lines)-tailLines && errorLine.MatchString(line) {
			shown = append(shown, line, "...")
			break
		}
	}
	return indentLines(append(shown, lines[max(0, len(lines)-tailLines):]...))
}

const (
	tailLines   = 12
	sourceLines = 2 // source lines that a compiler quotes below a diagnostic
	hashLines   = 8 // lines of uv or pip about a different hash
)

var (
	errorLine    = regexp.MustCompile(`(?i)(\b|^)(fatal )?error: |Error: |No space left on device`)
	quotesSource = regexp.MustCompile(`^ +\d* \| `)
)

// diagnosis returns the index of the line with a compiler's or linker's reason for its failure, or
// -1. The first error can be a consequence of a later #error, because g++ continues after one.
func diagnosis(lines []string) int {
	// Patterns of compiler errors. Errors that cause others come first.
	for _, kind := range []*regexp.Regexp{
		killedLine,
		noSpaceLine,
		regexp.MustCompile(`^\S.*(:\d+|\(\d+\)).*: (fatal |catastrophic )?error: #error`),
		missingHeader,
		regexp.MustCompile(`^\S.*(:\d+|\(\d+\)): (fatal |catastrophic )?error:? `),
		regexp.MustCompile(`\bld(\.\w+)?: .*(cannot find|undefined reference|undefined symbol|version node)`),
		regexp.MustCompile(`^(nvcc|ptxas|g\+\+|gcc|cc1plus) ?(fatal|error)? *: (fatal )?(error: )?`),
	} {
		if at := slices.IndexFunc(lines, kind.MatchString); at >= 0 {
			return at
		}
	}
	return -1
}

// otherHash matches uv's error about a file whose hash differs from the plan's. pip prints the
// requirement on a separate line.
var otherHash = regexp.MustCompile("(?:Hash mismatch for `?|DO NOT MATCH THE HASHES[^\n]*\n\\s*)" +
	"([A-Za-z0-9._-]+==[^\\s`]+)")

var hashLine = regexp.MustCompile(`Hash mismatch for |DO NOT MATCH THE HASHES`)

var (
	killedLine = regexp.MustCompile(`Killed signal terminated program|virtual memory exhausted|` +
		`cannot allocate memory|out of memory allocating|died due to signal 9|: killed by signal 9`)
	noSpaceLine   = regexp.MustCompile(`No space left on device`)
	missingHeader = regexp.MustCompile(`(?:fatal|catastrophic) error: ` +
		`(?:cannot open source file "([\w./+-]+)"|([\w./+-]+): No such file or directory)`)
	olderStandard = regexp.MustCompile(`#error.* (C\+\+\d\d) .*is required`)
)

func indentLines(lines []string) string { return "  " + strings.Join(lines, "\n  ") }

// StepFailed returns the error of a step. If its program ran and failed, ran is set and tail has the
// lines of FailureLines; otherwise the step did not complete. The exit code is 4 for a wheel that does
// not work after its installation, and for a package that differs from the plan's.
func StepFailed(step string, err error, ran bool, tail string) error {
	err = fmt.Errorf("step %s: %w", step, err)
	if tail != "" {
		err = fmt.Errorf("%w\n%s", err, tail)
	}
	full := noSpaceLine.MatchString(err.Error())
	another := otherHash.FindStringSubmatch(err.Error())
	hint := ""
	switch {
	case another != nil:
		hint = fmt.Sprintf("use an index with the planned file of %s (--index-url), or repair the mirror; "+
			"list the planned sha256: dsbuild wheel --dry-run --verbose", another[1])
	case missingHeader.MatchString(tail):
		m := missingHeader.FindStringSubmatch(tail)
		hint = headerHint(m[1] + m[2])
	case olderStandard.MatchString(tail):
		hint = fmt.Sprintf("use torch 2.11 or older, which works with C++17: newer headers require %s, which these sources do not use",
			olderStandard.FindStringSubmatch(tail)[1])
	case killedLine.MatchString(tail):
		hint = "compile one source at a time with --jobs 1: a compiler was killed because the system ran out of memory"
	case full:
		hint = "free up to 25 GB on the engine's disk (docker system df) or in ~/.cache/dsbuild, " +
			"or set TMPDIR to another temporary directory"
	}
	if another != nil || step == SmokeStep && ran && !full {
		err = fault.WithCode(err, fault.Wheel)
	}
	return fault.AddHint(err, hint)
}

// headerPackage describes which packages contain a header.
type headerPackage struct {
	Header  string `json:"header"`            // expression for the name
	Toolkit string `json:"toolkit,omitempty"` // component of the CUDA toolkit
	Debian  string `json:"debian,omitempty"`
	Python  string `json:"python,omitempty"`
}

//go:embed headers.json
var headerTable []byte

// headerHint suggests the package that contains a missing header.
func headerHint(header string) string {
	var table struct {
		Headers []headerPackage `json:"headers"`
	}
	if err := json.Unmarshal(headerTable, &table); err != nil {
		return ""
	}
	for _, p := range table.Headers {
		if match, err := regexp.MatchString("^("+p.Header+")$", header); !match || err != nil {
			continue
		}
		var from []string
		if p.Toolkit != "" {
			from = append(from, fmt.Sprintf("the CUDA toolkit component %s", p.Toolkit))
		}
		if p.Debian != "" {
			from = append(from, fmt.Sprintf("the Debian package %s", p.Debian))
		}
		if p.Python != "" {
			from = append(from, fmt.Sprintf("the Python package %s", p.Python))
		}
		return "install what provides " + header + ": " + strings.Join(from, ", or ")
	}
	return ""
}
