package deploy

import (
	"fmt"
	"regexp"
	"strings"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// satisfies reports whether a version meets a PEP 440 specifier. It accepts pre-releases, because
// the version is already installed. It returns true for a URL or an invalid specifier.
func satisfies(version, constraint string) bool {
	if constraint == "" || strings.HasPrefix(constraint, "@") {
		return true
	}
	if exact, ok := strings.CutPrefix(constraint, "==="); ok {
		return strings.TrimSpace(exact) == version
	}
	c, err := semver.PyPI.ParseConstraint(constraint)
	if err != nil {
		return true
	}
	// PEP 440: a specifier without a local part ignores the local part of the version.
	if !strings.Contains(constraint, "+") {
		version, _, _ = strings.Cut(version, "+")
	}
	v, err := semver.PyPI.Parse(version)
	return err == nil && c.MatchVersionPrerelease(v)
}

// markerToken matches the next word of a PEP 508 marker.
var markerToken = regexp.MustCompile(`^\s*('[^']*'|"[^"]*"|[A-Za-z_][A-Za-z_.]*|===|==|~=|!=|<=|>=|<|>|\(|\))`)

// marker is a PEP 508 environment marker under evaluation.
type marker struct {
	words []string
	env   map[string]string
}

// markerHolds evaluates a marker for a node's Python and one requested extra, which may be "". An empty marker always
// holds.
func markerHolds(text string, f node.Facts, extra string) (bool, error) {
	if strings.TrimSpace(text) == "" {
		return true, nil
	}
	_, machine, _ := strings.Cut(f.Platform, "_")
	m := marker{env: map[string]string{ // dsbuild's nodes run Linux and CPython
		"python_version": wheel.Minor(f.Python), "python_full_version": f.Python, "implementation_version": f.Python,
		"implementation_name": "cpython", "platform_python_implementation": "CPython",
		"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux",
		"platform_machine": machine, "platform_release": "", "platform_version": "", "extra": extra,
	}}
	for rest := text; strings.TrimSpace(rest) != ""; {
		loc := markerToken.FindStringSubmatchIndex(rest)
		if loc == nil {
			return false, fmt.Errorf("invalid marker at %q", rest)
		}
		m.words = append(m.words, rest[loc[2]:loc[3]])
		rest = rest[loc[1]:]
	}
	holds, err := m.or()
	if err == nil && len(m.words) > 0 {
		err = fmt.Errorf("invalid marker at %q", strings.Join(m.words, " "))
	}
	return holds, err
}

func (m *marker) next() string {
	if len(m.words) == 0 {
		return ""
	}
	w := m.words[0]
	m.words = m.words[1:]
	return w
}

func (m *marker) peek(w string) bool { return len(m.words) > 0 && m.words[0] == w }

func (m *marker) or() (bool, error) {
	holds, err := m.and()
	for err == nil && m.peek("or") {
		m.next()
		var right bool
		right, err = m.and()
		holds = holds || right
	}
	return holds, err
}

func (m *marker) and() (bool, error) {
	holds, err := m.term()
	for err == nil && m.peek("and") {
		m.next()
		var right bool
		right, err = m.term()
		holds = holds && right
	}
	return holds, err
}

func (m *marker) term() (bool, error) {
	if m.peek("(") {
		m.next()
		holds, err := m.or()
		if err == nil && m.next() != ")" {
			err = fmt.Errorf("invalid marker: missing closing parenthesis")
		}
		return holds, err
	}
	left, lname, err := m.value()
	if err != nil {
		return false, err
	}
	op := m.next()
	if op == "not" {
		op += " " + m.next()
	}
	right, rname, err := m.value()
	if err != nil {
		return false, err
	}
	return compare(left, op, right, strings.Contains(lname+rname, "version"))
}

// value reads a quoted string, or the value of a variable together with its name.
func (m *marker) value() (value, name string, err error) {
	w := m.next()
	if len(w) > 1 && (w[0] == '\'' || w[0] == '"') {
		return w[1 : len(w)-1], "", nil
	}
	value, ok := m.env[strings.ReplaceAll(w, ".", "_")]
	if !ok {
		return "", "", fmt.Errorf("unknown marker variable %q", w)
	}
	return value, w, nil
}

func compare(left, op, right string, versions bool) (bool, error) {
	switch op {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	}
	if versions {
		return satisfies(left, op+right), nil
	}
	switch op {
	case "==", "===":
		return left == right, nil
	case "!=":
		return left != right, nil
	case "<":
		return left < right, nil
	case "<=":
		return left <= right, nil
	case ">":
		return left > right, nil
	case ">=":
		return left >= right, nil
	}
	return false, fmt.Errorf("unknown marker operator %q", op)
}
