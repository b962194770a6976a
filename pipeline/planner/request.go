package planner

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/wheel"
)

// Keys lists what Set reads: flags of dsbuild wheel, which are also the keys of an entry of a nightly file.
func Keys() []string {
	return []string{
		"torch", "cuda", "python", "arch", "gpu", "ops", "cpu", "machine", "target-glibc", "min-driver", "abi", "base", "keep-debug",
	}
}

// The words for values that dsbuild chooses.
const (
	autoABI   = "auto"   // the ABI that fits
	everyGPU  = "all"    // all GPUs, as no GPU and no arch do
	nativeCPU = "native" // the level of the machine dsbuild runs on
)

// EveryMachine requests a wheel for each machine: ByMachine splits it into several requests.
const EveryMachine = "all"

// RequestError is a value of a request that has no meaning.
type RequestError struct {
	text, fileText string // in the words of the command line, and of a file
	suggestion     string
}

func (e *RequestError) Error() string { return e.text }

// Hint suggests the nearest value, if any.
func (e *RequestError) Hint() string { return e.suggestion }

// ExitCode returns the exit code for wrong usage.
func (e *RequestError) ExitCode() int { return fault.Usage }

func requestError(suggestion, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &RequestError{text, flagsAsKeys(text), suggestion}
}

// wrongValue reports an invalid value of a key.
func wrongValue(key, text, want, suggestion string) error {
	return requestError(suggestion, "invalid value %q for --%s: %s", lineerr.Clip(text), key, want)
}

// Set reads the text of a key into a request. Each text of arch, gpu and ops is added to those before. The keys
// must come in the order of Keys, because some are compared with earlier ones.
func Set(r *wheel.Request, key, text string) error {
	switch key {
	case "arch":
		return addArchs(r, text)
	case "gpu":
		names := compat.SplitNames([]string{text})
		if r.GPUs = append(slices.Clip(r.GPUs), names...); len(names) == 0 {
			return requestError("", "--gpu: empty value")
		}
		if slices.Contains(r.GPUs, everyGPU) && len(r.GPUs)+len(r.Archs) > 1 {
			return requestError("", "--gpu all cannot be combined with other GPUs or --arch")
		}
	case "ops":
		names := compat.SplitNames([]string{text})
		if r.Ops = append(slices.Clip(r.Ops), names...); len(names) == 0 {
			return requestError("", "--ops: empty value")
		}
	case "cpu":
		return setCPU(r, text)
	case "machine":
		machines := []string{wheel.X86, wheel.Arm, EveryMachine}
		if !slices.Contains(machines, text) {
			return wrongValue(key, text, "want x86_64, aarch64 or all", lineerr.DidYouMean(text, machines))
		}
		if r.Machine = text; r.CPU != "" && r.CPU.Machine() != text {
			return requestError("omit --machine",
				"--cpu %s is a level of %s, but --machine is %s", r.CPU, r.CPU.Machine(), text)
		}
	case "abi":
		abis := []string{autoABI, string(wheel.StableABI), string(wheel.TorchMinor)}
		if !slices.Contains(abis, text) {
			return wrongValue(key, text, "want auto, stable or torch", lineerr.DidYouMean(text, abis))
		}
		if r.ABI = wheel.ABI(text); text == autoABI {
			r.ABI = ""
		}
	case "base":
		r.Base = text
	case "keep-debug":
		r.KeepDebug = text == "true"
	default:
		v := versions()[key]
		if *v.of(r) = text; !v.form.MatchString(text) {
			return wrongValue(key, text, v.want, versionMeant(text))
		}
		n := narrowed(*r) // its CUDA is torch's, if torch has one
		if key == "cuda" && text != n.CUDA && !strings.HasPrefix(n.CUDA, text+".") {
			return requestError("omit --cuda, or use --torch "+n.Torch,
				"--torch %s is for CUDA %s, but --cuda is %s", r.Torch, n.CUDA, text)
		}
	}
	return nil
}

// setCPU reads a CPU level: x86-64-v3, v3 or native.
func setCPU(r *wheel.Request, text string) error {
	levels := slices.Concat(wheel.CPULevels(wheel.X86), wheel.CPULevels(wheel.Arm))
	i := slices.IndexFunc(levels, func(l wheel.CPULevel) bool { return text == string(l) || text == l.Short() })
	switch {
	case i >= 0:
		r.CPU = levels[i]
	case text == nativeCPU:
		level, err := hostCPU()
		if err != nil {
			return requestError("", "--cpu native: %v", err)
		}
		r.CPU = level
	default:
		return wrongValue("cpu", text, "want x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), "+
			"armv8-a (aarch64) or native (this machine's)", lineerr.DidYouMean(text, []string{nativeCPU}))
	}
	return nil
}

// addArchs adds compute capabilities. A GPU in place of one is named in the hint.
func addArchs(r *wheel.Request, text string) error {
	lists := []string{text}
	if len(r.Archs) > 0 {
		lists = append(lists, wheel.ArchList(r.Archs))
	}
	archs, err := wheel.ParseArchs(lists)
	if err == nil {
		r.Archs = archs
		return nil
	}
	if tables, failed := compat.NewTables(); failed == nil && len(tables.GPUsNamed(text)) > 0 {
		return fault.WithHint(err, "did you mean --gpu %s?", compat.QuoteFlag(text))
	}
	return err
}

// version is a key whose value is a version.
type version struct {
	of   func(*wheel.Request) *string
	want string
	form *regexp.Regexp
}

func versions() map[string]version {
	return map[string]version{
		"torch": {
			func(r *wheel.Request) *string { return &r.Torch },
			"want X.Y or X.Y.Z (default: the newest compatible release; with --env PYTHON: the environment's)",
			torchForm,
		},
		"cuda":   {func(r *wheel.Request) *string { return &r.CUDA }, "want X or X.Y", cudaForm},
		"python": {func(r *wheel.Request) *string { return &r.Python }, "want X.Y, such as 3.12", pythonForm},
		"target-glibc": {
			func(r *wheel.Request) *string { return &r.Glibc },
			"want X.Y, as 'ldd --version' prints it on the oldest node: 2.28", glibcForm,
		},
		"min-driver": {
			func(r *wheel.Request) *string { return &r.Driver },
			"want a version, as nvidia-smi prints it on the oldest node: 550.54.15", driverForm,
		},
	}
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

// versionMeant returns a question with the version in a value such as torch==2.7.1, v2.7.1, 2.7.*, cu128 or cp311.
// It returns "" if there is none.
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

// UnknownNames returns the GPUs and ops of a request that the tables lack, each as a key with a *compat.ConflictError.
func UnknownNames(tables *compat.Tables, r wheel.Request) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, name := range r.GPUs {
			if err := tables.CheckGPU(name); name != everyGPU && err != nil && !yield("gpu", err) {
				return
			}
		}
		for _, name := range r.Ops {
			if err := tables.CheckOp(name); err != nil && !yield("ops", err) {
				return
			}
		}
	}
}

// FileText returns an error of Set or of UnknownNames, and its hint, in the words of a file: "--torch 2.8.0" is
// "torch: 2.8.0" there.
func FileText(err error) (text, hint string) {
	var wrong *RequestError
	var unknown *compat.ConflictError
	switch {
	case errors.As(err, &wrong):
		text = wrong.fileText
	case errors.As(err, &unknown):
		text = flagsAsKeys(unknown.Conflicts[0].What)
	default:
		text = flagsAsKeys(err.Error())
	}
	return text, flagsAsKeys(fault.Hint(err))
}

// flagsAsKeys replaces flag names with a file's keys.
func flagsAsKeys(text string) string {
	flags := regexp.MustCompile(`\B--(` + strings.Join(Keys(), "|") + `)\b:?`)
	return flags.ReplaceAllString(text, "$1:")
}

// followable words a fix for what the user gave: a --torch that names its CUDA is two values of r, and the
// versions of --env are no flags. It returns "" for a fix that cannot be followed.
func followable(fix string, asked, r wheel.Request, givenPython bool) string {
	switch {
	case givenPython && notOfEnv.MatchString(fix):
		return ""
	case asked.Torch != r.Torch && !givenPython:
		instead := "pass --cuda " + r.CUDA + " instead of --torch " + asked.Torch
		fix = strings.Replace(fix, "omit --torch "+r.Torch, instead, 1)
		fix = strings.Replace(fix, "omit --cuda "+r.CUDA, "pass --torch "+r.Torch, 1)
	}
	return fix
}

// notOfEnv matches changes of what --env decides.
var notOfEnv = regexp.MustCompile(`^(omit --(torch|cuda|python) |pass )`)

// torchForCUDA matches a torch that names its CUDA, as torch.__version__ does: 2.5.1+cu121.
var torchForCUDA = regexp.MustCompile(`^([0-9.]+)\+cu(?:da)?([0-9]{2})\.?([0-9])$`)

// narrowed returns a request in the words of the resolver: torch and its CUDA apart, and all GPUs as none.
func narrowed(r wheel.Request) wheel.Request {
	if m := torchForCUDA.FindStringSubmatch(r.Torch); m != nil {
		r.Torch, r.CUDA = m[1], m[2]+"."+m[3]
	}
	if slices.Equal(r.GPUs, []string{everyGPU}) {
		r.GPUs = nil
	}
	return r
}

// ByMachine splits a request for all machines, or whose GPUs are sold with CPUs of different machines: one wheel is for
// one machine. GPUs that are sold without a CPU then belong to x86_64 machines. A request for a specific machine is
// unchanged.
func (p *Planner) ByMachine(r wheel.Request) []wheel.Request {
	if r.Machine == EveryMachine {
		x86, arm := r, r
		x86.Machine, arm.Machine = wheel.X86, wheel.Arm
		return []wheel.Request{x86, arm}
	}
	if r.CPU != "" || r.Machine != "" || p.env != nil {
		return []wheel.Request{r}
	}
	var out []wheel.Request
	for _, machine := range []string{wheel.X86, wheel.Arm} {
		one := r
		one.GPUs = slices.DeleteFunc(slices.Clone(r.GPUs), func(name string) bool {
			of := wheel.X86
			for _, g := range p.tables.GPUsNamed(name) {
				of = cmp.Or(g.Machine, of)
			}
			return of != machine
		})
		if one.Machine = machine; len(one.GPUs) > 0 {
			out = append(out, one)
		}
	}
	if len(out) < 2 {
		return []wheel.Request{r}
	}
	return out
}
