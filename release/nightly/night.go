// Package nightly runs unattended. Each night it builds the wheels of a file from
// the newest sources where anything has changed, keeps and publishes them in an
// index, deploys them to a canary and then to the other nodes, and writes a report.
//
// A directory holds the state between nights. The next run resumes a run that was
// killed, with the wheels that were already built.
package nightly

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/filelock"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/index"
	"github.com/dsbuild/dsbuild/wheel"
)

// Planner turns requests for wheels of one source into plans (planner.Planner).
type Planner interface {
	// Sketch makes the part of the plan that needs no engine, with its cache key.
	Sketch(ctx context.Context, r wheel.Request) (*pipeline.Plan, error)
	// Plan makes the complete plan. Its messages are prefixed with name.
	Plan(ctx context.Context, name string, r wheel.Request) (*pipeline.Plan, error)
}

// Options are the settings of a night.
type Options struct {
	Config
	// Open opens a source, a value of --deepspeed. The planner stays open until the night ends.
	Open func(ctx context.Context, source string) (Planner, error)
	// Build runs plans and puts the wheels into dir. It calls done with each result as soon as it exists
	// (pipeline.Runner.RunAll).
	Build func(ctx context.Context, dir string, plans []*pipeline.Plan, done func(pipeline.Result))
	// Sign signs the wheel at path, as Build does with the wheels it builds. It is nil if nothing is signed.
	Sign func(path string) error
	// Deploy installs the wheels of dir on the nodes of limit and writes its reports to report plus a
	// suffix. Then it runs the gate, if any, on these nodes. Deploy is nil if the night deploys nothing.
	Deploy func(ctx context.Context, dir, limit, report, gate string) (Nodes, error)
	// Store is the wheel cache.
	Store  pipeline.Store
	Report ui.Reporter
	Now    func() time.Time
	By     string // who runs it, and where
}

// night is one run. Its steps update the report and the state in turn.
type night struct {
	Options
	state   *state
	report  *Report
	units   []*unit
	plans   []*pipeline.Plan // of the wheels that are missing
	current string           // the directory of the wheels to deploy, once it exists
}

// unit is a wheel of the night: an entry built from a source.
type unit struct {
	name   string
	entry  Entry
	source Source
	key    string // in the store
	report *EntryReport
}

// Run runs a night. It returns a report once the night has begun, and writes it into the
// directory. The error has the exit code. The next run continues a night that ctx interrupted.
func Run(ctx context.Context, opt Options) (*Report, error) {
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return nil, err
	}
	release, err := lockFolder(ctx, opt.Dir)
	if err != nil {
		return nil, err
	}
	defer release()
	st, err := loadState(opt.Dir)
	if err != nil {
		return nil, fault.WithHint(err, "delete the file to start over; every wheel is then treated as new")
	}
	n := &night{Options: opt, state: st}
	if err := n.begin(); err != nil {
		return nil, err
	}
	// The failure of a wheel or a node is recorded in the report and does not stop the night. An error of a
	// step does.
	for _, step := range []func(context.Context) error{n.plan, n.build, n.index, n.canary, n.rest, n.finish} {
		err := step(ctx)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return n.report, err
		}
	}
	return n.report, n.report.Err()
}

// lockFolder locks the directory until the process ends.
func lockFolder(ctx context.Context, dir string) (release func(), err error) {
	release, err = filelock.Take(ctx, filepath.Join(dir, lockName), filelock.Options{})
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		err = fmt.Errorf("%s is in use by another dsbuild nightly: %s", dir, held.Holder)
		return nil, fault.WithHint(err, "wait until it completes, or set a different dir for each configuration")
	}
	return release, err
}

// begin starts a night, or resumes an interrupted one, and lists its wheels.
func (n *night) begin() error {
	now := n.Now()
	n.report = &Report{
		ID: now.UTC().Format("20060102T150405Z"), Started: now, Dir: n.Dir, By: n.By,
		Entries: []*EntryReport{}, Deploys: []DeployReport{},
	}
	if n.state.Running != "" {
		n.report.ID, n.report.Started, n.report.Resumed = n.state.Running, n.state.RunningAt, true
		n.Options.Report.Note("continuing the interrupted run of %s", n.state.RunningAt.Format(time.RFC3339))
	}
	n.state.Running, n.state.RunningAt = n.report.ID, n.report.Started
	for _, s := range n.Sources {
		for _, e := range n.Entries {
			name := e.Name + "@" + s.Name
			r := &EntryReport{Name: name, Wheel: e.Name, Source: s.Name, Changes: []string{}}
			for _, b := range n.state.Builds[name] {
				if b.Night != n.report.ID {
					r.Before = &b
					break
				}
			}
			n.report.Entries = append(n.report.Entries, r)
			n.units = append(n.units, &unit{name: name, entry: e, source: s, report: r})
		}
	}
	return n.state.saveFile()
}

// plan finds the wheels that have changed, and plans them. A wheel that cannot be planned fails alone.
func (n *night) plan(ctx context.Context) error {
	for _, s := range n.Sources {
		plans, err := n.Open(ctx, cmp.Or(s.DeepSpeed, compat.Latest))
		for _, u := range n.units {
			if u.source.Name != s.Name {
				continue
			}
			if err == nil {
				n.planUnit(ctx, plans, u)
			} else {
				u.report.fail(err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// planUnit plans a wheel unless a finished wheel can be used.
func (n *night) planUnit(ctx context.Context, plans Planner, u *unit) {
	sketch, err := plans.Sketch(ctx, u.entry.Request)
	if err != nil {
		u.report.fail(err)
		return
	}
	u.key = sketch.Key
	if n.keepUnchanged(ctx, u, sketch.Key, sketch.Digest) || n.takeFromStore(ctx, u, sketch) {
		return
	}
	p, err := plans.Plan(ctx, u.name, u.entry.Request)
	switch {
	case err != nil:
		u.report.fail(err)
	case !n.keepUnchanged(ctx, u, "", p.Digest):
		p.Key = u.key
		n.plans = append(n.plans, p)
	}
}

// keepUnchanged uses a kept build with an equal plan, if any.
func (n *night) keepUnchanged(ctx context.Context, u *unit, request, plan string) bool {
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

// reportKept reports a kept build. An unsigned build, from the cache or from a night that could not
// sign it, is signed first.
func (n *night) reportKept(ctx context.Context, u *unit, b Build, status Status) {
	if n.Sign != nil {
		path := n.state.buildPath(u.name, b)
		signatures, err := wheel.SignatureFiles(path)
		if err == nil && len(signatures) == 0 {
			err = pipeline.SignExported(ctx, path, n.Sign)
		}
		if err != nil {
			u.report.fail(err)
			return
		}
	}
	u.report.recordBuild(b, status)
}

// takeFromStore uses a cached wheel of an equal plan. A cache that cannot be read is empty.
func (n *night) takeFromStore(ctx context.Context, u *unit, sketch *pipeline.Plan) bool {
	led, _ := n.Store.PlanOf(ctx, u.key)
	for _, digest := range []string{sketch.Digest, led} {
		w, ok, err := n.Store.Find(ctx, sketch, digest)
		if err != nil || !ok || len(wheel.AuditTags(w.Manifest.Name, sketch.Toolchain().Glibc)) > 0 {
			continue
		}
		m := w.Manifest
		a := wheel.Artifact{Path: w.File, SHA256: m.SHA256, Size: m.Size, Cached: true, Manifest: m}
		b, err := n.state.addBuild(ctx, u.name, u.key, n.report.ID, a)
		if err == nil { // it may have been pruned meanwhile
			n.reportKept(ctx, u, b, Stored)
			return true
		}
	}
	return false
}

// build runs the plans and keeps each wheel as soon as it is built. Then it drops the oldest builds.
func (n *night) build(ctx context.Context) error {
	units := map[string]*unit{}
	var names []string
	for _, u := range n.units {
		units[u.name], names = u, append(names, u.name)
	}
	staging := filepath.Join(n.Dir, stagingName)
	if len(n.plans) > 0 {
		n.Build(ctx, staging, n.plans, func(r pipeline.Result) { n.recordBuild(ctx, units[r.Plan.Name], r) })
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	n.state.dropOldBuilds(names, n.Keep)
	if err := os.RemoveAll(staging); err != nil {
		n.Options.Report.Warn("cannot remove the files of this night's builds: %v", err)
	}
	return nil
}

// recordBuild keeps a build or records its failure.
func (n *night) recordBuild(ctx context.Context, u *unit, r pipeline.Result) {
	if r.Err != nil {
		u.report.fail(r.Err)
		return
	}
	b, err := n.state.addBuild(ctx, u.name, u.key, n.report.ID, r.Artifact)
	if err != nil {
		u.report.fail(err)
		return
	}
	status := Built
	if r.Artifact.Cached {
		status = Stored
	}
	u.report.recordBuild(b, status)
}

// index writes the index of all kept wheels.
func (n *night) index(ctx context.Context) error {
	if n.Index == nil {
		return nil
	}
	files := n.state.wheelFiles()
	r := &PublishReport{Dir: n.Index.Dir, URL: n.Index.URL, Wheels: len(files)}
	n.report.Publish = r
	if len(files) == 0 {
		r.Status = Skipped
		return nil
	}
	step := n.Options.Report.Step("index")
	sum, err := index.Write(ctx, index.Options{Dir: n.Index.Dir, Wheels: files, URL: n.Index.URL})
	if err != nil {
		step.End(ui.Failed, "")
		r.fail(err)
		return nil //nolint:nilerr // the report has it
	}
	step.End(ui.Done, fmt.Sprintf("%d wheels in %d indexes", len(files), len(sum.Indexes)))
	r.Status, r.Written, r.Removed = Done, sum.Written, sum.Removed
	if sum.Written+sum.Removed == 0 {
		r.Status = Unchanged
	}
	return nil
}

// canary deploys the newest wheels to the canary nodes, if any.
func (n *night) canary(ctx context.Context) error {
	if d := n.Config.Deploy; d != nil && d.Canary != "" {
		n.deploy(ctx, DeployReport{Name: "canary", Limit: d.Canary}, d.Gate)
	}
	return nil
}

// rest deploys the newest wheels to all nodes.
func (n *night) rest(ctx context.Context) error {
	if d := n.Config.Deploy; d != nil {
		n.deploy(ctx, DeployReport{Name: "nodes", Limit: d.Limit}, "")
	}
	return nil
}

// deploy deploys the newest wheels of one source to some nodes, unless an earlier deploy failed.
func (n *night) deploy(ctx context.Context, r DeployReport, gate string) {
	if len(n.report.Deploys) > 0 && n.report.Deploys[0].Status != Done {
		r.Status, r.Error = Skipped, "an earlier step failed"
	} else if err := n.gatherNewest(ctx); err != nil {
		r.fail(err)
	} else {
		start := n.Now()
		r.Report, r.Status = filepath.Join(n.Dir, runsName, n.report.ID, r.Name), Done
		r.Nodes, err = n.Options.Deploy(ctx, n.current, r.Limit, r.Report, gate)
		r.Seconds = n.Now().Sub(start).Seconds()
		if err != nil {
			r.fail(err)
		}
	}
	n.report.Deploys = append(n.report.Deploys, r)
}

// gatherNewest copies the newest build of each wheel of the deployed source into a separate directory, once.
func (n *night) gatherNewest(ctx context.Context) error {
	if n.current != "" {
		return nil
	}
	dir, source := filepath.Join(n.Dir, currentName), n.Config.Deploy.Source
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, u := range n.units {
		builds := n.state.Builds[u.name]
		if u.source.Name != source || len(builds) == 0 {
			continue
		}
		file := n.state.buildPath(u.name, builds[0])
		w, ok, err := pipeline.FindExported(filepath.Dir(file), builds[0].Plan)
		if err == nil && !ok {
			err = fmt.Errorf("%s has changed", file)
		}
		if err == nil {
			_, err = pipeline.Export(ctx, w, dir)
		}
		if err != nil {
			return err
		}
		n.current = dir
	}
	if n.current == "" {
		return fmt.Errorf("no wheel was built from %s", source)
	}
	return nil
}

// finish ends the night, removes old builds, and writes the report.
func (n *night) finish(context.Context) error {
	r := n.report
	r.Ended = n.Now()
	r.countResults()
	n.state.Running, n.state.RunningAt = "", time.Time{}
	if err := n.state.saveFile(); err != nil {
		return err
	}
	var err error
	r.Pruned, err = n.state.removeUnknown()
	return errors.Join(err, r.writeFiles())
}
