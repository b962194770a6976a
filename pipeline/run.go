package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Runner makes wheels of plans: from the store where it has them, else by a
// builder, audited.
type Runner struct {
	Store   Store
	Dir     string // where wheels are put (-o)
	Logs    string // where the logs of builds are kept
	Version string // dsbuild's own, for the manifest
	// Builder is asked for only when something has to be built.
	Builder func(context.Context) (Builder, error)
	Report  ui.Reporter
	Site    Site // whose secrets are kept out of all that is said and written

	claim func(name string) error // asked before a wheel of this name is put into Dir
}

// Run returns the wheel of a plan.
func (r Runner) Run(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	r.Report = r.Site.Reporter(r.Report)
	a, err := r.run(ctx, p)
	return a, r.Site.Error(err)
}

func (r Runner) run(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	start := time.Now()
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return wheel.Artifact{}, hint.With(fmt.Errorf("output directory: %w", err), "choose a folder that you may write: -o DIR")
	}
	if !p.Options.NoCache {
		a, ok, err := r.Store.get(p.Digest, func(kept Product) (wheel.Artifact, error) {
			// The same wheel, which may have been asked for newer nodes.
			if findings := wheel.AuditTags(kept.Manifest.Name, p.Toolchain.Glibc); len(findings) > 0 {
				return wheel.Artifact{}, wheel.NotAsked(kept.Manifest.Name, findings)
			}
			return r.place(kept)
		})
		if err != nil {
			return a, err
		}
		if ok {
			r.Report.Step("wheel: from the store, plan "+p.Digest[:12]).End(ui.Cached, "")
			a.Seconds = time.Since(start).Seconds()
			return a, nil
		}
	}
	a, err := r.build(ctx, p)
	a.Seconds = time.Since(start).Seconds()
	return a, err
}

func (r Runner) build(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	tmp, err := scratch.New("")
	if err != nil {
		return wheel.Artifact{}, err
	}
	defer tmp.Close()
	b := &build{plan: p, dir: tmp.Path, started: time.Now(), rep: r.Report}
	builder, err := r.within(ctx, p, func(space Workspace, log io.Writer) error {
		b.log = log
		return b.run(ctx, space)
	})
	if err != nil {
		return wheel.Artifact{}, err
	}
	return r.finish(b, builder)
}

// within opens the workspace of a plan, with a log of its own, for as long as
// use takes. It returns the name of the builder.
func (r Runner) within(ctx context.Context, p *Plan, use func(Workspace, io.Writer) error) (string, error) {
	builder, err := r.Builder(ctx)
	if err != nil {
		return "", err
	}
	if err := r.space(ctx, builder, p); err != nil {
		return "", err
	}
	file, err := createLog(r.Logs, p)
	if err != nil {
		return "", err
	}
	defer file.Close()
	err = func() error {
		log := r.Site.Log(file)
		space, err := builder.Open(ctx, p, log, r.Report)
		if err != nil {
			return err
		}
		if held, ok := space.(io.Closer); ok {
			defer held.Close()
		}
		return use(space, log)
	}()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", addLogHint(err, file.Name())
	}
	return builder.Name(), nil
}

// addLogHint adds the log's place to what the error itself advises.
func addLogHint(err error, log string) error {
	where := "the whole log is in " + log
	if advice := hint.Of(err); advice != "" {
		where = advice + "; " + where
	}
	return hint.With(err, "%s", where)
}

// space refuses a build for which there is no room.
func (r Runner) space(ctx context.Context, builder Builder, p *Plan) error {
	rooms := OwnRooms(r.Dir, r.Store.Dir)
	if b, ok := builder.(Roomer); ok {
		rooms = append(rooms, b.Rooms(ctx, p)...)
	}
	return CheckSpace(rooms, r.Report)
}

// finish completes the manifest, writes the statement of where the wheel comes
// from, puts all where it is wanted and keeps it in the store.
func (r Runner) finish(b *build, builder string) (wheel.Artifact, error) {
	m, err := wheel.ReadManifest(b.wheel)
	if err != nil {
		return wheel.Artifact{}, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	m.Builder, m.Dsbuild, m.BuiltAt = builder, r.Version, &now
	statement, err := wheel.Provenance(m, b.facts, b.started, now)
	if err != nil {
		return wheel.Artifact{}, err
	}
	a, err := r.place(Product{File: b.wheel, Manifest: m, Provenance: statement})
	if err != nil {
		return a, err
	}
	if err := r.Store.Put(b.plan.Digest, a); err != nil {
		r.Report.Warn("the wheel is in %s, but not in the store: %v", r.Dir, err)
	}
	return a, nil
}

// place puts a finished wheel where it is wanted.
func (r Runner) place(p Product) (wheel.Artifact, error) {
	if r.claim != nil {
		if err := r.claim(p.Manifest.Name); err != nil {
			return wheel.Artifact{}, err
		}
	}
	return Place(p, r.Dir)
}

// DefaultLogs is where the user's build logs are kept.
func DefaultLogs() string { return filepath.Join(xdg.StateHome, "dsbuild", "logs") }

// createLog opens the file that keeps all output of one build.
func createLog(dir string, p *Plan) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("wheel-%s-%s.log", time.Now().UTC().Format("20060102T150405"), p.Digest[:12])
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return os.CreateTemp(dir, "wheel-*-"+p.Digest[:12]+".log")
	}
	return f, err
}
