package image

import (
	"maps"
	"regexp"
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

// evidence has the values of each fact that differ. Of two sources that differ, none is believed.
type evidence map[string][]Fact

// add notes a fact, and what it implies: the CUDA of a torch, the Python of a folder. It ignores an empty value and
// one that does not have the fact's form.
func (e evidence) add(name, value, source string) {
	form := factForms[name]
	if form == nil || !form.MatchString(value) {
		return
	}
	switch name {
	case FactTorch:
		if m := cudaLocal.FindStringSubmatch(value); m != nil { // 2.15.0+cu132
			e.add(FactCUDA, m[1]+"."+m[2], source)
		} else if strings.HasSuffix(value, "+cpu") {
			e.add(FactCUDA, None, source)
		}
	case FactSitePackages:
		if m := pythonFolder.FindStringSubmatch(value); m != nil {
			e.add(FactPython, m[1], source)
		}
	}
	next := Fact{name, value, source}
	for i, have := range e[name] {
		if agree(name, have.Value, value) {
			if len(value) > len(have.Value) { // the more exact one
				e[name][i] = next
			}
			return
		}
	}
	e[name] = append(e[name], next)
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
func (e evidence) value(name string) string {
	if len(e[name]) != 1 {
		return ""
	}
	return e[name][0].Value
}

// list returns the facts that are known, in the order of messages.
func (e evidence) list() []Fact {
	var out []Fact
	for _, name := range factNames() {
		if len(e[name]) == 1 {
			out = append(out, e[name][0])
		}
	}
	return out
}

// over returns the evidence of e, completed by weaker evidence, which does not settle a conflict of e.
func (e evidence) over(weaker evidence) evidence {
	out := maps.Clone(weaker)
	maps.Copy(out, e)
	return out
}

var (
	cudaLocal    = regexp.MustCompile(`\+cu(\d{2})(\d)\b`)
	pythonFolder = regexp.MustCompile(`/python(3\.\d+)/(site|dist)-packages$`)
	twoNumbers   = regexp.MustCompile(`^\d+\.\d+`)
)

// minor cuts a version to X.Y.
func minor(version string) string { return twoNumbers.FindString(version) }
