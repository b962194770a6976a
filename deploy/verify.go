package deploy

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

var (
	//go:embed look.py
	lookSource string
	//go:embed load.py
	loadSource string
)

var (
	lookProgram = node.NewErrand(proofSource, lookSource)
	loadProgram = node.NewProgram(proofSource, opsSource, loadSource)
)

// Verify inspects every node without changing it. It reports which nodes run the same and how the
// others differ: from the wheels in opt or, without wheels, from the majority of nodes. The
// report is complete even if ctx ends early. The error means that a wheel could not be read.
func Verify(ctx context.Context, opt Options) (*Report, error) {
	wanted, err := filesOfAll(opt.Wheels)
	if err != nil {
		return nil, err
	}
	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	d := New(opt)
	defer d.Close()
	d.reading, d.tables = true, tables
	d.given = len(opt.Wheels) > 1 // a fleet with several wheels is intended: compare each node with its own
	d.progress = newProgress(opt.Reporter, "verifying", len(d.units), nil)
	defer d.progress.close()
	d.reach(ctx, d.units, nil, d.connect, []step{
		{name: "probe", limit: d.within(verifyLimit), do: d.look},  // gathers the facts and the state of the files
		{name: "verify", limit: d.within(verifyLimit), do: d.load}, // reports the findings, and loads ops
	}, func(u *nodeRun) {
		u.hangUp()
	})
	var all []*nodeState
	for _, u := range d.units {
		if u.err != nil {
			u.state = nil // the findings before the failure are incomplete
		}
		if u.state != nil {
			all = append(all, u.state)
		}
	}
	judge(tables, all, wanted)
	for _, u := range d.units {
		if u.state != nil {
			u.settle()
		}
	}
	r := d.Report()
	r.verified = true
	return r, nil
}

// hangUp closes a node's connection as soon as it is no longer needed: of a thousand nodes only
// those in the window have one.
func (u *nodeRun) hangUp() {
	if u.conn != nil {
		u.conn.Close()              //nolint:errcheck // nothing is under way
		u.conn, u.runner = nil, nil // drops their memory, too
	}
}

// nodeState holds the findings about one node.
type nodeState struct {
	name   string
	host   inventory.Host
	facts  node.Facts
	wheel  *Wheel        // the wheel that it should run; nil: the same as most nodes
	unfit  []string      // why that wheel does not fit it
	looked *installation // nil: the node has no DeepSpeed, or no usable Python

	differs []nodeFinding // differences from the expected state
	broken  []nodeFinding // things that do not work on it
	remarks []string      // notes for the user
	other   bool          // it does not run the expected wheel
	proven  bool          // its files are those of the expected wheel, whoever installed them

	op     string // the op being loaded
	done   bool   // the program has sent its last message
	undone error  // why the program ended early
}

// nodeFinding is a fault of a node, with a hint.
type nodeFinding struct{ what, hint string }

func (s *nodeState) differ(hint, format string, args ...any) {
	s.differs = append(s.differs, nodeFinding{ui.OneLine(fmt.Sprintf(format, args...)), hint})
}

func (s *nodeState) remark(format string, args ...any) {
	s.remarks = append(s.remarks, ui.OneLine(fmt.Sprintf(format, args...)))
}

// installation is look.py's answer about the registered DeepSpeed.
type installation struct {
	Version string   `json:"version"`
	Noted   *noted   `json:"noted"`  // nil: dsbuild has never installed here
	Digest  string   `json:"digest"` // of Files
	Files   fileList `json:"files"`  // in DeepSpeed's folder; left out if the driver knows Digest
	Others  fileList `json:"others"` // outside that folder: commands, metadata
	Bare    bool     `json:"bare"`   // it has no RECORD
	Conda   bool     `json:"conda"`  // a conda environment: conda writes the prefix into commands
	Litter  paths    `json:"litter"` // files in its folder that are neither in RECORD nor code
	Links   paths    `json:"links"`  // links to folders in its folder: Python imports through them
	Code    paths    `json:"code"`   // byte code that is neither the wheel's nor compiled from its module

	Manifest json.RawMessage `json:"manifest"` // parts of the wheel's manifest; null if dsbuild did not build the wheel

	// Set by understand, from Files and Others.
	contents                  *contents // of DeepSpeed's folder
	altered, missing, unknown paths     // not as in RECORD; not there; code that is not in RECORD
}

// fileList maps the path of each file to its digests, separated by spaces: first the digest from
// RECORD (algorithm=digest), empty if RECORD does not list the file; then the actual digest in
// hex by the same algorithm, empty if the file is missing. If the algorithm is not sha256, the
// actual sha256 follows as a third part.
type fileList map[string]string

// digest is the digest of a list, computed as look.py does.
func (l fileList) digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(h, "%s\x00%s\n", name, l[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// contents is the meaning of a file list; many nodes have the same.
type contents struct {
	files                      map[string]string // path → actual sha256
	sum                        string            // digest of files: equal if they are equal
	altered, missing, unlisted []string
}

// compare compares the files of a list with their digests in RECORD.

func (l fileList) compare() *contents {
	c := &contents{files: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		said, is, _ := strings.Cut(l[name], " ")
		is, sum, other := strings.Cut(is, " ")
		if !other {
			sum = is
		}
		_, want, _ := strings.Cut(said, "=")
		switch {
		case is == "":
			c.missing = append(c.missing, name)
			continue
		case said == "":
			c.unlisted = append(c.unlisted, name)
		case is != inHex(want):
			c.altered = append(c.altered, name)
		}
		c.files[name] = sum
	}
	c.sum = fileList(c.files).digest()
	return c
}

// understand turns the file lists from the node into contents and into altered, missing and
// unknown files.
func (l *installation) understand(files *shared) {
	l.contents = files.one(l.Digest, l.Files)
	others := l.Others.compare()
	if l.Conda {
		others.altered = slices.DeleteFunc(others.altered, func(name string) bool { return strings.HasPrefix(name, "../") })
	}
	l.altered = some(slices.Concat(l.contents.altered, others.altered))
	l.missing = some(slices.Concat(l.contents.missing, others.missing))
	if !l.Bare {
		l.unknown = some(slices.Concat(l.contents.unlisted, others.unlisted))
	}
	l.Files, l.Others = nil, nil
}

// manifest returns the manifest inside the installed wheel, or an empty one.
func (l *installation) manifest() wheel.Manifest {
	var m wheel.Manifest
	// A node may lie, or another dsbuild may have written the manifest: one that cannot be
	// decoded counts as empty.
	if err := json.Unmarshal(l.Manifest, &m); err != nil {
		return wheel.Manifest{}
	}
	return m
}

// unfit returns the reasons why the installed DeepSpeed does not fit the node, by its manifest.
func (l *installation) unfit(tables *compat.Tables, f node.Facts) []string {
	if m := l.manifest(); m.Version != "" {
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

// verifyMessage is one message from look.py or load.py.
type verifyMessage struct {
	Looked *installation `json:"looked"`
	Wrong  string        `json:"wrong"`  // a difference from the expected state
	Broken string        `json:"broken"` // something that does not work
	Advice string        `json:"advice"` // the code of a hint
	Remark string        `json:"remark"`
	Op     string        `json:"op"` // the op that is loaded next
	Done   bool          `json:"done"`
}

// look gathers a node's facts and inspects the files of its DeepSpeed, in one command.
func (d *Deployment) look(ctx context.Context, u *nodeRun) error {
	limit := d.within(probeLimit)
	listed := d.files.wait(ctx, min(firstList, limit/2))
	defer listed()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	slow := time.AfterFunc(limit, func() { giveUp(notWithin(limit)) })
	defer slow.Stop()
	s := &nodeState{name: u.host.Name, host: u.host}
	facts, undone, err := node.ProbeAnd(ctx, u.runner, u.host.Python, node.Errand{
		Program: lookProgram,
		Request: map[string]any{"known": d.files.digests()},
		Begun:   func() { slow.Stop() },
		Each: func(message json.RawMessage) error {
			err := s.take(message, &d.files)
			if s.looked != nil {
				listed()
			}
			return err
		},
	})
	if facts != nil {
		u.know(*facts)
	}
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	s.facts, s.undone = *facts, undone
	s.wheel, s.unfit = d.wanted(s)
	u.state = s
	return nil
}

// load returns the error of look, if there is one, and loads every op if the level is VerifyLoad.
func (d *Deployment) load(ctx context.Context, u *nodeRun) error {
	s := u.state
	switch {
	case pythonless(s.facts) != "":
		return nil
	case s.undone != nil:
		return s.undone
	case !s.done:
		return errors.New("the verification on the node gave no answer")
	case d.opt.Verify != VerifyLoad || s.looked == nil:
		return nil
	}
	ops, cuda := []string{}, s.facts.TorchCUDA
	if s.facts.DeepSpeed != nil {
		ops = append(ops, s.facts.DeepSpeed.Ops...)
		if b := s.facts.DeepSpeed.Build; b != nil && b.Accelerator != "" && b.Accelerator != "cuda" {
			cuda = ""
		}
	}
	if s.wheel != nil && s.runs(s.wheel) {
		ops, cuda = s.wheel.Manifest.Ops, s.wheel.Manifest.CUDA
	}
	s.op, s.done = "", false
	script := node.Script{Python: s.facts.Executable, Program: loadProgram, Request: map[string]any{"ops": ops, "version": s.looked.Version}}
	// A Python writes byte code beside the modules when it starts and imports, which would
	// change the node. The probe's Python does not.
	env := map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}
	maps.Copy(env, accelerator(cuda, s.facts))
	err := script.Run(ctx, hosts.WithEnv(u.runner, env), func(message json.RawMessage) error {
		return s.take(message, &d.files)
	})
	var ended *remote.ExitError
	switch {
	case errors.As(err, &ended) && s.op != "":
		// The earlier findings still count.
		crash := whileLoading(err, s.op, s.looked.manifest().CPU, s.facts.CPU)
		s.broken = append(s.broken, nodeFinding{crash.Error(), hint.Of(crash)})
	case err != nil:
		return err
	case !s.done:
		return errors.New("the verification on the node gave no answer")
	}
	return nil
}

// take handles one message. Nodes with the same files share one list.
func (s *nodeState) take(message json.RawMessage, files *shared) error {
	var m verifyMessage
	if err := node.Decode(message, &m); err != nil {
		return err
	}
	s.op, s.done = m.Op, s.done || m.Done
	switch {
	case m.Looked != nil:
		s.looked = m.Looked
		s.looked.understand(files)
	case m.Wrong != "":
		s.differ(adviceFor(m.Advice, s.host), "%v", node.Words(m.Wrong))
	case m.Broken != "":
		s.broken = append(s.broken, nodeFinding{node.Words(m.Broken).Error(), adviceFor(m.Advice, s.host)})
	case m.Remark != "":
		s.remark("%v", node.Words(m.Remark))
	}
	return nil
}

// runs reports whether dsbuild installed this very wheel and nothing replaced it.
func (s *nodeState) runs(w *Wheel) bool {
	return s.facts.DeepSpeed != nil && s.facts.DeepSpeed.SHA256 == w.Manifest.SHA256
}

// wanted returns the wheel that a node should run. Of several wheels that fit it, this is the one
// that dsbuild installed there, else one with the installed version, else the one that a deploy
// would choose. reasons say why no wheel fits, or why the only one does not.
func (d *Deployment) wanted(s *nodeState) (w *Wheel, reasons []string) {
	wheels := d.opt.Wheels
	switch len(wheels) {
	case 0:
		return nil, nil
	case 1:
		return &wheels[0], d.tables.Fit(wheels[0].Manifest, s.facts).Reasons
	}
	version := ""
	if s.facts.DeepSpeed != nil {
		version = s.facts.DeepSpeed.Version
	}
	var same *Wheel
	for i := range wheels {
		if !d.tables.Fit(wheels[i].Manifest, s.facts).OK() {
			continue
		}
		if s.runs(&wheels[i]) {
			return &wheels[i], nil
		}
		if wheels[i].Version == version {
			same = &wheels[i]
		}
	}
	if same != nil {
		return same, nil
	}
	best, _, err := choose(d.tables, wheels, s.facts)
	if err != nil {
		return nil, []string{err.Error()}
	}
	return best, nil
}

// pythonless returns the part of Python that a node lacks, "" if it lacks none.
func pythonless(f node.Facts) string {
	for _, m := range f.Missing {
		if strings.HasPrefix(m, "python") {
			return m
		}
	}
	return ""
}

// tell copies the findings into the node's report.
func (s *nodeState) tell(n *NodeReport) {
	for _, f := range s.differs {
		n.Differs = append(n.Differs, f.what)
	}
	n.Remarks = append(n.Remarks, s.remarks...)
	n.proven = s.proven
}

// mostAltered bounds how many altered, missing or unknown files a report names.
const mostAltered = 50

// settle sets the node's status, error and facts from the findings.
func (u *nodeRun) settle() {
	s := u.state
	if l := s.looked; l != nil && u.facts.DeepSpeed != nil {
		f := *u.facts.DeepSpeed
		f.Altered = slices.Concat(l.altered.First, l.missing.First, l.unknown.First, l.Links.First, l.Code.First)
		f.Altered = f.Altered[:min(len(f.Altered), mostAltered)]
		f.Intact = l.Noted != nil && l.Noted.Same && s.whole()
		u.facts.DeepSpeed = &f
		if l.Noted != nil && l.Noted.Same {
			u.runs = &WheelRef{l.Noted.Wheel, l.Noted.SHA256, l.Version}
		}
	}
	if s.wheel != nil {
		u.runs = s.wheel.ref()
	}
	findings := slices.Concat(s.differs, s.broken)
	switch {
	case len(s.differs) > 0:
		u.status = Differs
	case len(s.broken) > 0:
		u.status = Failed
	default:
		u.status = OK
		return
	}
	var words []string
	try := ""
	for _, f := range findings {
		words = append(words, f.what)
		try = cmp.Or(try, f.hint)
	}
	u.err = withHint(errors.New(strings.Join(words, "; ")), try)
}

// shared stores each list of files once, however many nodes have it.
type shared struct {
	mu    sync.Mutex
	kept  map[string]*contents
	first chan struct{} // closed when the first node has sent its list
	since time.Time     // when that node was asked
}

// firstList is how long the first node may take to send its list before dsbuild asks the others
// for theirs, too.
const firstList = 2 * time.Second

// wait lets one node send its list before dsbuild asks the others. Most of them have the same
// list, 150 KB that they then need not send. The caller calls listed once the node has sent its
// list, or will not.
func (s *shared) wait(ctx context.Context, most time.Duration) (listed func()) {
	s.mu.Lock()
	first, since := s.first, s.since
	if first == nil {
		s.first, s.since = make(chan struct{}), time.Now()
		s.mu.Unlock()
		return sync.OnceFunc(func() { close(s.first) })
	}
	s.mu.Unlock()
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(time.Until(since.Add(most))):
	}
	return func() {}
}

// maxKnown bounds how many known digests dsbuild sends to a node.
const maxKnown = 16

// digests returns the digests of the lists that nodes need not send again.
func (s *shared) digests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := []string{}
	for digest := range s.kept {
		if len(known) < maxKnown {
			known = append(known, digest)
		}
	}
	slices.Sort(known)
	return known
}

// one returns the contents of a list, stored once for all nodes. said is the digest that the node
// claims. It counts only if the node sent no list: a node must not replace a list that others are
// compared with.
func (s *shared) one(said string, files fileList) *contents {
	digest := files.digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept, ok := s.kept[said]; ok && len(files) == 0 {
		return kept
	}
	if s.kept == nil {
		s.kept = map[string]*contents{}
	}
	if _, ok := s.kept[digest]; !ok {
		s.kept[digest] = files.compare()
	}
	return s.kept[digest]
}

// filesOfAll returns the files of each wheel in DeepSpeed's folder, by the wheel's sha256.
func filesOfAll(wheels []Wheel) (map[string]map[string]string, error) {
	all := map[string]map[string]string{}
	for _, w := range wheels {
		files, err := filesOf(w.Path)
		if err != nil {
			return nil, err
		}
		all[w.Manifest.SHA256] = files
	}
	return all, nil
}

// filesOf returns the sha256 of a wheel's files in DeepSpeed's folder, by path. It reads them
// from RECORD; LoadWheels has compared RECORD with the files.
func filesOf(path string) (map[string]string, error) {
	a, err := wheel.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	files := map[string]string{}
	for _, m := range a.Members() {
		if strings.Count(m.Name, "/") != 1 || !strings.HasSuffix(m.Name, ".dist-info/RECORD") {
			continue
		}
		r, err := a.Open(m.Name)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		entries, err := wheel.ParseRecord(r)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := installedName(e.Path)
			if e.Algorithm == "sha256" && strings.HasPrefix(name, "deepspeed/") {
				files[name] = inHex(e.Digest)
			}
		}
	}
	return files, nil
}

// installedName is the path of a wheel's file below site-packages.
func installedName(name string) string {
	for _, scheme := range []string{"purelib", "platlib"} {
		if _, rest, ok := strings.Cut(name, ".data/"+scheme+"/"); ok {
			return rest
		}
	}
	return name
}

// inHex converts a digest from RECORD's encoding to hex, as nodes write it; "" if it is invalid.
func inHex(digest string) string {
	sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(digest, "="))
	if err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}
