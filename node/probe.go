package node

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
)

//go:embed probe.sh
var probeShell string

//go:embed probe.py
var probePython string

// heredocEnd closes the Python part inside the shell part.
const heredocEnd = "DSBUILD_END_OF_PYTHON"

// ProbeOptions say what to look at on a node.
type ProbeOptions struct {
	// Python is the interpreter: absolute or a command name; "python3" if empty.
	Python string
}

// shellFacts is what the shell part finds.
type shellFacts struct {
	Machine string `json:"machine"`
	Libc    string `json:"libc"`
	Flags   string `json:"flags"`
	GPUs    string `json:"gpus"`
	Python  string `json:"python"`
	End     string `json:"end"`
}

// answer is one message of the probe.
type answer struct {
	Shell  *shellFacts `json:"shell"`
	Python *Facts      `json:"python"`
}

// Probe gathers the facts of a node in one command. It changes nothing there.
// A node without Python, or with a broken one, still answers what its shell can
// find, with Missing naming the rest.
func Probe(ctx context.Context, r remote.Runner, opt ProbeOptions) (Facts, error) {
	mark := newMark()
	var got answer
	cmd := remote.Command{
		Argv:  []string{"sh", "-s"},
		Stdin: strings.NewReader(probeScript(mark, cmp.Or(opt.Python, "python3"))),
	}
	err := runMarked(ctx, r, cmd, mark, func(m json.RawMessage) error { return Decode(m, &got) })
	var broken *ScriptError
	switch {
	case errors.As(err, &broken) && got.Shell != nil:
		// Python is there but did not answer: the shell's facts count.
	case err != nil:
		return Facts{}, fmt.Errorf("probe: %w", err)
	case got.Shell == nil:
		return Facts{}, errors.New("probe: the node gave no answer: is its shell a POSIX shell, and does the setup line leave standard input alone?")
	}
	return facts(got, broken), nil
}

func probeScript(mark, python string) string {
	return "mark=" + remote.Quote(mark) + "\npy=" + remote.Quote(python) + "\n" + probeShell +
		"\"$py\" - <<'" + heredocEnd + "'\n" +
		fmt.Sprintf("MARK = %q\nREQUEST = {}\n", mark) + commonSource + probePython + heredocEnd + "\n"
}

// facts puts together what shell and Python found.
func facts(got answer, broken *ScriptError) Facts {
	var f Facts
	if got.Python != nil {
		f = *got.Python
	}
	sh := got.Shell
	f.Missing = nil
	f.CPU = cpuLevel(sh.Machine, strings.Fields(sh.Flags))
	f.Glibc = cmp.Or(f.Glibc, strings.TrimPrefix(sh.Libc, "glibc "))
	f.GPUs, f.Driver = parseSMI(sh.GPUs)
	missing := func(what string, is bool) {
		if is {
			f.Missing = append(f.Missing, what)
		}
	}
	switch {
	case sh.Python == "":
		f.Missing = append(f.Missing, "python")
	case got.Python == nil && broken != nil:
		f.Missing = append(f.Missing, fmt.Sprintf("python (%s: %v)", sh.Python, broken))
	case got.Python == nil:
		f.Missing = append(f.Missing, fmt.Sprintf("python (%s gave no answer)", sh.Python))
	case f.SitePackages == "" || f.Dists == nil:
		f.Missing = append(f.Missing, fmt.Sprintf("python 3.8 or later (%s is %s)", sh.Python, f.Python))
	default:
		missing("torch", f.Torch == "")
		missing("pip", f.Pip == "")
	}
	missing("glibc", f.Glibc == "")
	return f
}

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
	if machine != "x86_64" {
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

// parseSMI reads "name, 8.0, 580.65" lines joined by ";".
func parseSMI(out string) ([]GPU, string) {
	var gpus []GPU
	driver := ""
	for line := range strings.SplitSeq(out, ";") {
		cols := strings.Split(line, ",")
		if len(cols) < 3 {
			continue
		}
		n := len(cols)
		arch := strings.TrimSpace(cols[n-2])
		if arch == "" || strings.Trim(arch, "0123456789.") != "" {
			continue // "[N/A]", or a driver too old to know compute_cap
		}
		gpus = append(gpus, GPU{Name: strings.TrimSpace(strings.Join(cols[:n-2], ",")), Arch: arch})
		driver = strings.TrimSpace(cols[n-1])
	}
	return gpus, driver
}
