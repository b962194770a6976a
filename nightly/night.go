package nightly

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
	"github.com/dsbuild/dsbuild/wheel"
)

// Planner turns an entry, built from a source, into a plan.
type Planner interface {
	// Ask makes the plan as far as that works without an engine. request is the key of the plan in
	// the store (pipeline.RequestDigest). Ask fetches the sources, once.
	Ask(ctx context.Context, e matrix.Entry, s Source) (p *pipeline.Plan, request string, err error)
	// Plan makes the plan to run. Its messages begin with name.
	Plan(ctx context.Context, name string, e matrix.Entry, s Source) (*pipeline.Plan, error)
}

// Options are the settings of a night.
type Options struct {
	Config
	Plans Planner
	// Build runs plans and puts the wheels into dir. Several goroutines call done, each with a result as
	// soon as it exists (pipeline.Farm).
	Build func(ctx context.Context, dir string, jobs []pipeline.Job, done func(pipeline.Result)) []pipeline.Result
	// Sign signs the wheel at path, as Build does with those that it builds; nil: dsbuild signs nothing.
	Sign func(path string) error
	// Deploy installs the wheels of dir on the nodes of limit, and writes its reports as report with an
	// ending. It is nil if the night deploys nothing.
	Deploy func(ctx context.Context, dir, limit, report string) (Nodes, error)
	// GPUs returns the names of the GPUs of a compute capability, for the page of the index.
	GPUs func(capability string) []string
	// Store has wheels that other runs built.
	Store  pipeline.Store
	Report ui.Reporter
	Now    func() time.Time
	By     string // who runs it, and where
}

// BusyError is a night that runs already.
type BusyError struct{ Dir, Who string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another dsbuild nightly runs in %s (%s)", e.Dir, e.Who)
}

// Hint suggests a remedy.
func (e *BusyError) Hint() string { return "wait for it, or give each configuration its own dir" }

// night is one run.
type night struct {
	Options
	state  *state
	report *Report
	mu     sync.Mutex
}

// nightWheel is a wheel of the night: an entry built from a source.
type nightWheel struct {
	name    string
	entry   matrix.Entry
	source  Source
	request string
	report  *EntryReport
}

// Run runs a night. Its report is there as soon as the night has begun, and is written
// into the folder; the error carries the exit code. The next run
// continues a night that ctx interrupted.
func Run(ctx context.Context, opt Options) (*Report, error) {
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return nil, err
	}
	release, err := lockFolder(opt.Dir, opt.Now())
	if err != nil {
		return nil, err
	}
	defer release()
	st, err := loadState(opt.Dir)
	if err != nil {
		return nil, hint.With(err, "remove the file to start again: every wheel then counts as new")
	}
	n := &night{Options: opt, state: st}
	if err := n.beginOrResume(); err != nil {
		return nil, err
	}
	if err := n.runStages(ctx); err != nil {
		return n.report, err
	}
	return n.report, n.report.Err()
}

// lockFolder makes this the only night in the folder. It holds as long as the process lives.
func lockFolder(dir string, now time.Time) (release func(), err error) {
	name := filepath.Join(dir, lockName)
	l := flock.New(name, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
	got, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if !got {
		who, _ := os.ReadFile(name) // its text is for people
		return nil, &BusyError{dir, strings.TrimSpace(string(who))}
	}
	who := fmt.Sprintf("process %d, since %s\n", os.Getpid(), now.Format(time.RFC3339))
	if err := os.WriteFile(name, []byte(who), 0o644); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return func() { _ = l.Close() }, nil
}

// beginOrResume starts a night, or goes on with one that was not ended.
func (n *night) beginOrResume() error {
	now := n.Now()
	n.report = &Report{ID: now.UTC().Format("20060102T150405Z"), Started: now, Dir: n.Dir, By: n.By, Entries: []*EntryReport{}, Deploys: []DeployReport{}}
	if n.state.Running != "" {
		n.report.ID, n.report.Started, n.report.Resumed = n.state.Running, n.state.RunningAt, true
		n.Options.Report.Note("continuing the run of %s, which did not end", n.state.RunningAt.Format(time.RFC3339))
	}
	n.state.Running, n.state.RunningAt = n.report.ID, n.report.Started
	return n.state.saveFile()
}

// runStages takes the night through its stages. The failure of a stage is in the report; the
// error means that the night could not be completed.
func (n *night) runStages(ctx context.Context) error {
	units := n.listWheels()
	jobs := n.planChanged(ctx, units)
	n.buildPlanned(ctx, units, jobs)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := os.RemoveAll(filepath.Join(n.Dir, stagingName)); err != nil {
		return err
	}
	names := make([]string, len(units))
	for i, u := range units {
		names[i] = u.name
	}
	n.state.dropOldBuilds(names, n.Keep)
	n.publishIndex(ctx, names)
	n.deployStages(ctx, units)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return n.writeResult()
}

// listWheels are all wheels, each source of an entry after the other.
func (n *night) listWheels() []*nightWheel {
	var all []*nightWheel
	for _, s := range n.Sources {
		for _, e := range n.Entries {
			name := e.Name + "@" + s.Name
			r := &EntryReport{Name: name, Wheel: e.Name, Source: s.Name, Changes: []string{}, Before: n.previousBuild(name)}
			n.report.Entries = append(n.report.Entries, r)
			all = append(all, &nightWheel{name: name, entry: e, source: s, report: r})
		}
	}
	return all
}

// previousBuild is the newest build of a wheel before this night.
func (n *night) previousBuild(name string) *Build {
	for _, b := range n.state.Builds[name] {
		if b.Night != n.report.ID {
			return &b
		}
	}
	return nil
}

// planChanged finds the wheels that have changed, and plans them. A wheel that cannot be
// planned fails alone.
func (n *night) planChanged(ctx context.Context, units []*nightWheel) []pipeline.Job {
	var jobs []pipeline.Job
	for _, u := range units {
		if ctx.Err() != nil {
			u.report.markFailed(context.Cause(ctx))
			continue
		}
		asked, request, err := n.Plans.Ask(ctx, u.entry, u.source)
		if err != nil {
			u.report.markFailed(err)
			continue
		}
		u.request = request
		if n.keepUnchanged(ctx, u, request, asked.Digest) || n.takeFromStore(ctx, u, asked) {
			continue
		}
		p, err := n.Plans.Plan(ctx, u.name, u.entry, u.source)
		switch {
		case err != nil:
			u.report.markFailed(err)
		case n.keepUnchanged(ctx, u, "", p.Digest):
		default:
			jobs = append(jobs, pipeline.Job{Name: u.name, Plan: p})
		}
	}
	return jobs
}

// keepUnchanged uses a kept build if it has the wanted plan.
func (n *night) keepUnchanged(ctx context.Context, u *nightWheel, request, plan string) bool {
	i := n.state.findBuild(u.name, request, plan)
	if i < 0 {
		return false
	}
	b := n.state.makeNewest(u.name, i, n.report.ID)
	status := Unchanged
	switch {
	case i > 0: // as it was some nights ago
		status = Stored
	case b.Night == n.report.ID && b.Seconds > 0: // before this night was broken off
		status = Built
	case b.Night == n.report.ID:
		status = Stored
	}
	n.reportKept(ctx, u, b, status)
	return true
}

// reportKept reports a build that is kept. If it has no signature, because it comes from the store or
// because an earlier night could not sign it, it is signed first.
func (n *night) reportKept(ctx context.Context, u *nightWheel, b Build, status Status) {
	if err := n.signKept(ctx, n.state.buildPath(u.name, b)); err != nil {
		u.report.markFailed(err)
		return
	}
	u.report.recordBuild(b, status)
}

// signKept signs the wheel at path if wheels are to be signed and it has no signature.
func (n *night) signKept(ctx context.Context, path string) error {
	if n.Sign == nil {
		return nil
	}
	if signatures, err := wheel.SignatureFiles(path); err != nil || len(signatures) > 0 {
		return err
	}
	return pipeline.SignPlaced(ctx, path, n.Sign)
}

// takeFromStore uses a wheel that another run has built from the wanted plan. A store
// that cannot be read has none.
func (n *night) takeFromStore(ctx context.Context, u *nightWheel, asked *pipeline.Plan) bool {
	led, _ := n.Store.PlanOfRequest(ctx, u.request)
	for _, digest := range []string{asked.Digest, led} {
		p, ok, err := n.Store.Find(ctx, digest)
		if err != nil || !ok || len(wheel.AuditTags(p.Manifest.Name, asked.Toolchain.Glibc)) > 0 {
			continue
		}
		m := p.Manifest
		b, err := n.state.addBuild(ctx, u.name, u.request, n.report.ID, wheel.Artifact{Path: p.File, SHA256: m.SHA256, Size: m.Size, Cached: true, Manifest: m})
		if err == nil { // it may have been pruned meanwhile
			n.reportKept(ctx, u, b, Stored)
			return true
		}
	}
	return false
}

// buildPlanned runs the plans. Each wheel is kept as soon as it is there.
func (n *night) buildPlanned(ctx context.Context, units []*nightWheel, jobs []pipeline.Job) {
	if len(jobs) == 0 || ctx.Err() != nil {
		return
	}
	byName := map[string]*nightWheel{}
	for _, u := range units {
		byName[u.name] = u
	}
	staging := filepath.Join(n.Dir, stagingName)
	taken := map[string]bool{}
	take := func(r pipeline.Result) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !taken[r.Name] {
			taken[r.Name] = true
			n.recordBuild(ctx, byName[r.Name], r)
		}
	}
	for _, r := range n.Build(ctx, staging, jobs, take) {
		take(r) // those that share the plan of another
	}
}

// recordBuild keeps a build, or notes its failure.
func (n *night) recordBuild(ctx context.Context, u *nightWheel, r pipeline.Result) {
	u.report.Engine = r.Engine
	if r.Err != nil {
		u.report.markFailed(r.Err)
		return
	}
	if err := n.Store.LinkRequest(ctx, u.request, r.Plan.Digest); err != nil {
		n.Options.Report.Warn("%s: the store could not record its targets: %v", u.name, err)
	}
	b, err := n.state.addBuild(ctx, u.name, u.request, n.report.ID, r.Artifact)
	if err != nil {
		u.report.markFailed(err)
		return
	}
	status := Built
	if r.Artifact.Cached {
		status = Stored
	}
	u.report.recordBuild(b, status)
}

// publishIndex writes the index of all that is kept.
func (n *night) publishIndex(ctx context.Context, names []string) {
	if n.Index == nil || ctx.Err() != nil {
		return
	}
	files := n.keptFiles(names)
	r := &PublishReport{Dir: n.Index.Dir, URL: n.Index.URL, Wheels: len(files)}
	n.report.Publish = r
	if len(files) == 0 {
		r.Status = Skipped
		return
	}
	published := strings.Join(append(slices.Clone(files), n.Index.Dir, n.Index.URL), "\n")
	if _, err := os.Stat(filepath.Join(n.Index.Dir, "index.html")); err == nil && published == n.state.Published {
		r.Status = Unchanged
		return
	}
	step := n.Options.Report.Step("index")
	sum, err := index.Write(ctx, index.Options{Dir: n.Index.Dir, Wheels: files, URL: n.Index.URL, GPUs: n.GPUs})
	if err != nil {
		step.End(ui.Failed, "")
		r.Status, r.Error, r.Hint, r.err = Failed, ui.Clean(err.Error()), ui.Clean(hint.Of(err)), err
		return
	}
	step.End(ui.Done, fmt.Sprintf("%d wheels in %d indexes", len(files), len(sum.Indexes)))
	r.Status, r.Written, r.Removed = Done, sum.Written, sum.Removed
	n.state.Published = published
}

// keptFiles are the files of all builds that are kept; of two that are called the same
// the newer one.
func (n *night) keptFiles(names []string) []string {
	type kept struct {
		at   time.Time
		path string
	}
	byName := map[string]kept{}
	for _, name := range names {
		for _, b := range n.state.Builds[name] {
			if other, twice := byName[b.Name]; !twice || b.BuiltAt.After(other.at) {
				byName[b.Name] = kept{b.BuiltAt, n.state.buildPath(name, b)}
			}
		}
	}
	var files []string
	for _, k := range byName {
		files = append(files, k.path)
	}
	slices.Sort(files)
	return files
}

// deployStages gives the newest wheels of one source to the canary, and then to all.
func (n *night) deployStages(ctx context.Context, units []*nightWheel) {
	d := n.Config.Deploy
	if d == nil || n.Options.Deploy == nil || ctx.Err() != nil {
		return
	}
	stages := []DeployReport{{Name: "canary", Limit: d.Canary}, {Name: "nodes", Limit: d.Limit}}
	if d.Canary == "" {
		stages = stages[1:]
	}
	dir, err := n.gatherNewest(ctx, units, d.Source)
	broken := err != nil
	for _, s := range stages {
		switch {
		case err != nil:
			s.markFailed(err)
			err = nil
		case broken:
			s.Status, s.Error = Skipped, "an earlier step failed"
		default:
			start := n.Now()
			s.Report = filepath.Join(n.Dir, runsName, n.report.ID, s.Name)
			s.Nodes, s.err = n.Options.Deploy(ctx, dir, s.Limit, s.Report)
			s.Seconds, s.Status = n.Now().Sub(start).Seconds(), Done
			if s.err != nil {
				s.markFailed(s.err)
				broken = true
			}
		}
		n.report.Deploys = append(n.report.Deploys, s)
	}
}

// gatherNewest puts the newest build of each wheel of a source into a folder of their own.
func (n *night) gatherNewest(ctx context.Context, units []*nightWheel, source string) (string, error) {
	dir := filepath.Join(n.Dir, currentName)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	found := false
	for _, u := range units {
		b := n.state.newestBuild(u.name)
		if u.source.Name != source || b == nil {
			continue
		}
		p, ok, err := pipeline.Placed(filepath.Dir(n.state.buildPath(u.name, *b)), b.Plan)
		if err == nil && !ok {
			err = fmt.Errorf("%s has changed", n.state.buildPath(u.name, *b))
		}
		if err == nil {
			_, err = pipeline.Place(ctx, p, dir)
		}
		if err != nil {
			return "", err
		}
		found = true
	}
	if !found {
		return "", fmt.Errorf("there is no wheel of %s", source)
	}
	return dir, nil
}

// writeResult writes the report, remembers the night, and removes old builds.
func (n *night) writeResult() error {
	r := n.report
	r.Ended = n.Now()
	r.countResults()
	was := past{ID: r.ID, Started: r.Started, Good: r.Good, Entries: map[string]pastWork{}}
	for _, e := range r.Entries {
		w := pastWork{Status: e.Status, Seconds: e.Seconds}
		if e.Build != nil {
			w.Size = e.Build.Size
		}
		was.Entries[e.Name] = w
	}
	n.state.Nights = slices.Concat([]past{was}, n.state.Nights)
	n.state.Nights = n.state.Nights[:min(len(n.state.Nights), maxNights)]
	n.state.Running, n.state.RunningAt = "", time.Time{}
	if err := n.state.saveFile(); err != nil {
		return err
	}
	var err error
	if r.Pruned, err = n.state.removeUnknown(); err != nil {
		return err
	}
	return r.writeFiles(n.state.Nights)
}
