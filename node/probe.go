package node

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
)

//go:embed probe.sh
var probeShell string

//go:embed probe.py
var probePython string

//go:embed uses.py
var usesPython string

//go:embed judge.py
var judgePython string

// answered is the status with which Python ends once it has told all; one more
// if nvidia-smi told it nothing, two more if that did not end, three more if an errand
// failed. With any other the shell (probe.sh) tells what it can.
const answered = 93

// maxGPUs bounds what a node may claim to have.
const maxGPUs = 512

// ProbeOptions say what to look at on a node.
type ProbeOptions struct {
	// Python is the interpreter: absolute or a command name; "python3" if empty.
	Python string
	// Files has the files of an installed DeepSpeed compared with RECORD, which
	// takes as long as reading them. Without it Installed.Intact stays false.
	Files bool
	// Of, if not empty, has them compared only where dsbuild installed one of these
	// wheels, by their sha256: what is going to be replaced anyhow is of no interest.
	Of []string
	// Commands are the names that wheels may put into the environment's folder of
	// commands. With Files, Facts.Taken tells which of them belong to somebody else.
	Commands []string
}

// answer is what the messages of the probe add up to.
type answer struct {
	any bool // at least one message came

	gpus                                           []GPU
	driver, container, machine, libc, flags, found string // found: the interpreter's path
	hung                                           bool   // nvidia-smi
	withheld                                       bool   // GPUs from these commands

	python *pythonFacts
	errand Errand // takes what Python says after that
}

// pythonFacts is what Python finds: Facts, and what Facts are made of.
type pythonFacts struct {
	Facts
	texts
	SMI     []string `json:"smi"` // lines of nvidia-smi
	Machine string   `json:"machine"`
	Flags   string   `json:"flags"`
	Unseen  int      `json:"in_use_unseen"` // Python processes of others that cannot be looked into
}

// Errand is what a probe's Python does once it has told the facts: starting
// another one would cost as much as most of what there is to ask. It is not done where
// Python is missing or too old. Which processes use the environment is not asked then:
// that is of interest to who is going to change it.
type Errand struct {
	Program Program // of NewErrand
	// Request is what the program finds as REQUEST, by way of JSON.
	Request any
	// Begun is called when the facts are told.
	Begun func()
	// Each takes the program's messages, in order. An error of it becomes the probe's.
	Each func(json.RawMessage) error
}

// Probe gathers the facts of a node in one command. It changes nothing there.
// A node without Python, or with a broken one, still answers what its shell can
// find, with Missing naming the rest.
func Probe(ctx context.Context, r remote.Runner, opt ProbeOptions) (Facts, error) {
	program, files, commands := probeProgram, "False", "[]"
	if opt.Files {
		program, files, commands = probeFilesProgram, pythonFiles(opt.Of), pythonList(opt.Commands)
	}
	facts, _, err := runProbe(ctx, r, opt.Python, program, "FILES = "+files+"\nCOMMANDS = "+commands+"\n", Errand{})
	if err != nil {
		return Facts{}, err
	}
	return *facts, nil
}

// ProbeAnd is Probe with an errand, files not compared. undone is the *ScriptError of an
// errand that ended before its time. Facts that were told are there with an error, too;
// nil are those that were not.
func ProbeAnd(ctx context.Context, r remote.Runner, python string, e Errand) (facts *Facts, undone, err error) {
	request, err := json.Marshal(e.Request)
	if err != nil {
		return nil, nil, err
	}
	return runProbe(ctx, r, python, e.Program, fmt.Sprintf("FILES = False\nCOMMANDS = []\nREQUEST = %s\n", strconv.QuoteToASCII(string(request))), e)
}

func runProbe(ctx context.Context, r remote.Runner, python string, program Program, told string, e Errand) (facts *Facts, undone, err error) {
	mark := newMark()
	got := answer{errand: e}
	err = runMarked(ctx, r, probeCommand(mark, python, program, told), mark, got.take)
	var broken *ScriptError
	switch {
	case errors.As(err, &broken) && got.python != nil:
		undone = broken
	case errors.As(err, &broken) && got.any:
		// Python is there but did not answer: the shell's facts count.
	case err != nil && got.python != nil && e.Each != nil:
		return got.facts(nil), nil, err
	case err != nil:
		return nil, nil, fmt.Errorf("probe: %w", err)
	case !got.any:
		return nil, nil, errors.New("probe: the node gave no answer: is its shell a POSIX shell, and does the setup line leave standard input alone?")
	}
	return got.facts(broken), undone, nil
}

// What reads a RECORD is sent only to where files are looked at.
var (
	probeProgram      = pack(commonSource, UsesSource(), probePython, probeEnd)
	probeFilesProgram = pack(commonSource, recordSource, UsesSource(), probePython, probeEnd)
)

// probeEnd ends Python at once: taking it down in good order takes as long as half of
// a probe.
const probeEnd = "os._exit(status)\n"

// beforeErrand leaves out who uses the environment, and loads what hashes many files
// before RECORD is hashed.
const beforeErrand = "users = dict\nhasher()\n"

// NewErrand makes an errand's program of sources, which find what those of NewProgram do,
// and in found what the probe told.
func NewErrand(sources ...string) Program {
	// An old Python, for which the errand is no Python at all, has ended before it is read.
	before := []string{commonSource, recordSource, beforeErrand, probePython, part, "REQUEST = loads(REQUEST)"}
	return pack(slices.Concat(before, sources, []string{probeEnd})...)
}

// probeCommand is a shell script as an argument and a Python program on
// standard input: neither needs a file on the node.
func probeCommand(mark, python string, program Program, told string) remote.Command {
	source, sizes := program.after(fmt.Sprintf("MARK = %q\nANSWERED = %d\n", mark, answered) + told)
	return remote.Command{
		Argv:  []string{"sh", "-c", probeShell, "sh", mark, cmp.Or(python, "python3"), boot, sizes},
		Stdin: strings.NewReader(source),
	}
}

// pythonFiles is what installed() of common.py takes.
func pythonFiles(of []string) string {
	if len(of) == 0 {
		return "True"
	}
	return pythonList(of)
}

// pythonList is a list of strings in Python.
func pythonList(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.QuoteToASCII(word)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// UsesSource is the Python program that finds the processes which use an
// environment: users(), in two parts, of which it compiles the second if need be.
func UsesSource() string {
	return usesPython + "\nJUDGE = " + strconv.QuoteToASCII(judgePython) + "\n"
}

// take reads one message: an object of Python's, or a word and a text of the shell's.
func (a *answer) take(message json.RawMessage) error {
	a.any = true
	object := bytes.HasPrefix(message, []byte("{"))
	if object && a.python != nil && a.errand.Each != nil {
		return a.errand.Each(message)
	}
	if object {
		var m struct {
			Python *pythonFacts `json:"python"`
		}
		if err := Decode(message, &m); err != nil || m.Python == nil {
			return err
		}
		a.python = m.Python
		if a.errand.Begun != nil {
			a.errand.Begun()
		}
		for _, line := range a.python.SMI {
			a.smi(line)
		}
		return a.bounded()
	}
	key, value, _ := strings.Cut(clean(string(message)), " ")
	value = strings.TrimSpace(value)
	told := a.python != nil && len(a.python.SMI) > 0 // of GPUs, by a Python that ended before its time
	switch key {
	case "smi":
		if !told {
			a.smi(value)
		}
	case "gpu":
		if !told {
			a.gpus = append(a.gpus, GPU{Name: value})
		}
	case "driver":
		a.driver = driverVersion(value)
	case "hung":
		a.hung = true
	case "withheld":
		a.withheld = true
	case "container":
		a.container = value
	case "machine":
		a.machine = value
	case "libc":
		a.libc = strings.TrimPrefix(value, "glibc ")
	case "flags":
		a.flags = value
	case "python":
		a.found = value
	case "end":
	default:
		return fmt.Errorf("the node's answer is not understood: %q", key)
	}
	return a.bounded()
}

// smi takes a line of nvidia-smi.
func (a *answer) smi(line string) {
	if g, driver, ok := parseSMI(line); ok {
		a.gpus, a.driver = append(a.gpus, g), driver
	}
}

func (a *answer) bounded() error {
	if len(a.gpus) > maxGPUs {
		return remote.ErrFlood
	}
	return nil
}

// facts puts together what shell and Python found.
func (a *answer) facts(broken *ScriptError) *Facts {
	var f Facts
	machine, flags, unseen := a.machine, a.flags, 0
	if p := a.python; p != nil {
		f, machine, flags, unseen = p.Facts, p.Machine, p.Flags, p.Unseen
		p.fill(&f)
		f.plainVersions()
	}
	f.CPU = cpuLevel(machine, strings.Fields(flags))
	f.Glibc = cmp.Or(f.Glibc, a.libc)
	f.GPUs, f.GPUsWithheld, f.Driver, f.Container = a.gpus, a.withheld, a.driver, a.container
	f.Missing = slices.Concat(a.missingPython(broken), f.missing())
	if machine == "" || machine == x86 && flags == "" {
		f.Missing = append(f.Missing, "cpu")
	}
	if a.hung {
		f.Missing = append(f.Missing, "compute capability (nvidia-smi does not answer)")
	}
	if unseen > 0 {
		f.Missing = append(f.Missing, fmt.Sprintf("in_use (%d Python processes of other users cannot be looked into)", unseen))
	}
	return &f
}

// missingPython says what is wrong with the node's Python, if anything is.
func (a *answer) missingPython(broken *ScriptError) []string {
	switch {
	case a.python != nil && (a.python.SitePackages == "" || a.python.Dists == nil):
		return []string{fmt.Sprintf("python 3.8 or later (%s is %s)", cmp.Or(a.python.Executable, "it"), a.python.Python)}
	case a.python != nil:
		return nil
	case a.found == "":
		return []string{"python"}
	case broken != nil:
		return []string{fmt.Sprintf("python (%s: %v)", a.found, broken)}
	}
	return []string{fmt.Sprintf("python (%s gave no answer)", a.found)}
}

// missing names what else the probe could not find. What only Python can find
// is not named where Python is missing.
func (f Facts) missing() []string {
	var names []string
	for _, m := range []struct {
		name string
		is   bool
	}{
		{"torch", f.Dists != nil && f.Torch == ""},
		{"pip", f.Dists != nil && f.Pip == ""},
		{"cxx11abi", f.Torch != "" && f.CXX11ABI == nil},
		{"nccl", f.TorchCUDA != "" && f.NCCL == ""},
		{"libstdcxx", f.Dists != nil && f.Libstdcxx == ""},
		{"glibc", f.Glibc == ""},
		{"driver", len(f.GPUs) > 0 && f.Driver == ""},
		{"compute capability", slices.ContainsFunc(f.GPUs, func(g GPU) bool { return g.Arch == "" })},
	} {
		if m.is {
			names = append(names, m.name)
		}
	}
	return names
}

// x86 is the machine whose processors have levels.
const x86 = "x86_64"

// levels are the x86-64 micro-architecture levels with the flags that
// /proc/cpuinfo shows for what each adds (x86-64 psABI, table 3.1).
func levels() []struct{ name, flags string } {
	return []struct{ name, flags string }{
		{"x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"},
		{"x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"},
		{"x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"},
	}
}

// cpuLevel is the highest level whose flags, and those of all below, are there.
func cpuLevel(machine string, flags []string) string {
	if machine != x86 {
		return ""
	}
	level := "x86-64"
	for _, l := range levels() {
		for _, flag := range strings.Fields(l.flags) {
			if !slices.Contains(flags, flag) {
				return level
			}
		}
		level = l.name
	}
	return level
}

// parseSMI reads "name, 8.0, 580.65". The capability stays empty where
// nvidia-smi says "[N/A]"; the name may hold commas.
func parseSMI(line string) (g GPU, driver string, ok bool) {
	cols := strings.Split(line, ",")
	n := len(cols)
	if n < 3 {
		return GPU{}, "", false
	}
	g = GPU{Name: strings.TrimSpace(strings.Join(cols[:n-2], ","))}
	if arch := strings.TrimSpace(cols[n-2]); isVersion(arch) {
		g.Arch = arch
	}
	if driver = strings.TrimSpace(cols[n-1]); !isVersion(driver) {
		driver = ""
	}
	return g, driver, true
}

// driverVersion finds the version in the line with which the kernel's module
// introduces itself: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …".
func driverVersion(line string) string {
	for word := range strings.FieldsSeq(line) {
		if isVersion(word) {
			return word
		}
	}
	return ""
}

// isVersion reports whether s is numbers with dots between them.
func isVersion(s string) bool {
	return strings.Contains(s, ".") && strings.Trim(s, "0123456789.") == ""
}
