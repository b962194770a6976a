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

// Verify looks at every node, changes nothing, and says which of them run the
// same and in what the others differ: from the wheels of opt, or without any
// from what most nodes run. The report is complete also when ctx ends on the way;
// the error is a wheel that cannot be read.
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
	d.given = len(opt.Wheels) > 1 // a fleet with several wheels on purpose: each is compared by itself
	d.watch = newWatch(opt.Reporter, "verifying", len(d.units), nil)
	defer d.watch.close()
	d.reach(ctx, d.units, nil, d.connect, []step{
		{name: "probe", limit: d.within(verifyLimit), do: d.look},  // the facts, and what is there
		{name: "verify", limit: d.within(verifyLimit), do: d.load}, // what was seen, and ops loaded
	}, func(u *unit) {
		u.hangUp()
	})
	var all []*sight
	for _, u := range d.units {
		if u.err != nil {
			u.sight = nil // what was seen before it failed is half of it
		}
		if u.sight != nil {
			all = append(all, u.sight)
		}
	}
	judge(tables, all, wanted)
	for _, u := range d.units {
		if u.sight != nil {
			u.settle()
		}
	}
	r := d.Report()
	r.verified = true
	return r, nil
}

// hangUp closes a node's connection as soon as it is not needed: of a thousand
// nodes only those in the window have one.
func (u *unit) hangUp() {
	if u.conn != nil {
		u.conn.Close()              //nolint:errcheck // nothing is under way
		u.conn, u.runner = nil, nil // with what it holds
	}
}

// sight is what was seen of one node, and what is wrong with it.
type sight struct {
	name   string
	host   inventory.Host
	facts  node.Facts
	wheel  *Wheel   // that it is to run; nil: whatever most nodes do
	unfit  []string // why that wheel does not fit it
	looked *looked  // nil: it has no DeepSpeed, or no Python to ask

	differs []finding // in what it is not what it should be
	broken  []finding // what does not work on it
	remarks []string  // worth knowing
	other   bool      // it does not run what it is to run
	proven  bool      // its files are those of the wheel that it is to run, wherever they came from

	op     string // being loaded
	done   bool   // it has said all
	undone error  // why it has not
}

// finding is something wrong with a node, and what to try.
type finding struct{ what, hint string }

func (s *sight) differ(hint, format string, args ...any) {
	s.differs = append(s.differs, finding{ui.OneLine(fmt.Sprintf(format, args...)), hint})
}

func (s *sight) remark(format string, args ...any) {
	s.remarks = append(s.remarks, ui.OneLine(fmt.Sprintf(format, args...)))
}

// looked is what look.py says about the DeepSpeed that is registered.
type looked struct {
	Version string  `json:"version"`
	Noted   *noted  `json:"noted"`  // nil: dsbuild has never installed here
	Digest  string  `json:"digest"` // of Files
	Files   listing `json:"files"`  // in DeepSpeed's folder; not sent again where it is known
	Others  listing `json:"others"` // elsewhere: commands, metadata
	Bare    bool    `json:"bare"`   // there is no RECORD
	Conda   bool    `json:"conda"`  // which writes the environment's place into commands
	Litter  paths   `json:"litter"` // files in its folder that RECORD does not know, and that are no code
	Links   paths   `json:"links"`  // links to folders in its folder: an import goes through them
	Code    paths   `json:"code"`   // byte code that is neither the wheel's nor what its module compiles to

	Manifest json.RawMessage `json:"manifest"` // parts of the wheel's; null in one that dsbuild did not build

	// What Files and Others mean.
	contents                  *contents // of DeepSpeed's folder
	altered, missing, unknown paths     // not what RECORD says; code that it does not know
}

// listing are files by path: what RECORD says of each, nothing where it does not know it,
// a space, and the digest (hex) of what is there, by the same algorithm, nothing where
// nothing is; behind one that is no sha256, a space and the sha256.
type listing map[string]string

// digest is that of a listing, as look.py computes it.
func (l listing) digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(h, "%s\x00%s\n", name, l[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// contents is what a listing says, which many nodes have alike.
type contents struct {
	files                      map[string]string // path → sha256 of what is there
	sum                        string            // of files: equal where they are
	altered, missing, unlisted []string
}

// compare holds the files of a listing against what RECORD says of them.

func (l listing) compare() *contents {
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
	c.sum = listing(c.files).digest()
	return c
}

// understand makes of what a node said of files what it means.
func (l *looked) understand(files *shared) {
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

// manifest is what the wheel inside says of itself, empty where it says nothing.
func (l *looked) manifest() wheel.Manifest {
	var m wheel.Manifest
	// A node may lie, or its wheel be of another dsbuild: what is not understood
	// says nothing.
	if err := json.Unmarshal(l.Manifest, &m); err != nil {
		return wheel.Manifest{}
	}
	return m
}

// unfit is why what is installed does not fit the node, by the manifest inside.
func (l *looked) unfit(tables *compat.Tables, f node.Facts) []string {
	if m := l.manifest(); m.Version != "" {
		return tables.Fit(m, f).Reasons
	}
	return nil
}

// noted is what dsbuild wrote down when it installed.
type noted struct {
	Wheel   string `json:"wheel"`
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
	Same    bool   `json:"same"` // RECORD is still the one of then
}

// paths are some files, and how many there are.
type paths struct {
	Count int      `json:"count"`
	First []string `json:"first"`
}

// sighting is one message of look.py and load.py.
type sighting struct {
	Looked *looked `json:"looked"`
	Wrong  string  `json:"wrong"`  // it is not what it should be
	Broken string  `json:"broken"` // it does not work
	Advice string  `json:"advice"` // the code of a hint
	Remark string  `json:"remark"`
	Op     string  `json:"op"` // about to be loaded
	Done   bool    `json:"done"`
}

// look asks a node for its facts and for all that there is to say about the files of
// its DeepSpeed, in one command.
func (d *Deployment) look(ctx context.Context, u *unit) error {
	limit := d.within(probeLimit)
	listed := d.files.wait(ctx, min(firstList, limit/2))
	defer listed()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	slow := time.AfterFunc(limit, func() { giveUp(notWithin(limit)) })
	defer slow.Stop()
	s := &sight{name: u.host.Name, host: u.host}
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
	u.sight = s
	return nil
}

// load says what became of look, and has every op loaded if that is asked for.
func (d *Deployment) load(ctx context.Context, u *unit) error {
	s := u.sight
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
	// A Python that starts or imports writes byte code beside what it finds; the probe's
	// does not.
	env := map[string]string{"PYTHONDONTWRITEBYTECODE": "1"}
	maps.Copy(env, accelerator(cuda, s.facts))
	err := script.Run(ctx, hosts.WithEnv(u.runner, env), func(message json.RawMessage) error {
		return s.take(message, &d.files)
	})
	var ended *remote.ExitError
	switch {
	case errors.As(err, &ended) && s.op != "":
		// What was seen before still counts.
		crash := whileLoading(err, s.op, s.looked.manifest().CPU, s.facts.CPU)
		s.broken = append(s.broken, finding{crash.Error(), hint.Of(crash)})
	case err != nil:
		return err
	case !s.done:
		return errors.New("the verification on the node gave no answer")
	}
	return nil
}

// take takes one message in. Nodes that have the same files share one list of them.
func (s *sight) take(message json.RawMessage, files *shared) error {
	var m sighting
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
		s.broken = append(s.broken, finding{node.Words(m.Broken).Error(), adviceFor(m.Advice, s.host)})
	case m.Remark != "":
		s.remark("%v", node.Words(m.Remark))
	}
	return nil
}

// runs says that dsbuild installed this very wheel, and nothing replaced it.
func (s *sight) runs(w *Wheel) bool {
	return s.facts.DeepSpeed != nil && s.facts.DeepSpeed.SHA256 == w.Manifest.SHA256
}

// wanted is the wheel that a node is to run: of those that fit it the one that
// it runs, else the one that a deploy would choose. reasons say why none fits,
// or why the only one does not.
func (d *Deployment) wanted(s *sight) (w *Wheel, reasons []string) {
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

// pythonless says what of Python a node lacks, "" for nothing.
func pythonless(f node.Facts) string {
	for _, m := range f.Missing {
		if strings.HasPrefix(m, "python") {
			return m
		}
	}
	return ""
}

// tell puts what was seen into the report of a node.
func (s *sight) tell(n *NodeReport) {
	for _, f := range s.differs {
		n.Differs = append(n.Differs, f.what)
	}
	n.Remarks = append(n.Remarks, s.remarks...)
	n.proven = s.proven
}

// mostAltered are the files that a report names of those that are not what RECORD says,
// or missing.
const mostAltered = 50

// settle makes of what was seen of a node its part of the report.
func (u *unit) settle() {
	s := u.sight
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

// shared keeps each list of files once, however many nodes have it.
type shared struct {
	mu    sync.Mutex
	kept  map[string]*contents
	first chan struct{} // closed when the first node has sent its list
	since time.Time     // when that node was asked
}

// firstList is how long the first node has for its list before the others are
// asked for theirs, too.
const firstList = 2 * time.Second

// wait lets one node send its list before the others are asked, most of which have
// the same: 150 KB that each of them need not send. listed is to be called when
// it has, or will not.
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

// maxKnown bounds how many digests a node is told.
const maxKnown = 16

// digests are those of the lists that need not be sent again.
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

// one is what the list says. What a node says of the digest counts only where it
// sent no list: it must not put another into the place of a list that others are
// compared with.
func (s *shared) one(said string, files listing) *contents {
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

// filesOfAll are the files of each wheel that belong to DeepSpeed's folder, by
// the wheel's sha256.
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

// filesOf reads them from the wheel's RECORD, which LoadWheels has compared with
// the files themselves.
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

// installedName is where a file of a wheel comes to lie below site-packages.
func installedName(name string) string {
	for _, scheme := range []string{"purelib", "platlib"} {
		if _, rest, ok := strings.Cut(name, ".data/"+scheme+"/"); ok {
			return rest
		}
	}
	return name
}

// inHex is a digest of RECORD as nodes write it, "" for none.
func inHex(digest string) string {
	sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(digest, "="))
	if err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}
