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

	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// The programs on nodes are made of these sources, in this order: proof.py first; ops.py before
// load.py and, if ops are to be loaded, before verify.py; verify.py before verdict.py and
// agent.py.
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

// connect opens a connection to the node; it keeps one that is open.
func (d *Deployment) connect(ctx context.Context, u *nodeRun) error {
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

func (d *Deployment) probe(ctx context.Context, u *nodeRun) error {
	facts, err := d.facts(ctx, u)
	if errors.Is(err, remote.ErrLost) && u.facts != nil {
		// The connection was idle for a long time, and has ended since the last command.
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

// know stores the facts that a node reported.
func (u *nodeRun) know(facts node.Facts) {
	u.facts, u.before, u.record = &facts, nil, ""
	if ds := facts.DeepSpeed; ds != nil {
		u.before, u.record = &Version{ds.Version, ds.SHA256}, ds.Record
	}
	u.after = u.before
}

func (d *Deployment) facts(ctx context.Context, u *nodeRun) (node.Facts, error) {
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
	counts       bool // its bytes count in the progress
	byteCode     bool // it is the byte code of the wheel's modules
}

// name is the file's name on a node.
func (f upload) name() string { return filepath.Base(f.path) }

// counted is the number of bytes that the file adds to the progress.
func (f upload) counted() int64 {
	if f.counts {
		return f.size
	}
	return 0
}

// count adds n bytes of a file to the progress: sent, or not needed.
func (d *Deployment) count(f upload, n int64) {
	if f.counts {
		d.progress.send(n)
	}
}

// putTries is how often dsbuild tries to send the files to a node if the connection breaks.
// Nothing has been changed by then, and the files that have arrived stay.
const putTries = 5

func (d *Deployment) put(ctx context.Context, u *nodeRun) error {
	for try := 1; ; try++ {
		err := d.putAll(ctx, u, try > 1)
		if err == nil || try == putTries || !errors.Is(err, remote.ErrLost) || ctx.Err() != nil {
			return err
		}
		d.progress.note(u, "%v; going on where it broke", err)
		if err := d.reconnect(ctx, u); err != nil {
			return err
		}
	}
}

// reconnect closes the node's connection and its agent, and connects again.
func (d *Deployment) reconnect(ctx context.Context, u *nodeRun) error {
	if u.session != nil {
		u.session.end()
		u.session = nil
	}
	u.conn.Close() //nolint:errcheck // it is gone
	u.conn = nil
	return d.connect(ctx, u)
}

// putAll starts the agent and sends the files that have not arrived yet.
func (d *Deployment) putAll(ctx context.Context, u *nodeRun, again bool) error {
	files := d.uploads(u)
	b, err := d.begin(ctx, u, files, again)
	if err != nil {
		return err
	}
	m := u.plan.Wheel.Manifest
	if b.Now != nil && b.Now.Intact && b.Now.SHA256 == m.SHA256 && !d.opt.Force && len(u.plan.Along)+len(u.plan.Fetch) == 0 {
		// Another deploy has installed this wheel meanwhile. Installing it again would only
		// replace the version in previous/ that a rollback should bring back.
		u.session.end()
		u.session = nil
		return nil
	}
	u.code = false
	for _, f := range files {
		if slices.Contains(b.Arrived, f.name()) {
			d.count(f, f.size)
		} else if err := d.putFile(ctx, u, f); err != nil {
			return err
		}
		u.code = u.code || f.byteCode
	}
	return nil
}

// tidy removes the files of an interrupted run from a node that needs no other change.
func (d *Deployment) tidy(ctx context.Context, u *nodeRun) error {
	_, err := d.begin(ctx, u, nil, false)
	if errors.As(err, new(*refusal)) {
		return nil // another deploy is running, and the files are its own
	}
	if err == nil {
		u.session.end()
		u.session = nil
	}
	return err
}

// uploads returns the files to send to a node that installs.
func (d *Deployment) uploads(u *nodeRun) []upload {
	m := u.plan.Wheel.Manifest
	files := []upload{{path: u.plan.Wheel.Path, sha256: m.SHA256, size: m.Size, counts: true}}
	crowded := d.installs > mostWithCode && !d.spreads()
	if code := u.plan.Wheel.code; code != nil && !crowded && len(u.plan.Along)+len(u.plan.Fetch) == 0 {
		files = append(files, *code)
	}
	for _, a := range u.plan.Along {
		files = append(files, upload{path: a.Path, sha256: a.SHA256, size: a.Size, counts: true})
	}
	if pip, ok := d.pips[minor(u.facts.Python)]; ok && u.facts.Pip == "" && u.facts.PipWheel == "" {
		files = append(files, pip)
	}
	return files
}

// mostWithCode is the number of nodes up to which dsbuild sends byte code. Each node compiles
// DeepSpeed's modules in about a second, all nodes at once. Sending the 2.4 MB to more than 64
// nodes over 1 Gbit/s takes longer than that.
const mostWithCode = 64

// spreads reports whether the dialer brings a file to all nodes at once.
func (d *Deployment) spreads() bool {
	_, ok := d.opt.Dialer.(remote.Spreader)
	return ok
}

// begin starts the agent, which takes the lock and repairs the environment if an earlier run was
// interrupted. With again set it waits longer for the lock: the agent before it may not know yet
// that its connection is gone.
func (d *Deployment) begin(ctx context.Context, u *nodeRun, files []upload, again bool) (beginReply, error) {
	req := sessionRequest{Run: d.run, Label: label(u.host.Name), By: d.opt.By}
	for _, f := range files {
		req.Files = append(req.Files, expectedFile{f.name(), f.sha256})
	}
	if again {
		req.LockS = (silence + lockWait).Seconds()
	}
	c, b, err := startSession(ctx, u, req)
	if err != nil {
		// Another deploy, or a repair, is changing the state that the probe saw.
		if refused := (*refusal)(nil); errors.As(err, &refused) && refused.busy || u.facts.Unfinished {
			u.after, u.unseen = nil, true
		}
		return beginReply{}, err
	}
	u.unseen = false
	u.session, u.inbox = c, b.Inbox
	u.before, u.after, u.record = nil, nil, ""
	if b.Now != nil {
		u.before = &Version{b.Now.Version, b.Now.SHA256}
		u.after, u.record = u.before, b.Now.Record
	}
	if b.Repaired {
		d.progress.warn(u, "an earlier change that was cut off has been put right")
	}
	return b, nil
}

// largeFile is the size in bytes from which a Python process of its own writes a file and
// computes the digest meanwhile. For smaller files, starting Python takes longer than it saves.
const largeFile = 16 << 20

// putFile sends a file to the inbox.
func (d *Deployment) putFile(ctx context.Context, u *nodeRun, f upload) error {
	var told atomic.Int64
	up := remote.Upload{
		Open:   func() (io.ReadSeekCloser, error) { return os.Open(f.path) },
		Size:   f.size,
		SHA256: f.sha256,
		Path:   path.Join(u.inbox, f.name()),
		Mode:   0o600,
		Resume: true,
		Limit:  d.opt.Bandwidth,
		Sum:    u.session.digest,
		Progress: func(n int64) {
			told.Add(n)
			d.count(f, n)
		},
	}
	if f.size >= largeFile {
		up.Write = func(ctx context.Context, path string, at int64, r io.Reader) (string, error) {
			sum, err := node.Append(ctx, u.runner, u.facts.Executable, path, at, r)
			switch {
			case err == nil:
				err = u.session.learn(ctx, path, sum)
			case len(u.host.ExecPrefix) > 0 && strings.Contains(err.Error(), "FileNotFoundError"):
				err = hint.With(err, "where exec_prefix enters a container, its Python must see the same path as the node")
			}
			return sum, err
		}
	}
	err := u.conn.Put(ctx, up)
	if err != nil {
		d.count(f, -told.Load()) // the file is sent again, or not at all
		return err
	}
	u.sent += f.size
	return nil
}

func (d *Deployment) install(ctx context.Context, u *nodeRun) error {
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
	if err := u.session.ask(ctx, order, &done); err != nil {
		return err
	}
	u.changed, u.after, u.record = true, &Version{done.Version, m.SHA256}, done.Record
	return nil
}

// fetch makes the node download the missing requirements from its own index.
func (d *Deployment) fetch(ctx context.Context, u *nodeRun, pip string) ([]wheel.BundleWheel, error) {
	if len(u.plan.Fetch) == 0 {
		return nil, nil
	}
	var got struct {
		Wheels []wheel.BundleWheel `json:"wheels"`
	}
	order := map[string]any{"do": "fetch", "needs": u.plan.Fetch, "fixed": fixed(*u.facts), "pip": pip, "limit_s": d.within(installLimit).Seconds()}
	err := u.session.ask(ctx, order, &got)
	if err != nil {
		err = fmt.Errorf("from the node's own index: %w", err)
	}
	return got.Wheels, err
}

// verifyFollower verifies a node that shares its environment with a node that has already
// recorded the change: it is too late to undo the change.
func (d *Deployment) verifyFollower(ctx context.Context, u *nodeRun) error {
	err := d.verify(ctx, u)
	if err == nil || !u.changed {
		return err
	}
	leader, what, why := d.units[u.plan.Leader].host.Name, "what was put back", hint.Of(err)
	if !d.rollback {
		what = "the new wheel"
		why = strings.TrimPrefix(why+"; to go back: dsbuild rollback INVENTORY --limit "+leader, "; ")
	}
	return withHint(cause.Errorf("%w; the environment it shares with %s keeps %s", err, cause.Own(leader), what), why)
}

// verifyAnswer is a message from verify.py.
type verifyAnswer struct {
	Op       string       `json:"op"` // the op that is loaded next
	Failed   string       `json:"failed"`
	Advice   string       `json:"advice"` // the code of a hint
	Verified *verifyReply `json:"verified"`
}

// verifyReply is the result of a verification.
type verifyReply struct {
	Version string `json:"version"`
	Torch   string `json:"torch"`
	CUDA    string `json:"cuda"`
}

func (d *Deployment) verify(ctx context.Context, u *nodeRun) error {
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

// versions returns the version of each wheel that was installed with DeepSpeed, by name, for the
// verification.
func versions(along []Along) map[string]string {
	out := map[string]string{}
	for _, a := range along {
		out[a.Name] = a.Version
	}
	return out
}

func runVerify(ctx context.Context, u *nodeRun, m wheel.Manifest, request map[string]any) error {
	if u.session != nil && request["level"] == VerifyFiles {
		return u.session.ask(ctx, map[string]any{"do": "verify", "request": request}, new(verifyReply))
	}
	script := node.Script{Python: u.facts.Executable, Program: verifyProgram, Request: request}
	var last verifyAnswer
	op := ""
	err := script.Run(ctx, hosts.WithEnv(u.runner, accelerator(m.CUDA, *u.facts)), func(message json.RawMessage) error {
		last = verifyAnswer{}
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

// whileLoading adds to err the op that the program was loading when it ended. An illegal
// instruction means that the wheel needs a newer CPU.
func whileLoading(err error, op, needs, has string) error {
	var exit *remote.ExitError
	op, needs, has = node.ShownPath(op), node.PlainVersion(needs), node.PlainVersion(has) // all of them come from the node
	if errors.As(err, &exit) && (exit.Signal == "ILL" || exit.Code == 128+4) {
		return hint.With(fmt.Errorf("op %s: killed by an illegal instruction", op), "the wheel (%s) needs a newer CPU than this node's (%s)", cmp.Or(needs, "its CPU level is not known"), has)
	}
	return fmt.Errorf("while loading op %s: %w", op, err)
}

// accelerator returns the variable to set on a node without a usable GPU when the ops are for
// CUDA: DeepSpeed would otherwise choose the accelerator "cpu" there and find none of the ops.
func accelerator(cuda string, f node.Facts) map[string]string {
	if cuda != "" && (len(f.GPUs) == 0 || f.GPUsWithheld) {
		return map[string]string{"DS_ACCELERATOR": "cuda"}
	}
	return nil
}

// journalEntry is a line in the node's journal.
type journalEntry struct {
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

func (d *Deployment) record(ctx context.Context, u *nodeRun) error {
	m := u.plan.Wheel.Manifest
	at := time.Now().UTC().Format(time.RFC3339)
	return u.session.ask(ctx, map[string]any{
		"do": "record", "forget": false,
		"installed": map[string]any{"wheel": m.Name, "sha256": m.SHA256, "version": u.after.Version, "record": u.record, "at": at, "run": d.run},
		"journal":   journalEntry{"deploy", d.run, at, d.opt.By, u.host.Name, m.Name, m.SHA256, names(u.plan.Along), u.before, d.opt.Verify},
	}, nil)
}
