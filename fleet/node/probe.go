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

// answered is Python's exit status after it has sent all facts. It is one more if nvidia-smi
// reported nothing, two more if nvidia-smi did not end, three more if a follow-up failed. After any
// other status the shell (probe.sh) reports the facts that it can find.
const answered = 93

// defaultPython is the interpreter if the inventory has none.
const defaultPython = "python3"

// maxGPUs bounds the GPUs that a node may claim.
const maxGPUs = 512

// ProbeOptions select the facts that a probe gathers.
type ProbeOptions struct {
	// Python is the interpreter: absolute or a command name; "python3" if empty.
	Python string
	// Files compares the files of an installed DeepSpeed with RECORD, which takes as long as
	// reading them. Without it Installed.Intact stays false.
	Files bool
	// Of, if not empty, limits the comparison to installations of these wheels by dsbuild, given
	// by their sha256: a DeepSpeed that dsbuild will replace anyhow need not be compared.
	Of []string
	// Undo compares the installed DeepSpeed with dsbuild's last change, for a rollback: Previous.Wrong. It needs Files.
	Undo bool
	// Commands are the names of commands that wheels may put into the environment's folder of
	// commands. With Files, Facts.Taken lists those that exist and are not DeepSpeed's.
	Commands []string
}

// answer collects the messages of the probe.
type answer struct {
	asked string // the interpreter
	any   bool   // at least one message came

	gpus                                                      []GPU
	driver, container, machine, libc, flags, found, link, uid string // found: the interpreter's path; link: where it leads in vain; uid: the account of the login
	hung                                                      bool   // nvidia-smi
	gpusHidden                                                bool   // these commands have no access to the GPUs

	python   *pythonFacts
	followUp FollowUp // takes Python's messages after the facts
}

// pythonFacts holds Python's findings: Facts, and the raw data for other Facts.
type pythonFacts struct {
	Facts
	texts
	Seen    string   `json:"seen"` // seen_by_node of site-packages
	UID     *int     `json:"uid"`  // account of view.py
	SMI     []string `json:"smi"`  // lines of nvidia-smi
	Machine string   `json:"machine"`
	Flags   string   `json:"flags"`
	NotInspected
}

// FollowUp is a program that a probe's Python runs after it has sent the facts: a second Python
// would cost as much as most of the probe. It does not run if Python is missing or too old. With
// a follow-up, the probe does not search for the processes that use the environment: only a command
// that will change the environment needs them.
type FollowUp struct {
	Program Program // made by NewFollowUp
	// Request is an object: the program's REQUEST.
	Request any
	// Started is called when the facts have arrived.
	Started func()
	// Each receives the program's messages, in order. If it fails, the probe fails with its
	// error.
	Each func(json.RawMessage) error
}

// Probe gathers the facts of a node in one command. It changes nothing there. On a node without a
// working Python the shell still reports the facts that it can find, and Missing names the rest.
func Probe(ctx context.Context, r remote.Runner, opt ProbeOptions) (Facts, error) {
	program, request := probeProgram, map[string]any{}
	if opt.Files {
		program, request = probeFilesProgram, map[string]any{"files": true, "undo": opt.Undo, "commands": opt.Commands}
		if len(opt.Of) > 0 {
			request["files"] = opt.Of
		}
	}
	facts, _, err := runProbe(ctx, r, opt.Python, program, FollowUp{Request: request})
	if err != nil {
		return Facts{}, err
	}
	return *facts, nil
}

// ProbeWithFollowUp is Probe with a follow-up, without the comparison of files. undone is the *ScriptError of a
// follow-up that ended early. With an error, facts holds the facts that arrived before it; it is nil if none did.
func ProbeWithFollowUp(
	ctx context.Context, r remote.Runner, python string, f FollowUp,
) (facts *Facts, undone, err error) {
	return runProbe(ctx, r, python, f.Program, f)
}

func runProbe(
	ctx context.Context, r remote.Runner, python string, program Program, f FollowUp,
) (facts *Facts, undone, err error) {
	request, err := MergeFields(f.Request, map[string]any{"answered": answered, "then": program.then})
	if err != nil {
		return nil, nil, err
	}
	mark := newMark()
	got := answer{followUp: f, asked: cmp.Or(python, defaultPython)}
	// Pass a shell script as an argument and a Python program on standard input: neither needs a
	// file on the node.
	source, sizes := program.withInput(mark, quoteJSON(request))
	err = runMarked(ctx, r, remote.Command{
		Argv:  []string{"sh", "-c", probeShell, "sh", mark, got.asked, runBoot, boot, sizes},
		Stdin: strings.NewReader(source),
	}, &messages{mark: []byte(mark), each: got.readMessage})
	var broken *ScriptError
	switch {
	case !got.any && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, nil, blockedError(context.Cause(ctx))
	case errors.As(err, &broken) && strings.Contains(broken.Stderr, incomplete):
		if why := loginFault(ctx, r); why != nil {
			return nil, nil, why
		}
	case errors.As(err, &broken) && got.python != nil:
		undone = broken
	case errors.As(err, &broken) && got.any:
		// Python exists but did not answer: use the shell's facts.
	case err != nil && got.python != nil && f.Each != nil:
		return got.assembleFacts(nil), nil, err
	case err != nil:
		return nil, nil, err
	case !got.any:
		return nil, nil, errors.New(
			"no output from the node: its shell must be POSIX, and setup: must not read standard input")
	}
	facts = got.assembleFacts(broken)
	if p := got.python; p != nil && !SeesFolder(ctx, r, facts.SitePackages, p.Seen) {
		facts.Elsewhere, facts.Writable = true, false
	}
	return facts, undone, nil
}

// lookAt prints the running kernel, and the device and inode of the folder $2, after the mark $1.
const lookAt = `boot=
[ -r /proc/sys/kernel/random/boot_id ] && IFS= read -r boot </proc/sys/kernel/random/boot_id
found=$(stat -L -c %d:%i -- "$2") && printf '\n%s%s %s\n' "$1" "$boot" "$found"`

// SeesFolder reports whether a node itself has at a path the folder that a program on it sees there. seen is the
// program's answer (seen_by_node in view.py); only if it is not known there, this asks the node's shell.
func SeesFolder(ctx context.Context, r remote.Runner, folder, seen string) bool {
	if seen == "" || seen == "other" {
		return seen == ""
	}
	mark, found := newMark(), ""
	err := runMarked(ctx, r, remote.Command{Argv: []string{"sh", "-c", lookAt, "sh", mark, folder}},
		&messages{mark: []byte(mark), each: func(m json.RawMessage) error { found = string(m); return nil }})
	// A container may have no /proc: then its program does not know the kernel.
	return err == nil && (found == seen || strings.HasPrefix(seen, " ") && strings.HasSuffix(found, seen))
}

// Only a probe that compares files sends the code that reads a RECORD.
var (
	probeProgram      = NewProgram("probe")
	probeFilesProgram = NewProgram("probe_files")
)

// readMessage reads one message: an object from Python, or a word and a text from the shell.
func (a *answer) readMessage(message json.RawMessage) error {
	a.any = true
	object := bytes.HasPrefix(message, []byte("{"))
	if object && a.python != nil && a.followUp.Each != nil {
		return a.followUp.Each(message)
	}
	if object {
		return a.readPython(message)
	}
	key, value, _ := strings.Cut(cleanText(string(message)), " ")
	value = strings.TrimSpace(value)
	told := a.python != nil && len(a.python.SMI) > 0 // a Python that ended early has reported the GPUs
	switch key {
	case "smi":
		if !told {
			a.readSMILine(value)
		}
	case "gpu":
		if !told {
			a.gpus = append(a.gpus, GPU{Name: value})
		}
	case "driver":
		// The line names the kernel module: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …".
		words := strings.Fields(value)
		if i := slices.IndexFunc(words, isVersion); i >= 0 {
			a.driver = words[i]
		}
	case "hung":
		a.hung = true
	case "hidden":
		a.gpusHidden = true
	case "container":
		a.container = value
	case "machine":
		a.machine = value
	case "libc":
		a.libc = strings.TrimPrefix(value, "glibc ")
	case "link":
		a.link = value
	case "uid":
		a.uid = value
	case "flags":
		a.flags = value
	case "python":
		a.found = value
	case "failed":
		return NewNodeError(value)
	case "end":
	default:
		return fmt.Errorf("unexpected reply from the node: %q", key)
	}
	return a.checkBounds()
}

// readPython reads the facts that Python reports.
func (a *answer) readPython(message json.RawMessage) error {
	var m struct {
		Python *pythonFacts `json:"python"`
	}
	if err := Decode(message, &m); err != nil || m.Python == nil {
		return err
	}
	a.python = m.Python
	if a.followUp.Started != nil {
		a.followUp.Started()
	}
	for _, line := range a.python.SMI {
		a.readSMILine(line)
	}
	return a.checkBounds()
}

// readSMILine parses a line of nvidia-smi: "name, 8.0, 580.65". The capability is empty if it prints "[N/A]"; the
// name may hold commas.
func (a *answer) readSMILine(line string) {
	cols := strings.Split(line, ",")
	n := len(cols)
	if n < 3 {
		return
	}
	g := GPU{Name: strings.TrimSpace(strings.Join(cols[:n-2], ","))}
	if arch := strings.TrimSpace(cols[n-2]); isVersion(arch) {
		g.Arch = arch
	}
	a.gpus, a.driver = append(a.gpus, g), ""
	if driver := strings.TrimSpace(cols[n-1]); isVersion(driver) {
		a.driver = driver
	}
}

func (a *answer) checkBounds() error {
	if len(a.gpus) > maxGPUs {
		return remote.ErrFlood
	}
	return nil
}

// assembleFacts combines the findings of the shell and of Python.
func (a *answer) assembleFacts(broken *ScriptError) *Facts {
	var f Facts
	machine, flags := a.machine, a.flags
	if p := a.python; p != nil {
		f, machine, flags = p.Facts, p.Machine, p.Flags
		if f.RunsAs = ""; p.UID != nil && a.uid != "" && strconv.Itoa(*p.UID) != a.uid {
			f.RunsAs = strconv.Itoa(*p.UID)
		}
		p.fillFacts(&f)
		if f.DeepSpeed != nil {
			f.DeepSpeed.Version = PlainVersion(f.DeepSpeed.Version)
		}
		if f.Previous != nil {
			f.Previous.Version, f.Previous.Advice = PlainVersion(f.Previous.Version), PlainVersion(f.Previous.Advice)
		}
	}
	f.CPU = cpuLevel(machine, strings.Fields(flags))
	f.Glibc = cmp.Or(f.Glibc, a.libc)
	if f.Platform == "" && machine != "" {
		f.Platform = "linux_" + machine // as Python would call it
	}
	f.GPUs, f.GPUsHidden = append([]GPU{}, a.gpus...), a.gpusHidden // GPUs is not null in JSON
	f.Asked = a.asked
	f.Driver, f.Container = a.driver, a.container
	// Leave nothing but versions and names in those of the facts that messages repeat.
	for _, version := range []*string{
		&f.Python, &f.Tag, &f.Platform, &f.Glibc, &f.Pip, &f.Torch, &f.TorchCUDA,
		&f.Libstdcxx, &f.NCCL, &f.Transformers, &f.Driver, &f.Container,
	} {
		*version = PlainVersion(*version)
	}
	f.Missing = slices.Concat(a.missingPython(broken), f.missingFacts())
	if machine == "" || machine == x86 && flags == "" {
		f.Missing = append(f.Missing, "cpu")
	}
	if a.hung {
		f.Missing = append(f.Missing, "compute capability (nvidia-smi does not respond)")
	}
	if a.python != nil && a.python.Why() != "" {
		f.Missing = append(f.Missing, missingInUse+a.python.Why()+")")
	}
	return &f
}

// missingPython describes the faults of the node's Python.
func (a *answer) missingPython(broken *ScriptError) []string {
	switch {
	case a.python != nil && (a.python.SitePackages == "" || a.python.Dists == nil):
		return []string{fmt.Sprintf("python 3.8 or later (%s is %s)",
			QuotePath(cmp.Or(a.python.Executable, "it")), PlainVersion(a.python.Python))}
	case a.python != nil:
		return nil
	case a.link != "":
		return []string{fmt.Sprintf("python (%s%s%s, which cannot be run)", QuotePath(a.asked), linkTo, QuotePath(a.link))}
	case a.found == "":
		return []string{"python"}
	case broken != nil:
		return []string{fmt.Sprintf("python (%s: %v)", QuotePath(a.found), broken)}
	}
	return []string{fmt.Sprintf("python (%s: no output)", QuotePath(a.found))}
}

// missingFacts lists the other facts that the probe could not find. If Python is missing, it
// omits the facts that only Python can find.
func (f Facts) missingFacts() []string {
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

// x86 is the machine type whose processors have several levels.
const x86 = "x86_64"

// cpuLevel returns the highest level for which the flags of that level and of all levels below
// are present.
func cpuLevel(machine string, flags []string) string {
	switch machine {
	case "aarch64":
		return "armv8-a" // all have that
	case x86:
	default:
		return ""
	}
	level := "x86-64"
	// The x86-64 micro-architecture levels, each with the flags in /proc/cpuinfo for the features
	// that it adds (x86-64 psABI, table 3.1).
	for _, l := range []struct{ name, flags string }{
		{"x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"},
		{"x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"},
		{"x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"},
	} {
		for _, flag := range strings.Fields(l.flags) {
			if !slices.Contains(flags, flag) {
				return level
			}
		}
		level = l.name
	}
	return level
}

// isVersion reports whether s is numbers with dots between them.
func isVersion(s string) bool {
	return strings.Contains(s, ".") && strings.Trim(s, "0123456789.") == ""
}
