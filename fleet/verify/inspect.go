package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// nodeState is one node and the findings about it.
type nodeState struct {
	*fleet.Node
	run *run

	wheel     *wheel.Loaded // the wheel that it should run; by default the same as most nodes
	unfit     []string      // why that wheel does not fit it
	installed *installation // nil: the node has no DeepSpeed, or no usable Python
	runs      *report.Wheel // the wheel that it runs, or should run, if any
	runsOther bool          // it does not run the expected wheel
	proven    bool          // its files are the expected wheel's, even if another tool installed them

	findings
	taken   map[string]string // see Facts
	program programState
}

// findings are the faults of a node, and the notes about it.
type findings struct {
	differs []nodeFinding // differences from the expected state
	broken  []nodeFinding // things that do not work on it
	notes   []string      // notes for the user

	compared []report.Comparison // of LevelCompute
}

// programState is how far the program on the node has come.
type programState struct {
	op    string // the op that it is at
	doing string // "loading" or "computing"
	done  bool   // the program has sent its last message
	err   error  // why it ended early
}

// nodeFinding is a fault of a node, with a hint, or the code of one.
type nodeFinding struct{ what, hint, advice string }

func (n *nodeState) differ(hint, format string, args ...any) {
	n.differs = append(n.differs, nodeFinding{what: ui.OneLine(fmt.Sprintf(format, args...)), hint: hint})
}

func (n *nodeState) note(format string, args ...any) {
	n.notes = append(n.notes, ui.OneLine(fmt.Sprintf(format, args...)))
}

// installation is inspect_files.py's answer about the registered DeepSpeed.
type installation struct {
	Version string   `json:"version"`
	Noted   *noted   `json:"noted"`  // nil before the first installation by dsbuild
	Digest  string   `json:"digest"` // of Files
	Files   fileList `json:"files"`  // in DeepSpeed's folder; omitted if the controller knows Digest
	Others  fileList `json:"others"` // outside that folder: commands, metadata
	Bare    bool     `json:"bare"`   // it has no RECORD
	Conda   bool     `json:"conda"`  // a conda environment: conda writes the prefix into commands
	Litter  paths    `json:"litter"` // files in its folder that are neither in RECORD nor code
	Links   paths    `json:"links"`  // links to folders in its folder: Python imports through them
	Code    paths    `json:"code"`   // byte code that is neither the wheel's nor compiled from its module

	Manifest json.RawMessage `json:"manifest"` // parts of the wheel's manifest, or null if dsbuild did not build the wheel

	// Set by readLists, from Files and Others.
	contents                      *contents // of DeepSpeed's folder
	mismatched, missing, unlisted paths     // not as in RECORD; not there; code that is not in RECORD
	unreadable                    paths     // for this user
}

// manifest returns the manifest inside the installed wheel, or an empty one.
func (i *installation) manifest() wheel.Manifest {
	var m wheel.Manifest
	// A node may lie, or another dsbuild may have written the manifest: one that cannot be
	// decoded counts as empty.
	if err := json.Unmarshal(i.Manifest, &m); err != nil {
		return wheel.Manifest{}
	}
	return m
}

// build returns the file name of the installed wheel, by its manifest. It returns "" if dsbuild did not build it.
func (i *installation) build() string {
	if i == nil {
		return ""
	}
	name := i.manifest().Name
	if _, err := wheel.ParseFileName(name); err != nil {
		return ""
	}
	return name
}

// unfit returns the reasons why the installed DeepSpeed does not fit the node, by its manifest.
func (i *installation) unfit(tables *compat.Tables, f node.Facts) []string {
	if m := i.manifest(); m.Version != "" {
		return tables.Fit(m, f).Reasons
	}
	return nil
}

// noted is dsbuild's note on the node about its installation.
type noted struct {
	Wheel   string `json:"wheel"`
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
	Same    bool   `json:"same"` // RECORD is still the one in the note
}

// paths is a count of files, with the names of the first ones.
type paths struct {
	Count int      `json:"count"`
	First []string `json:"first"`
}

// message is one message from inspect_files.py, load_ops.py or compute_ops.py.
type message struct {
	Taken  map[string]string `json:"taken"` // see Facts
	Looked *installation     `json:"looked"`
	Wrong  string            `json:"wrong"`  // a difference from the expected state
	Broken string            `json:"broken"` // something that does not work
	Advice string            `json:"advice"` // the code of a hint
	Note   string            `json:"note"`
	Op     string            `json:"op"` // the op that is next
	Doing  string            `json:"doing"`
	Done   bool              `json:"done"`

	Compared *report.Comparison `json:"compared"`
}

// inspectFiles gathers a node's facts and inspects the files of its DeepSpeed, in one command.
func (n *nodeState) inspectFiles(ctx context.Context) error {
	limit := n.run.fleet.Limit(probeLimit)
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	commands := commandsOf(nil)
	for i := range n.run.opt.Wheels {
		commands = append(commands, n.run.opt.Wheels[i].Commands...)
	}
	slow := time.AfterFunc(limit, func() { giveUp(n.run.fleet.TimeoutError(limit)) })
	defer slow.Stop()
	facts, ended, err := node.ProbeWithFollowUp(ctx, n.Runner, n.Host.Python, node.FollowUp{
		Program: inspectProgram,
		Request: map[string]any{"known": n.run.files.digests(), "commands": commands},
		Started: func() { slow.Stop() },
		Each:    n.handleMessage,
	})
	n.Facts = facts
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	n.program.err = ended
	n.wheel, n.unfit = n.chooseWheel()
	return nil
}

// loadOps returns the error of the program that inspected the files, if it failed. If the level is
// LevelLoad, it loads every op; if it is LevelCompute, it also compares what they compute.
func (n *nodeState) loadOps(ctx context.Context) error {
	switch {
	case n.Facts.MissingPython() != "":
		return nil
	case n.program.err != nil:
		return n.program.err
	case !n.program.done:
		return noAnswer()
	case n.run.opt.Level == LevelFiles || n.installed == nil:
		return nil
	}
	m := n.installed.manifest() // empty if dsbuild did not build the wheel
	if n.wheel != nil && n.runsWheel(n.wheel) {
		m = n.wheel.Manifest
	} else if n.Facts.DeepSpeed != nil {
		m.Ops = n.Facts.DeepSpeed.Ops
		m.CUDA = cmp.Or(m.CUDA, n.Facts.TorchCUDA)
		if b := n.Facts.DeepSpeed.Build; b != nil && b.Accelerator != "" && b.Accelerator != "cuda" {
			m.CUDA = ""
		}
	}
	ops := append([]string{}, m.OpsFor(n.Facts.TorchCUDA)...)
	n.program.op, n.program.done = "", false
	request := map[string]any{"ops": ops, "version": n.installed.Version}
	script := node.Script{Python: n.Host.Python, Program: loadProgram, Request: request}
	if n.run.opt.Level == LevelCompute {
		script.Program = computeProgram
		request["gpu"] = len(n.Facts.GPUs) > 0 && !n.Facts.GPUsHidden
	}
	// A Python writes byte code next to the modules when it starts and imports, which would
	// change the node. The probe's Python does not.
	env := map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}
	maps.Copy(env, acceleratorEnv(forCUDA(m), *n.Facts))
	err := script.Run(ctx, connect.WithEnv(n.Runner, env), n.handleMessage)
	var ended *remote.ExitError
	switch {
	case errors.As(err, &ended) && n.program.op != "":
		// The earlier findings still count.
		crash := loadError(err, n.program.doing, n.program.op, n.installed.manifest().CPU, n.Facts.CPU)
		n.broken = append(n.broken, nodeFinding{what: crash.Error(), hint: fault.Hint(crash)})
	case errors.Is(err, context.DeadlineExceeded) && n.program.op != "":
		return fmt.Errorf("%s op %s: %w", n.program.doing, node.QuotePath(n.program.op), context.Cause(ctx))
	case err != nil:
		return err
	case !n.program.done:
		return noAnswer()
	}
	return nil
}

// handleMessage handles one message. Nodes with the same files share one list.
func (n *nodeState) handleMessage(text json.RawMessage) error {
	var m message
	if err := node.Decode(text, &m); err != nil {
		return err
	}
	n.program.op, n.program.done = m.Op, n.program.done || m.Done
	n.program.doing = "loading"
	if m.Doing == "computing" {
		n.program.doing = m.Doing
	}
	switch {
	case m.Looked != nil:
		n.installed = m.Looked
		n.installed.readLists(&n.run.files)
	case m.Taken != nil:
		n.taken = m.Taken
	case m.Wrong != "":
		n.differs = append(n.differs, nodeFinding{what: ui.OneLine(node.NewNodeError(m.Wrong).Error()), advice: m.Advice})
	case m.Broken != "":
		n.broken = append(n.broken, nodeFinding{what: node.NewNodeError(m.Broken).Error(), advice: m.Advice})
	case m.Compared != nil:
		n.compared = append(n.compared, *m.Compared)
	case m.Note != "":
		n.note("%v", node.NewNodeError(m.Note))
	}
	return nil
}

// hintFor returns the hint for a code that the node sent.
func (n *nodeState) hintFor(code string) string {
	return node.HintFor(code, n.Host.Python, *n.Facts)
}

// readLists turns the file lists from the node into contents and into files that do not match RECORD, are
// missing, or are not listed.
func (i *installation) readLists(lists *fileLists) {
	i.contents = lists.intern(i.Digest, i.Files)
	others := i.Others.compare()
	if i.Conda {
		inPrefix := func(name string) bool { return strings.HasPrefix(name, "../") }
		others.mismatched = slices.DeleteFunc(others.mismatched, inPrefix)
	}
	i.mismatched = newPaths(slices.Concat(i.contents.mismatched, others.mismatched))
	i.missing = newPaths(slices.Concat(i.contents.missing, others.missing))
	i.unreadable = newPaths(slices.Concat(i.contents.unreadable, others.unreadable))
	if !i.Bare {
		i.unlisted = newPaths(slices.Concat(i.contents.unlisted, others.unlisted))
	}
	i.Files, i.Others = nil, nil
}

// runsWheel reports whether dsbuild installed this very wheel and nothing replaced it.
func (n *nodeState) runsWheel(w *wheel.Loaded) bool {
	return n.Facts.DeepSpeed != nil && n.Facts.DeepSpeed.SHA256 == w.Manifest.SHA256
}

// chooseWheel returns the wheel that a node should run. Of several wheels that fit it, this is the one
// that dsbuild installed there, else the installed build, else the only wheel with the installed version, else the wheel
// that a deploy would choose. reasons say why no wheel fits, or why the only one does not.
func (n *nodeState) chooseWheel() (w *wheel.Loaded, reasons []string) {
	offered, tables := n.run.opt.Wheels, n.run.tables
	switch len(offered) {
	case 0:
		return nil, nil
	case 1:
		return &offered[0], tables.Fit(offered[0].Manifest, *n.Facts).Reasons
	}
	version := ""
	if n.Facts.DeepSpeed != nil {
		version = n.Facts.DeepSpeed.Version
	}
	var build *wheel.Loaded
	var same []*wheel.Loaded
	for i := range offered {
		o := &offered[i]
		if !tables.Fit(o.Manifest, *n.Facts).OK() {
			continue
		}
		if n.runsWheel(o) {
			return o, nil
		}
		if o.Manifest.Name == n.installed.build() {
			build = o
		}
		if o.Version == version {
			same = append(same, o)
		}
	}
	switch {
	case build != nil:
		return build, nil
	case len(same) == 1:
		return same[0], nil
	}
	best, err := compat.Choose(tables, offered, *n.Facts)
	if err != nil {
		return nil, []string{err.Error()}
	}
	return best.Wheel, best.Verdict.Reasons
}

// version is the node's DeepSpeed, or nil if there is none or it is unknown.
func (n *nodeState) version() *report.Version {
	if n.Facts == nil || n.Facts.DeepSpeed == nil {
		return nil
	}
	return &report.Version{Version: n.Facts.DeepSpeed.Version, SHA256: n.Facts.DeepSpeed.SHA256}
}

// kind is equal for nodes whose differences the report counts: those that run the same wheel and,
// if it is for several torches, have the same. It is "" if the node's wheel is not known.
func (n *nodeState) kind() string {
	switch {
	case n.runs == nil:
		return ""
	case n.wheel != nil && n.wheel.Manifest.SHA256 == n.runs.SHA256:
		return n.group()
	}
	return n.runs.SHA256
}

// maxAltered bounds how many altered files a report lists.
const maxAltered = 50

// setStatus sets the node's status, error and facts from the findings.
func (n *nodeState) setStatus() {
	if l := n.installed; l != nil && n.Facts.DeepSpeed != nil {
		f := *n.Facts.DeepSpeed
		f.Altered = slices.Concat(l.mismatched.First, l.missing.First, l.unreadable.First, l.unlisted.First, l.Links.First, l.Code.First)
		f.Altered = f.Altered[:min(len(f.Altered), maxAltered)]
		f.Intact = l.Noted != nil && l.Noted.Same && n.matchesRecord()
		n.Facts.DeepSpeed = &f
		if l.Noted != nil && l.Noted.Same {
			n.runs = &report.Wheel{Name: l.Noted.Wheel, SHA256: l.Noted.SHA256, Version: l.Version}
		}
	}
	if n.wheel != nil {
		n.runs = &report.Wheel{Name: n.wheel.Manifest.Name, SHA256: n.wheel.Manifest.SHA256, Version: n.wheel.Version}
	}
	switch {
	case len(n.differs) > 0:
		n.Status = report.Differs
	case len(n.broken) > 0:
		n.Status = report.Failed
	default:
		n.Status = report.OK
		return
	}
	var words []string
	try := ""
	for _, f := range slices.Concat(n.differs, n.broken) {
		words = append(words, f.what)
		try = cmp.Or(try, f.hint, n.hintFor(f.advice))
	}
	hint, deploys := n.withWheel(try)
	if why, instead := n.rejection(); deploys && why != "" {
		words, hint = append(words, "a deploy would reject this node: "+why), instead
	}
	n.Err = fault.AddHint(errors.New(strings.Join(words, "; ")), hint)
}
