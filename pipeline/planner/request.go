package planner

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/wheel"
)

// autoABI leaves the choice of the ABI to the resolver.
const autoABI = "auto"

// everyGPU asks for the archs of all GPUs, as no GPU and no arch do.
const everyGPU = "all"

// nativeCPU asks for the level of the machine dsbuild runs on.
const nativeCPU = "native"

// Request describes one wheel, as the flags of dsbuild wheel and an entry of a nightly file do.
type Request struct {
	Archs     []string
	GPUs      []string
	Ops       []string
	DeepSpeed string
	Torch     string
	CUDA      string
	Python    string
	Machine   string // "": that of the GPUs, or of the build environment
	CPU       string
	Glibc     string
	Driver    string
	ABI       string // torch, stable or auto; "" is auto
	Base      string
	KeepDebug bool
}

// Keys lists the keys of an entry of a nightly file. They are flags of dsbuild wheel.
func Keys() []string {
	return []string{
		"torch", "cuda", "python", "arch", "gpu", "ops", "machine", "cpu", "glibc", "driver", "abi", "base",
		"keep-debug",
	}
}

// Set sets the value of a key: one word, or several for arch, gpu and ops. A GPU replaces an arch, and an
// arch a GPU.
func (r *Request) Set(key string, words []string) {
	switch key {
	case "arch":
		r.Archs, r.GPUs = words, nil
	case "gpu":
		r.GPUs, r.Archs = words, nil
	case "ops": // joined by commas, as in the flag
		r.Ops = strings.Split(strings.Join(words, ","), ",")
	case "keep-debug":
		r.KeepDebug = words[0] == "true"
	default:
		*map[string]*string{
			"torch": &r.Torch, "cuda": &r.CUDA, "python": &r.Python, "machine": &r.Machine, "cpu": &r.CPU,
			"glibc": &r.Glibc, "driver": &r.Driver, "abi": &r.ABI, "base": &r.Base,
		}[key] = words[0]
	}
}

// RequestError is a value of a request that has no meaning.
type RequestError struct {
	err        error
	suggestion string
}

func (e *RequestError) Error() string { return e.err.Error() }
func (e *RequestError) Unwrap() error { return e.err }

// Hint names the nearest value, "" if none is near.
func (e *RequestError) Hint() string { return e.suggestion }

// ExitCode is that of wrong usage.
func (e *RequestError) ExitCode() int { return 2 }

// spec reads the request's values, or reports the first that has no meaning.
func (r Request) spec(tables *compat.Tables) (wheel.Request, error) {
	spec := wheel.Request{GPUs: r.GPUs, Torch: r.Torch, CUDA: r.CUDA, Python: r.Python, Glibc: r.Glibc, Driver: r.Driver}
	if m := torchForCUDA.FindStringSubmatch(r.Torch); m != nil {
		spec.Torch, spec.CUDA = m[1], m[2]+"."+m[3]
		if r.CUDA != "" && r.CUDA != spec.CUDA && r.CUDA != m[2] {
			err := fmt.Errorf("--torch %s is for CUDA %s, and --cuda says %s", r.Torch, spec.CUDA, r.CUDA)
			return spec, &RequestError{err, "leave --cuda out, or write --torch " + m[1]}
		}
	}
	if wrong := r.wrongValues(tables); len(wrong) > 0 {
		return spec, wrong[0].err
	}
	for _, op := range r.Ops { // of a list such as "cpu_adam, utils"
		spec.Ops = append(spec.Ops, strings.TrimSpace(op))
	}
	if spec.ABI = wheel.ABI(r.ABI); r.ABI == autoABI {
		spec.ABI = ""
	}
	if slices.Equal(r.GPUs, []string{everyGPU}) {
		spec.GPUs = nil
	}
	var err error
	if spec.Archs, err = wheel.ParseArchs(r.Archs); err != nil {
		return spec, err
	}
	switch r.CPU {
	case "": // the nodes decide
	case nativeCPU:
		if spec.CPU, err = hostCPU(); err != nil {
			return spec, &RequestError{err: fmt.Errorf("--cpu native: %w", err)}
		}
	default:
		spec.CPU, err = wheel.ParseCPULevel(r.CPU)
	}
	switch {
	case err != nil || r.Machine == "":
	case spec.CPU == "":
		spec.CPU = wheel.DefaultCPU(r.Machine)
	case spec.CPU.Machine() != r.Machine:
		err = fmt.Errorf("--cpu %s is a level of %s, and --machine says %s", r.CPU, spec.CPU.Machine(), r.Machine)
		err = &RequestError{err, "leave --machine out"}
	}
	return spec, err
}

// ByMachine splits a request whose GPUs are sold with CPUs of different machines: one wheel is for
// one machine. GPUs that are sold without a CPU count as those of x86_64 machines then. A request
// that names its machine stays as it is.
func (p *Planner) ByMachine(r Request) []Request {
	if r.Machine != "" || r.CPU != "" || p.env != nil {
		return []Request{r}
	}
	var out []Request
	for _, machine := range []string{wheel.X86, wheel.Arm} {
		one := r
		one.GPUs = nil
		for _, name := range compat.SplitNames(r.GPUs) {
			of := wheel.X86
			for _, g := range p.tables.GPUsNamed(name) {
				of = cmp.Or(g.Machine, of)
			}
			if of == machine {
				one.GPUs = append(one.GPUs, name)
			}
		}
		if one.Machine = machine; len(one.GPUs) > 0 {
			out = append(out, one)
		}
	}
	if len(out) < 2 {
		return []Request{r}
	}
	return out
}

// followable words a fix for what the user gave: a --torch that names its CUDA is two values of the spec, and the
// versions of --env are no flags. It returns "" for a fix that cannot be followed.
func (r Request) followable(fix string, spec wheel.Request, givenPython bool) string {
	switch {
	case givenPython && notOfEnv.MatchString(fix):
		return ""
	case r.Torch != spec.Torch && !givenPython:
		fix = strings.Replace(fix, "leave --torch "+spec.Torch+" out", "give --cuda "+spec.CUDA+" in place of --torch "+r.Torch, 1)
		fix = strings.Replace(fix, "leave --cuda "+spec.CUDA+" out", "give --torch "+spec.Torch, 1)
	}
	return fix
}

// notOfEnv matches changes of what --env decides.
var notOfEnv = regexp.MustCompile(`^(leave --(torch|cuda|python) |give )`)

// torchForCUDA matches a torch that names its CUDA, as torch.__version__ does: 2.5.1+cu121.
var torchForCUDA = regexp.MustCompile(`^([0-9.]+)\+cu(?:da)?([0-9]{2})\.?([0-9])$`)
