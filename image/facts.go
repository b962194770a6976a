package image

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The facts about a base that decide whether a wheel fits, and where it goes. They are also the
// names of flags and, after labelPrefix, of labels.
const (
	FactPython       = "python"        // X.Y
	FactTorch        = "torch"         // X.Y.Z
	FactCUDA         = "cuda"          // X.Y that torch was built for; "none"
	FactGlibc        = "glibc"         // X.Y
	FactLibstdcxx    = "libstdcxx"     // newest GLIBCXX: 3.4.30
	FactSitePackages = "site-packages" // absolute
	FactDeepSpeed    = "deepspeed"     // version in the base; "none"
)

// labelPrefix begins the names of dsbuild's labels.
const labelPrefix = "dsbuild."

// None is the value of a fact about something that a base does not have.
const None = "none"

// Fact is one thing that is known about a base.
type Fact struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // where it was read
}

// factNames lists the facts in the order of messages.
func factNames() []string {
	return []string{FactPython, FactTorch, FactCUDA, FactGlibc, FactLibstdcxx, FactSitePackages, FactDeepSpeed}
}

// factForms are the forms of values. Other text is no fact: it comes from images of strangers.
var factForms = map[string]*regexp.Regexp{
	FactPython:       regexp.MustCompile(`^3\.\d{1,3}(\.\d+)?((a|b|rc)\d+)?$`),
	FactTorch:        regexp.MustCompile(`^(none|\d{1,4}\.\d{1,4}[0-9A-Za-z.+]{0,60})$`),
	FactCUDA:         regexp.MustCompile(`^(none|\d{1,3}\.\d{1,3})$`),
	FactGlibc:        regexp.MustCompile(`^2\.\d{1,3}$`),
	FactLibstdcxx:    regexp.MustCompile(`^3\.4\.\d{1,3}$`),
	FactSitePackages: regexp.MustCompile(`^(/[A-Za-z0-9._+-]+)+$`),
	FactDeepSpeed:    regexp.MustCompile(`^(none|\d{1,4}\.\d{1,4}[0-9A-Za-z.+]{0,80})$`),
}

// evidence collects facts. Of two sources that differ, none is believed.
type evidence struct {
	facts     map[string]Fact
	conflicts map[string][]Fact
}

func newEvidence() *evidence {
	return &evidence{facts: map[string]Fact{}, conflicts: map[string][]Fact{}}
}

// add notes a fact. It ignores an empty value and one that does not have the fact's form.
func (e *evidence) add(name, value, source string) {
	form := factForms[name]
	if value == "" || form == nil || !form.MatchString(value) {
		return
	}
	next := Fact{name, value, source}
	have, ok := e.facts[name]
	switch {
	case !ok:
		e.facts[name] = next
	case agree(name, have.Value, value):
		if len(value) > len(have.Value) { // the more exact one
			e.facts[name] = next
		}
	default:
		e.conflicts[name] = append(e.conflicts[name], next)
	}
}

// agree reports whether two values can both be true: 3.11 and 3.11.7, 2.15.0 and 2.15.0+cu132.
func agree(name, a, b string) bool {
	if name == FactSitePackages {
		return a == b
	}
	if name == FactTorch || name == FactDeepSpeed {
		x, xLocal, xHas := strings.Cut(a, "+")
		y, yLocal, yHas := strings.Cut(b, "+")
		if xHas && yHas && xLocal != yLocal {
			return false
		}
		a, b = x, y
	}
	return a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+".")
}

// value returns the known value, "" if there is none or the sources differ.
func (e *evidence) value(name string) string {
	if len(e.conflicts[name]) > 0 {
		return ""
	}
	return e.facts[name].Value
}

// list returns the facts that are known, in the order of messages.
func (e *evidence) list() []Fact {
	var out []Fact
	for _, name := range factNames() {
		if e.value(name) != "" {
			out = append(out, e.facts[name])
		}
	}
	return out
}

// over returns the evidence of e, completed by weaker evidence. Where e has a conflict, weaker
// evidence does not settle it.
func (e *evidence) over(weaker *evidence) *evidence {
	out := newEvidence()
	for _, name := range factNames() {
		from := e
		if _, ok := e.facts[name]; !ok {
			from = weaker
		}
		if f, ok := from.facts[name]; ok {
			out.facts[name] = f
		}
		if c := from.conflicts[name]; len(c) > 0 {
			out.conflicts[name] = c
		}
	}
	return out
}

// contradict returns the facts of e that a statement of the user denies.
func (e *evidence) contradict(given *evidence) []string {
	var out []string
	for _, name := range factNames() {
		have, said := e.value(name), given.value(name)
		if have != "" && said != "" && !agree(name, have, said) {
			out = append(out, fmt.Sprintf("--%s %s, but %s says %s", name, said, e.facts[name].Source, have))
		}
	}
	return out
}

// describeConflict lists the values of a fact on which the sources differ.
func (e *evidence) describeConflict(name string) string {
	all := append([]Fact{e.facts[name]}, e.conflicts[name]...)
	var parts []string
	for _, f := range all {
		part := f.Value + " by " + f.Source
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}

var cudaLocal = regexp.MustCompile(`\+cu(\d{2})(\d)\b`)

// addTorch notes a version of torch, and the CUDA in its local part: 2.15.0+cu132.
func (e *evidence) addTorch(version, source string) {
	e.add(FactTorch, version, source)
	if m := cudaLocal.FindStringSubmatch(version); m != nil {
		e.add(FactCUDA, m[1]+"."+m[2], source)
	} else if strings.HasSuffix(version, "+cpu") {
		e.add(FactCUDA, None, source)
	}
}

// factsOfLabels returns the facts in dsbuild's own labels, which an earlier run or the Dockerfile of the
// base has set.
func factsOfLabels(labels map[string]string) *evidence {
	e := newEvidence()
	for _, name := range factNames() {
		e.addSaid(name, labels[labelPrefix+name], "label "+labelPrefix+name)
	}
	return e
}

// addSaid notes a fact that somebody said; of torch's version also the CUDA in it.
func (e *evidence) addSaid(name, value, source string) {
	if name == FactTorch {
		e.addTorch(value, source)
		return
	}
	e.add(name, value, source)
}

var twoNumbers = regexp.MustCompile(`^\d+\.\d+`)

// minor cuts a version to X.Y.
func minor(version string) string { return twoNumbers.FindString(version) }

var pythonFolder = regexp.MustCompile(`/python(3\.\d+)/(site|dist)-packages$`)

// addSite notes where packages are, and the Python that the path names.
func (e *evidence) addSite(folder, source string) {
	e.add(FactSitePackages, folder, source)
	if m := pythonFolder.FindStringSubmatch(folder); m != nil {
		e.add(FactPython, m[1], source)
	}
}
