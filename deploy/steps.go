package deploy

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// proof.py goes before the others; ops.py before load.py and, where ops are to be loaded,
// verify.py, which goes before verdict.py and agent.py.
var (
	//go:embed proof.py
	proofSource string
	//go:embed ops.py
	opsSource string
	//go:embed verify.py
	verifySource string
	//go:embed verdict.py
	verdictSource string
)

var verifyProgram = node.NewProgram(proofSource, opsSource, verifySource, verdictSource)

// connect keeps a connection that is open.
func (d *Deployment) connect(ctx context.Context, u *unit) error {
	if u.conn != nil {
		return nil
	}
	t, err := hosts.Target(u.host, d.opt.KnownHosts)
	if err != nil {
		return err
	}
	u.conn, err = d.opt.Dialer.Dial(ctx, t)
	if err != nil {
		return err
	}
	u.conn = u.log.conn(u.conn)
	u.runner = hosts.Runner(u.conn, u.host)
	return nil
}

func (d *Deployment) probe(ctx context.Context, u *unit) error {
	facts, err := d.facts(ctx, u)
	if errors.Is(err, remote.ErrLost) && u.facts != nil {
		// It was open for long, and has ended since the node was last asked.
		u.conn.Close() //nolint:errcheck // it is gone
		u.conn = nil
		if err = d.connect(ctx, u); err == nil {
			facts, err = d.facts(ctx, u)
		}
	}
	if err != nil {
		return err
	}
	u.know(facts)
	return nil
}

// know keeps what a node has told about itself.
func (u *unit) know(facts node.Facts) {
	u.facts, u.before, u.record = &facts, nil, ""
	if ds := facts.DeepSpeed; ds != nil {
		u.before, u.record = &Version{ds.Version, ds.SHA256}, ds.Record
	}
	u.after = u.before
}

func (d *Deployment) facts(ctx context.Context, u *unit) (node.Facts, error) {
	opt := node.ProbeOptions{Python: u.host.Python, Files: !d.rollback}
	for _, w := range d.opt.Wheels {
		opt.Of = append(opt.Of, w.Manifest.SHA256)
		opt.Commands = append(opt.Commands, w.Commands...)
	}
	return node.Probe(ctx, u.runner, opt)
}

// upload is a local file with its digest.
type upload struct {
	path, sha256 string
	size         int64
	counts       bool                              // for the progress
	role         role                              // nodes may have kept an earlier one; "": they never do
	spare        bool                              // it is not worth sending whole
	open         func() (io.ReadSeekCloser, error) // nil: the file at path
}

// name is what it is called on a node.
func (f upload) name() string { return filepath.Base(f.path) }

// counted is what it adds to the progress.
func (f upload) counted() int64 {
	if f.counts && !f.spare {
		return f.size
	}
	return 0
}

// count adds to the progress what was sent of a file, or need not be.
func (d *Deployment) count(f upload, n int64) {
	if f.counts && !f.spare {
		d.watch.send(n)
	}
}

// putTries is how often a node is reached anew when its connection breaks while
// files are sent. Nothing has been changed then, and what has arrived stays.
const putTries = 5

func (d *Deployment) put(ctx context.Context, u *unit) error {
	for try := 1; ; try++ {
		err := d.putAll(ctx, u, try > 1)
		if err == nil || try == putTries || !errors.Is(err, remote.ErrLost) || ctx.Err() != nil {
			return err
		}
		d.watch.note(u, "%v; going on where it broke", err)
		if err := d.reconnect(ctx, u); err != nil {
			return err
		}
	}
}

// reconnect gives up the connection of a node, and the agent on it.
func (d *Deployment) reconnect(ctx context.Context, u *unit) error {
	if u.change != nil {
		u.change.end()
		u.change = nil
	}
	u.conn.Close() //nolint:errcheck // it is gone
	u.conn = nil
	return d.connect(ctx, u)
}

// putAll starts the agent and sends what has not arrived yet.
func (d *Deployment) putAll(ctx context.Context, u *unit, again bool) error {
	files := d.uploads(u)
	b, err := d.begin(ctx, u, files, again)
	if err != nil {
		return err
	}
	m := u.plan.Wheel.Manifest
	if b.Now != nil && b.Now.Intact && b.Now.SHA256 == m.SHA256 && !d.opt.Force && len(u.plan.Along)+len(u.plan.Fetch) == 0 {
		// Another deploy was faster. To install the wheel over itself would
		// only push out of previous/ what a rollback should bring back.
		u.change.end()
		u.change = nil
		return nil
	}
	u.code = false
	for _, f := range files {
		there, err := d.putOne(ctx, u, f, b)
		if err != nil {
			return err
		}
		u.code = u.code || there && f.role == codeRole
	}
	return nil
}

// putOne sees to it that a file is in the inbox: it has arrived already, is put
// together of what the node keeps, or is sent, unless it is not worth that.
func (d *Deployment) putOne(ctx context.Context, u *unit, f upload, b begun) (there bool, err error) {
	if slices.Contains(b.Arrived, f.name()) {
		d.count(f, f.size)
		return true, nil
	}
	if slices.Contains(b.Keeps, f.role) && !d.spreads() {
		if there, err := d.putParts(ctx, u, f); there || err != nil {
			return there, err
		}
	}
	if f.spare {
		return false, nil
	}
	return true, d.putFile(ctx, u, f)
}

// tidy removes what a run that was cut off has left on a node where nothing else
// is to be done.
func (d *Deployment) tidy(ctx context.Context, u *unit) error {
	_, err := d.begin(ctx, u, nil, false)
	if errors.As(err, new(*refusal)) {
		return nil // a deploy is at work, and the files are its own
	}
	if err == nil {
		u.change.end()
		u.change = nil
	}
	return err
}

// uploads are what is sent to a node that installs.
func (d *Deployment) uploads(u *unit) []upload {
	m := u.plan.Wheel.Manifest
	files := []upload{{path: u.plan.Wheel.Path, sha256: m.SHA256, size: m.Size, counts: true, role: wheelRole}}
	if code := u.plan.Wheel.code; code != nil && len(u.plan.Along)+len(u.plan.Fetch) == 0 {
		f := *code
		f.spare = d.installs > mostWithCode && !d.spreads()
		files = append(files, f)
	}
	for _, a := range u.plan.Along {
		files = append(files, upload{path: a.Path, sha256: a.SHA256, size: a.Size, counts: true})
	}
	if pip, ok := d.pips[minor(u.facts.Python)]; ok && u.facts.Pip == "" && u.facts.PipWheel == "" {
		files = append(files, pip)
	}
	return files
}

// mostWithCode is to how many nodes byte code is sent. A node compiles DeepSpeed's
// modules in about a second, and all nodes do so at once; to send these 2.4 MB to more
// than 64 takes longer, over 1 Gbit/s.
const mostWithCode = 64

// spreads reports whether a file is brought to all nodes in one go: then all of them
// get the whole of it.
func (d *Deployment) spreads() bool {
	_, ok := d.opt.Dialer.(remote.Spreader)
	return ok
}

// begin starts the agent, which takes the lock and puts right what an earlier
// run may have left. Again, it has to wait for the end of the one before, which may
// not know yet that its connection is gone.
func (d *Deployment) begin(ctx context.Context, u *unit, files []upload, again bool) (begun, error) {
	req := changeRequest{Run: d.run, Label: label(u.host.Name), By: d.opt.By}
	for _, f := range files {
		req.Files = append(req.Files, arrival{f.name(), f.sha256})
		if f.role != "" {
			req.Files = append(req.Files, arrival{f.name() + partsSuffix, ""})
		}
	}
	if again {
		req.LockS = (silence + lockWait).Seconds()
	}
	c, b, err := startChange(ctx, u, req)
	if err != nil {
		// What the probe saw is being changed, by that deploy or by a repair.
		if refused := (*refusal)(nil); errors.As(err, &refused) && refused.busy || u.facts.Unfinished {
			u.after, u.unseen = nil, true
		}
		return begun{}, err
	}
	u.unseen = false
	u.change, u.inbox = c, b.Inbox
	u.before, u.after, u.record = nil, nil, ""
	if b.Now != nil {
		u.before = &Version{b.Now.Version, b.Now.SHA256}
		u.after, u.record = u.before, b.Now.Record
	}
	if b.Repaired {
		d.watch.warn(u, "an earlier change that was cut off has been put right")
	}
	return b, nil
}

// largeFile is the size from which a file is written by a Python of its own, which
// computes the digest meanwhile: below, to start one takes longer than it saves.
const largeFile = 16 << 20

// putFile sends a file into the inbox.
func (d *Deployment) putFile(ctx context.Context, u *unit, f upload) error {
	var told atomic.Int64
	up := remote.Upload{
		Open:   f.open,
		Size:   f.size,
		SHA256: f.sha256,
		Path:   path.Join(u.inbox, f.name()),
		Mode:   0o600,
		Resume: true,
		Limit:  d.opt.Bandwidth,
		Sum:    u.change.digest,
		Progress: func(n int64) {
			told.Add(n)
			d.count(f, n)
		},
	}
	if up.Open == nil {
		up.Open = func() (io.ReadSeekCloser, error) { return os.Open(f.path) }
	}
	if f.size >= largeFile {
		up.Write = func(ctx context.Context, path string, at int64, r io.Reader) (string, error) {
			sum, err := node.Append(ctx, u.runner, u.facts.Executable, path, at, r)
			switch {
			case err == nil:
				err = u.change.learn(ctx, path, sum)
			case len(u.host.ExecPrefix) > 0 && strings.Contains(err.Error(), "FileNotFoundError"):
				err = hint.With(err, "where exec_prefix enters a container, its Python must see the same path as the node")
			}
			return sum, err
		}
	}
	err := u.conn.Put(ctx, up)
	if err != nil {
		d.count(f, -told.Load()) // it is sent again, or not at all
		return err
	}
	u.sent += f.size
	return nil
}

func (d *Deployment) install(ctx context.Context, u *unit) error {
	m := u.plan.Wheel.Manifest
	pip := ""
	if u.facts.Pip == "" {
		pip = u.facts.PipWheel
		if brought, ok := d.pips[minor(u.facts.Python)]; ok && pip == "" {
			pip = path.Join(u.inbox, filepath.Base(brought.path))
		}
	}
	var done struct {
		Version string `json:"version"`
		Record  string `json:"record"`
	}
	wheels := []map[string]string{{"name": "deepspeed", "file": path.Join(u.inbox, filepath.Base(u.plan.Wheel.Path)), "sha256": m.SHA256}}
	for _, a := range u.plan.Along {
		wheels = append(wheels, map[string]string{"name": a.Name, "file": path.Join(u.inbox, a.File), "sha256": a.SHA256})
	}
	fetched, err := d.fetch(ctx, u, pip)
	if err != nil {
		return err
	}
	for _, f := range fetched {
		wheels = append(wheels, map[string]string{"name": f.Name, "file": f.File, "sha256": f.SHA256})
		u.plan.Along = append(u.plan.Along, Along{f, "index"})
	}
	if err := d.free(ctx, u); err != nil {
		return err
	}
	order := map[string]any{"do": "install", "wheels": wheels, "pip": pip, "limit_s": d.within(installLimit).Seconds()}
	if u.code {
		order["bytecode"] = map[string]any{"file": path.Join(u.inbox, u.plan.Wheel.code.name()), "magic": m.ByteCode.Magic, "sha256": m.ByteCode.SHA256}
	}
	if err := u.change.ask(ctx, order, &done); err != nil {
		return err
	}
	u.changed, u.after, u.record = true, &Version{done.Version, m.SHA256}, done.Record
	return nil
}

// fetch has the node download what it lacks from its own index.
func (d *Deployment) fetch(ctx context.Context, u *unit, pip string) ([]wheel.BundleWheel, error) {
	if len(u.plan.Fetch) == 0 {
		return nil, nil
	}
	var got struct {
		Wheels []wheel.BundleWheel `json:"wheels"`
	}
	order := map[string]any{"do": "fetch", "needs": u.plan.Fetch, "fixed": fixed(*u.facts), "pip": pip, "limit_s": d.within(installLimit).Seconds()}
	err := u.change.ask(ctx, order, &got)
	if err != nil {
		err = fmt.Errorf("from the node's own index: %w", err)
	}
	return got.Wheels, err
}

// verifyFollower verifies on a node that shares its environment with one that
// has recorded the change: it is too late to put anything back.
func (d *Deployment) verifyFollower(ctx context.Context, u *unit) error {
	err := d.verify(ctx, u)
	if err == nil || !u.changed {
		return err
	}
	leader, what, why := d.units[u.plan.Leader].host.Name, "what was put back", hint.Of(err)
	if !d.rollback {
		what = "the new wheel"
		why = strings.TrimPrefix(why+"; to go back: dsbuild rollback INVENTORY --limit "+leader, "; ")
	}
	return withHint(fmt.Errorf("%w; the environment it shares with %s keeps %s", err, leader, what), why)
}

// verified is the answer of verify.py.
type verified struct {
	Op       string  `json:"op"` // about to be loaded
	Failed   string  `json:"failed"`
	Advice   string  `json:"advice"` // the code of a hint
	Verified *proved `json:"verified"`
}

// proved is what a verification found.
type proved struct {
	Version string `json:"version"`
	Torch   string `json:"torch"`
	CUDA    string `json:"cuda"`
}

func (d *Deployment) verify(ctx context.Context, u *unit) error {
	if u.plan.Wheel == nil {
		return d.verifyBack(ctx, u)
	}
	w := u.plan.Wheel
	level := d.opt.Verify
	if u.plan.Action == Leave {
		level = cmp.Or(d.opt.VerifyLeft, level)
	}
	return runVerify(ctx, u, w.Manifest, map[string]any{"level": level, "version": w.Version, "record": u.record, "ops": w.Manifest.Ops, "along": versions(u.plan.Along)})
}

// versions are the wheels that went along as a verification looks for them.
func versions(along []Along) map[string]string {
	out := map[string]string{}
	for _, a := range along {
		out[a.Name] = a.Version
	}
	return out
}

func runVerify(ctx context.Context, u *unit, m wheel.Manifest, request map[string]any) error {
	if u.change != nil && request["level"] == VerifyFiles {
		return u.change.ask(ctx, map[string]any{"do": "verify", "request": request}, new(proved))
	}
	script := node.Script{Python: u.facts.Executable, Program: verifyProgram, Request: request}
	var last verified
	op := ""
	err := script.Run(ctx, hosts.WithEnv(u.runner, accelerator(m.CUDA, *u.facts)), func(message json.RawMessage) error {
		last = verified{}
		err := node.Decode(message, &last)
		if last.Op != "" {
			op = last.Op
		}
		return err
	})
	switch {
	case err != nil && op != "":
		return whileLoading(err, op, m.CPU, u.facts.CPU)
	case err != nil:
		return err
	case last.Failed != "":
		return withHint(node.Words(last.Failed), adviceFor(last.Advice, u.host))
	case last.Verified == nil:
		return errors.New("the verification on the node gave no answer")
	}
	return nil
}

// whileLoading is a program that ended while it loaded an op of a wheel for a CPU.
func whileLoading(err error, op, needs, has string) error {
	var exit *remote.ExitError
	op, needs, has = node.ShownPath(op), node.PlainVersion(needs), node.PlainVersion(has) // the node's words, all of them
	if errors.As(err, &exit) && (exit.Signal == "ILL" || exit.Code == 128+4) {
		return hint.With(fmt.Errorf("op %s: killed by an illegal instruction", op), "the wheel (%s) needs a newer CPU than this node's (%s)", cmp.Or(needs, "its CPU level is not known"), has)
	}
	return fmt.Errorf("while loading op %s: %w", op, err)
}

// accelerator is what must be set where no GPU can be used and the ops are for CUDA:
// there DeepSpeed takes the accelerator for "cpu" and finds none of them.
func accelerator(cuda string, f node.Facts) map[string]string {
	if cuda != "" && (len(f.GPUs) == 0 || f.GPUsWithheld) {
		return map[string]string{"DS_ACCELERATOR": "cuda"}
	}
	return nil
}

// entry is a line of the journal on a node.
type entry struct {
	Do     string   `json:"do"` // deploy or rollback
	Run    string   `json:"run"`
	At     string   `json:"at"`
	By     string   `json:"by"`
	Node   string   `json:"node"`
	Wheel  string   `json:"wheel"`
	SHA256 string   `json:"sha256"`
	Along  []string `json:"along,omitempty"` // wheels installed with it
	Before *Version `json:"before"`
	Verify Level    `json:"verify"`
}

func (d *Deployment) record(ctx context.Context, u *unit) error {
	m := u.plan.Wheel.Manifest
	at := time.Now().UTC().Format(time.RFC3339)
	return u.change.ask(ctx, map[string]any{
		"do": "record", "forget": false, "room": roomFactor*m.Size + roomMargin,
		"installed": map[string]any{"wheel": m.Name, "sha256": m.SHA256, "version": u.after.Version, "record": u.record, "at": at, "run": d.run},
		"journal":   entry{"deploy", d.run, at, d.opt.By, u.host.Name, m.Name, m.SHA256, names(u.plan.Along), u.before, d.opt.Verify},
	}, nil)
}
