// Package node gathers the facts about a node with one probe, and compares the facts of
// a fleet.
package node

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Facts are the result of a probe. Missing parts are zero values and named in Missing.
type Facts struct {
	Python            string `json:"python"`              // X.Y.Z of the interpreter
	Executable        string `json:"executable"`          // sys.executable
	Prefix            string `json:"prefix"`              // sys.prefix: the environment's directory
	Tag               string `json:"tag"`                 // e.g. cp311
	Platform          string `json:"platform"`            // e.g. linux_x86_64
	Glibc             string `json:"glibc"`               // X.Y
	CPU               string `json:"cpu"`                 // highest level: x86-64-v3, armv8-a
	SitePackages      string `json:"site_packages"`       // purelib of the interpreter
	FileSystem        string `json:"file_system"`         // type of that directory's file system: ext4, nfs4; "ext4, exported" on a server
	ExternallyManaged bool   `json:"externally_managed"`  // PEP 668
	Elsewhere         bool   `json:"elsewhere,omitempty"` // at that path the node itself has another directory, or none
	RunsAs            string `json:"runs_as,omitempty"`   // number of the account as which python: runs, if it is not the login's
	Writable          bool   `json:"writable"`            // the user may write into the environment
	Pip               string `json:"pip"`                 // version, or ""
	PipWheel          string `json:"pip_wheel"`           // without Pip, a wheel on the node to run pip from, or ""

	Torch        string `json:"torch"`                 // e.g. 2.15.0
	TorchBuild   string `json:"torch_build,omitempty"` // its local version: cu132, cpu, rocm6.4
	TorchCUDA    string `json:"torch_cuda"`            // e.g. 13.2, or "" for a CPU build
	Libstdcxx    string `json:"libstdcxx"`             // newest GLIBCXX of the libstdc++ that the loader finds: 3.4.30
	CXX11ABI     *bool  `json:"cxx11abi"`              // of torch, or nil if unknown
	NCCL         string `json:"nccl"`                  // version that torch uses: X.Y.Z
	Transformers string `json:"transformers"`          // version, or ""
	Container    string `json:"container"`             // the commands run in it: docker, podman, apptainer …, or ""
	Environment  string `json:"environment"`           // venv, conda or system

	InUse      []Process `json:"in_use,omitempty"`      // processes that run from this environment, the first of them
	InUseMore  int       `json:"in_use_more,omitempty"` // how many more there are
	GPUs       []GPU     `json:"gpus"`
	GPUsHidden bool      `json:"gpus_hidden,omitempty"` // they are there; a job that asked for none may not use them
	Driver     string    `json:"driver"`

	DeepSpeed  *Installed `json:"deepspeed"`            // nil: none
	Previous   *Previous  `json:"previous"`             // the version that a rollback restores, if any
	Unfinished bool       `json:"unfinished"`           // a change of the environment was cut off and waits for repair
	HomeOwner  string     `json:"home_owner,omitempty"` // owner of Home, if it is not writable
	Locked     string     `json:"locked,omitempty"`     // the first path of the environment that this user cannot read and change
	LockedBy   string     `json:"locked_by,omitempty"`  // its owner, if not this user
	Unreadable bool       `json:"unreadable,omitempty"` // it cannot even be read
	// ForeignOwner is another account that owns a directory on the environment's path. It is set only if dsbuild is root.
	ForeignOwner string `json:"foreign_owner,omitempty"`
	ReadOnly     bool   `json:"read_only"` // site-packages is on a file system mounted read-only
	// CondaRecord is the file in conda-meta by which conda keeps DeepSpeed, if any.
	CondaRecord string `json:"conda_record,omitempty"`
	// NoRecord lists forms of DeepSpeed's installation that list no files: eggs, links to a checkout, a dist-info
	// without RECORD.
	NoRecord  []string          `json:"no_record,omitempty"`
	Leftovers bool              `json:"leftovers"`       // Home has files of an interrupted run
	Dists     map[string]string `json:"dists,omitempty"` // distributions by normalised name
	// Taken maps each command of the wheels that exists and is not DeepSpeed's to the distribution that owns it, to the
	// site-packages of another Python that does, or to "".
	Taken map[string]string `json:"taken,omitempty"`
	// ExtraWheels has the sha256 of the wheels that dsbuild installed with DeepSpeed, by normalised name.
	ExtraWheels  map[string]string `json:"extra_wheels,omitempty"`
	FreeBytes    int64             `json:"free_bytes"`     // file system of site-packages
	FreeTmpBytes int64             `json:"free_tmp_bytes"` // where dsbuild keeps temporary files: Home
	Missing      []string          `json:"missing,omitempty"`

	Asked string `json:"-"` // the interpreter that was asked for
}

// GPU is one device as nvidia-smi names it.
type GPU struct {
	Name string `json:"name"`
	Arch string `json:"arch"` // compute capability X.Y
}

// Process is one that runs from the environment.
type Process struct {
	PID     int    `json:"pid"`
	User    string `json:"user"`
	Command string `json:"command"` // its program and script, without further words: those may hold secrets
	Job     string `json:"job"`     // the scheduler's job, such as "Slurm job 4711", or ""
}

// Run is a run of dsbuild that changed an environment.
type Run struct {
	ID string `json:"run"`
	At string `json:"at"` // RFC 3339, by the control node's clock; see Now
	By string `json:"by"` // user@host
}

// Now returns the time in RFC 3339, in UTC and with milliseconds: as text, too, a later run is after an earlier one of the same second.
func Now() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// maxName is how much of a user's name a message shows.
const maxName = 80

// UnmarshalJSON removes from a node's text what no run, time or user name has.
func (r *Run) UnmarshalJSON(text []byte) error {
	type raw Run
	if err := json.Unmarshal(text, (*raw)(r)); err != nil {
		return err
	}
	r.ID, r.By = PlainVersion(r.ID), ui.Shorten(ui.OneLine(r.By), maxName)
	if _, err := time.Parse(time.RFC3339, r.At); err != nil {
		r.At = ""
	}
	return nil
}

// String describes the run for a message.
func (r Run) String() string {
	at := r.At
	if at == "" {
		return r.ID // named by the user, and known to no node
	}
	if t, err := time.Parse(time.RFC3339, at); err == nil {
		at = t.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return fmt.Sprintf("%s (%s, %s)", r.ID, at, r.By)
}

// LastChange is dsbuild's last change of an environment, or of which environment is current: what a rollback undoes.
type LastChange struct {
	// Runs are the runs that made what a rollback replaces, the last one last: usually one, more if it was installed
	// again. It is empty if dsbuild's notes cannot be used.
	Runs        []Run `json:"runs"`
	Interrupted bool  `json:"interrupted"` // the change was cut off: the next run undoes or completes it
	// Undone is set if the change was rolled back already: it is the only run, and nothing is kept.
	Undone bool   `json:"undone"`
	Wrong  string `json:"wrong,omitempty"`  // why it cannot be rolled back, in the node's words: see ProbeOptions.Undo
	Advice string `json:"advice,omitempty"` // the code of a hint for Wrong
}

// Last returns the run that made the change; its ID is empty if dsbuild's notes cannot be used.
func (c LastChange) Last() Run {
	if len(c.Runs) == 0 {
		return Run{}
	}
	return c.Runs[len(c.Runs)-1]
}

// Has reports whether c lists a run.
func (c LastChange) Has(r Run) bool {
	return slices.ContainsFunc(c.Runs, func(o Run) bool { return o.ID == r.ID })
}

// Previous is dsbuild's last change of an environment, and the DeepSpeed that a rollback of it restores.
type Previous struct {
	Version string `json:"version"` // "": no DeepSpeed at all
	SHA256  string `json:"sha256"`
	LastChange
	// Foreign is the directory in which the next deploy keeps files that dsbuild did not install, if any.
	Foreign string `json:"foreign,omitempty"`
}

// Installed is the DeepSpeed found in an environment.
type Installed struct {
	Version string   `json:"version"`
	SHA256  string   `json:"sha256"` // of its wheel, by dsbuild's record; may be ""
	Ops     []string `json:"ops"`
	Path    string   `json:"path"`   // of the package
	Record  string   `json:"record"` // sha256 of its RECORD, or ""
	Intact  bool     `json:"intact"` // came from dsbuild, and every file is as it was installed
	// Altered has the first files that differ from RECORD, code that RECORD does not list, byte code that does not
	// belong to its module.
	Altered []string `json:"altered,omitempty"`
	Build   *Build   `json:"build"` // DeepSpeed's own build record, if any
	// Stable is set for a wheel over torch's stable ABI, by its build record, and Variants has its variants with device code.
	Stable   bool            `json:"-"`
	Variants []wheel.Variant `json:"-"`
}

// Manifest returns what the build record says of the wheel, for a node whose torch has this CUDA.
func (i *Installed) Manifest(cuda string) wheel.Manifest {
	m := wheel.Manifest{CUDA: cuda, Ops: i.Ops}
	if i.Stable {
		m.TorchABI, m.Variants = &wheel.TorchABI{Stable: true}, i.Variants
	}
	return m
}

// ID distinguishes installations. Without DeepSpeed it is empty.
func (i *Installed) ID() string {
	if i == nil {
		return ""
	}
	return i.Version + " " + i.Record
}

// Build holds the targets in DeepSpeed's build record (git_version_info_installed.py).
type Build struct {
	Torch       string `json:"torch"`       // X.Y
	CUDA        string `json:"cuda"`        // X.Y, or ""
	NCCL        string `json:"nccl"`        // X.Y
	Accelerator string `json:"accelerator"` // cuda, cpu …
}

// Home returns dsbuild's own directory for the environment: the notes belong to one site-packages, because several
// Pythons may have one prefix.
func (f Facts) Home() string { return path.Join(f.SitePackages, ".dsbuild") }

// CondaNote warns of CondaRecord.
func (f Facts) CondaNote() string {
	return fmt.Sprintf("conda keeps its own record of DeepSpeed (%s): conda remove and conda update would delete files "+
		"that dsbuild installs", QuotePath(path.Join("conda-meta", path.Base(f.CondaRecord))))
}

// CanBeShared reports whether several machines may have mounted one file system of this type. All types count that are
// not known to be local; of those, a server exports some.
func CanBeShared(fileSystem string) bool {
	return !slices.Contains([]string{
		"", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "nilfs2", "reiserfs", "vfat", "exfat",
		"ntfs3", "fuseblk", "tmpfs", "ramfs", "rootfs", "overlay", "fuse.fuse-overlayfs", "aufs", "squashfs", "erofs", "iso9660",
	}, fileSystem)
}

// MissingPython returns the part of Python that a node lacks, or "".
func (f Facts) MissingPython() string {
	for _, m := range f.Missing {
		if strings.HasPrefix(m, "python") {
			return m
		}
	}
	return ""
}

// Silent reports whether the Python exists but did not answer. Then its DeepSpeed is unknown.
func (f Facts) Silent() bool { return strings.HasPrefix(f.MissingPython(), "python ") }

// NoPython is the message for MissingPython: "no usable Python 3.8 or later (/usr/bin/python3 is 3.6.8)".
func (f Facts) NoPython() string {
	missing := strings.TrimPrefix(f.MissingPython(), "python")
	if missing == "" && f.Asked != "" {
		missing = ": " + QuotePath(f.Asked) + " not found"
	}
	return "no usable Python" + missing
}

// silentPython matches MissingPython of a Python that ended before dsbuild's program, without a word.
var silentPython = regexp.MustCompile(`: (no output|exit status \d+)\)$|init_import_site`)

// pythonVariable matches the name of a variable in what a Python that cannot start says.
var pythonVariable = regexp.MustCompile(`\bPYTHON[A-Z]+\b`)

// PythonHint is the hint for MissingPython: a variable that keeps Python from starting, a file that ends it, a link
// to nothing, a limit, or else otherwise.
func (f Facts) PythonHint(otherwise string) string {
	if silentPython.MatchString(f.MissingPython()) {
		return "look for a .pth file or a sitecustomize.py in its site-packages that exits: " +
			"-S skips them, so on the node this Python prints 1 only with it: -S -c 'print(1)'"
	}
	_, fatal, _ := strings.Cut(f.MissingPython(), "Fatal Python error: ")
	if name := pythonVariable.FindString(fatal); name != "" {
		return "unset " + name +
			" on the node (.bashrc, or setup: and env: in the inventory): it prevents Python from starting"
	}
	switch {
	case strings.Contains(f.MissingPython(), linkTo):
		return "install that Python on the node again, or recreate the environment; else " + otherwise
	case strings.Contains(f.MissingPython(), "MemoryError"):
		return HintFor("process-limit", f.Asked, f)
	}
	return otherwise
}

// linkTo is between the name of a Python and the program that it leads to.
const linkTo = " is a link to "

// Unusable returns why dsbuild cannot use the node's Python, and a hint. It returns "" if it can.
func (f Facts) Unusable() (why nodeerr.Message, hint string) {
	switch {
	case f.MissingPython() != "":
		return nodeerr.Message{Text: f.NoPython(), Common: f.NoPython()},
			f.PythonHint(fault.Set("python", "the absolute path of the environment's interpreter").String())
	case f.ExternallyManaged:
		return nodeerr.Messagef("externally managed Python (PEP 668) must not be changed: %s", nodeerr.Own(QuotePath(f.Executable))),
			fault.Set("python", "the interpreter of an environment").String() + "; python3 -m venv or uv venv creates one"
	}
	return nodeerr.Message{}, ""
}

// TorchVersion returns torch's whole version: 2.15.0+cu132.
func (f Facts) TorchVersion() string {
	if f.TorchBuild == "" {
		return f.Torch
	}
	return f.Torch + "+" + f.TorchBuild
}

// NoTorch returns the message and the hint for an environment without torch. It returns "" if it has torch.
func (f Facts) NoTorch() (why nodeerr.Message, hint string) {
	if f.Torch != "" {
		return nodeerr.Message{}, ""
	}
	return nodeerr.Messagef("no torch in the environment of %s", nodeerr.Own(QuotePath(f.Executable))),
		fault.Set("python", "the interpreter of an environment with torch").String() +
			"; or install torch there, with the tool that created the environment"
}
