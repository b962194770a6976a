package planner

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/wheel"
)

// mistake is a value of a request that has no meaning, whatever the other values are.
type mistake struct {
	key  string // of a nightly file; the flag has the same name
	text string // in the words of the file
	err  error  // in the words of the command line
}

// newMistake describes a value that is not what its key takes.
func newMistake(key, value, want, suggestion string) mistake {
	return mistake{
		key, fmt.Sprintf("%s is %q: %s", key, lineerr.Clip(value), want),
		&RequestError{fmt.Errorf("--%s %s: %s", key, lineerr.Clip(value), want), suggestion},
	}
}

// mistakeOf wraps an error that is worded for both already.
func mistakeOf(key string, err error) mistake { return mistake{key, flagsAsKeys(err.Error()), err} }

// wrongValues finds the values that cannot be read.
func (r Request) wrongValues(tables *compat.Tables) []mistake {
	var all []mistake
	abis := []string{autoABI, string(wheel.StableABI), string(wheel.TorchMinor)}
	if r.ABI != "" && !slices.Contains(abis, r.ABI) {
		all = append(all, newMistake("abi", r.ABI, "must be auto, stable or torch", lineerr.DidYouMean(r.ABI, abis)))
	}
	names := compat.SplitNames(r.GPUs)
	if len(r.GPUs) > 0 && len(names) == 0 {
		all = append(all, mistakeOf("gpu", &RequestError{err: errors.New("--gpu: no GPU given")}))
	}
	if slices.Contains(names, everyGPU) && len(names)+len(r.Archs) > 1 {
		err := errors.New("--gpu all is every GPU: give it alone, without other GPUs and without --arch")
		all = append(all, mistakeOf("gpu", &RequestError{err: err}))
	}
	for _, text := range r.Archs {
		if _, err := wheel.ParseArchs([]string{text}); err != nil {
			if len(tables.GPUsNamed(text)) > 0 {
				err = fault.WithHint(err, "did you mean --gpu %s?", compat.QuoteFlag(text))
			}
			all = append(all, mistakeOf("arch", err))
		}
	}
	if _, err := wheel.ParseCPULevel(r.CPU); err != nil && r.CPU != "" && r.CPU != nativeCPU {
		all = append(all, newMistake("cpu", r.CPU,
			"must be x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (of aarch64), "+
				"or native: the level of this machine", lineerr.DidYouMean(r.CPU, []string{nativeCPU})))
	}
	if known := []string{wheel.X86, wheel.Arm}; r.Machine != "" && !slices.Contains(known, r.Machine) {
		all = append(all, newMistake("machine", r.Machine, "must be x86_64 or aarch64",
			lineerr.DidYouMean(r.Machine, known)))
	}
	if r.Ops != nil && len(r.Ops) == 0 { // nil: the default ops
		all = append(all, mistakeOf("ops", &RequestError{err: errors.New("--ops: no operator given")}))
	}
	for _, v := range []struct {
		key, value, want string
		form             *regexp.Regexp
	}{
		{
			"torch", r.Torch,
			"must be X.Y or X.Y.Z (without --torch: the newest that fits; with --env PYTHON: that of an environment)",
			torchForm,
		},
		{"cuda", r.CUDA, "must be X or X.Y", cudaForm},
		{"python", r.Python, "must be X.Y, such as 3.12", pythonForm},
		{"glibc", r.Glibc, "must be X.Y, as 'ldd --version' prints it on the oldest node: 2.28", glibcForm},
		{"driver", r.Driver, "must be a version, as nvidia-smi prints it on the oldest node: 550.54.15", driverForm},
	} {
		if v.value != "" && !v.form.MatchString(v.value) {
			all = append(all, newMistake(v.key, v.value, v.want, versionMeant(v.value)))
		}
	}
	return all
}

var (
	torchForm  = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?((a|b|rc|\.dev|\.post|\+).*)?$`) // the suffix is compat's
	cudaForm   = regexp.MustCompile(`^[0-9]{1,2}(\.[0-9]+){0,2}$`)
	pythonForm = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)
	glibcForm  = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	driverForm = regexp.MustCompile(`^[0-9]{3}(\.[0-9]+){0,2}$`)

	wordVersion  = regexp.MustCompile(`^[^0-9<>!~]*([0-9]+\.[0-9]+(?:\.[0-9]+)?)[.x* ]*$`)
	gluedVersion = regexp.MustCompile(`^[a-z]*(3|1[0-9])([0-9]{1,2})$`)
)

// versionMeant asks for the version in a value such as torch==2.7.1, v2.7.1, 2.7.*,
// cu128 or cp311; "" if there is none.
func versionMeant(value string) string {
	meant := ""
	if m := wordVersion.FindStringSubmatch(value); m != nil {
		meant = m[1]
	} else if m := gluedVersion.FindStringSubmatch(value); m != nil {
		meant = m[1] + "." + m[2]
	}
	if meant == "" || meant == value {
		return ""
	}
	return "did you mean " + meant + "?"
}

// AddMistakes adds the invalid values of a file's entry to the mistakes of the file, unknown GPUs and ops
// included. place returns the position of a key's value. A value that several entries share is added once.
func AddMistakes(list *lineerr.List, tables *compat.Tables, r Request, place func(key string) lineerr.Position) {
	wrong := r.wrongValues(tables)
	for _, name := range compat.SplitNames(r.GPUs) {
		var bad *compat.ConflictError
		if name != everyGPU && errors.As(tables.CheckGPU(name), &bad) {
			wrong = append(wrong, mistakeOf("gpu", fault.WithHint(errors.New(bad.Conflicts[0].What), "%s", bad.Hint())))
		}
	}
	for _, name := range compat.SplitNames(r.Ops) {
		var bad *compat.ConflictError
		if errors.As(tables.CheckOp(name), &bad) {
			wrong = append(wrong, mistakeOf("ops", fault.WithHint(errors.New(bad.Conflicts[0].What), "%s", bad.Hint())))
		}
	}
	for _, m := range wrong {
		at := place(m.key)
		same := func(p lineerr.Problem) bool { return p.Position == at && p.Message == m.text }
		if !slices.ContainsFunc(list.Problems, same) {
			list.Add(at, flagsAsKeys(fault.Hint(m.err)), "%s", m.text)
		}
	}
}

// flagsAsKeys replaces names of flags by the keys of a file: "--torch 2.8.0" is "torch: 2.8.0" there.
func flagsAsKeys(text string) string {
	flags := regexp.MustCompile(`\B--(` + strings.Join(Keys(), "|") + `)\b:?`)
	return flags.ReplaceAllString(text, "$1:")
}
