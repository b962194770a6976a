package pipeline

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Runner builds the wheels of plans. If the store does not have a wheel, a builder builds it, and
// the runner audits it.
type Runner struct {
	Store   Store
	Dir     string // output directory (-o)
	Logs    string // directory of build logs
	Version string // dsbuild's own, for the manifest
	Jobs    int    // compile jobs (default: one per core)
	NoCache bool   // ignore the store, recompile and retest
	// Builder is called only when something has to be built.
	Builder func(context.Context) (Builder, error)
	Report  ui.Reporter
	Network Network // its secrets are removed from messages and files

	// Sign signs the wheel at path once it is in Dir. It may be nil.
	Sign func(path string) error

	claim func(name string) error // of RunAll: reserves a file name in Dir
}

// Run returns the wheel of a plan.
func (r Runner) Run(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	r.Report = r.Network.Reporter(r.Report)
	a, err := r.runPlan(ctx, p)
	if err == nil && r.Sign != nil {
		err = SignExported(ctx, a.Path, r.Sign)
	}
	return a, r.Network.Error(err)
}

// SignExported signs an exported wheel, if it matches its own metadata, and adds the signature to the directory's
// SHA256SUMS.
func SignExported(ctx context.Context, path string, sign func(path string) error) error {
	v, err := wheel.Verify(ctx, path)
	if err == nil {
		err = v.Err()
	}
	if err == nil {
		err = sign(path)
	}
	if err != nil {
		return fault.AddHint(fmt.Errorf("the wheel is in %s, but not signed: %w", filepath.Dir(path), err), fault.Hint(err))
	}
	return UpdateSums(ctx, path)
}

func (r Runner) runPlan(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	start := time.Now()
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return wheel.Artifact{}, fault.WithHint(fmt.Errorf("output directory: %w", err),
			"choose a writable directory: -o DIR")
	}
	if !r.NoCache {
		var a wheel.Artifact
		ok, err := r.Store.withStoredWheel(ctx, p.Digest, p.audit, func(kept StoredWheel) (err error) {
			// The cached wheel may have been built for newer nodes.
			if findings := wheel.AuditTags(kept.Manifest.Name, p.Toolchain().Glibc); len(findings) > 0 {
				return wheel.MismatchError(kept.Manifest.Name, findings)
			}
			a, err = r.placeWheel(ctx, kept)
			return err
		})
		if err != nil {
			return a, err
		}
		if ok {
			r.Report.Step("wheel: cache hit, plan "+p.Digest[:12]).End(ui.Cached, "")
			a.Cached, a.Seconds = true, time.Since(start).Seconds()
			return a, nil
		}
	}
	a, err := r.buildWheel(ctx, p)
	a.Seconds = time.Since(start).Seconds()
	return a, err
}

func (r Runner) buildWheel(ctx context.Context, p *Plan) (wheel.Artifact, error) {
	tmp, err := scratch.New("")
	if err != nil {
		return wheel.Artifact{}, err
	}
	defer tmp.Close()
	r.Report.Note("building %s", p.line())
	b := &build{plan: p, dir: tmp.Path, started: time.Now(), rep: r.Report}
	builder, err := r.withWorkspace(ctx, p, func(space Workspace, log io.Writer) error {
		b.log = log
		return b.run(ctx, space)
	})
	if err != nil {
		return wheel.Artifact{}, err
	}
	// Complete the manifest, write the provenance statement, put all files into the output
	// directory and keep them in the store.
	m, err := wheel.ReadManifest(b.wheel)
	if err != nil {
		return wheel.Artifact{}, err
	}
	now := time.Now().UTC().Truncate(time.Second)
	m.Builder, m.Dsbuild, m.BuiltAt = builder, r.Version, &now
	facts := b.facts
	if facts.Record, err = wheel.RecordSum(b.wheel); err != nil {
		return wheel.Artifact{}, err
	}
	statement, err := wheel.Provenance(m, facts, b.started, now)
	if err != nil {
		return wheel.Artifact{}, err
	}
	a, err := r.placeWheel(ctx, StoredWheel{File: b.wheel, Manifest: m, Provenance: statement})
	if err != nil {
		return a, err
	}
	if err := r.Store.Put(ctx, b.plan.Digest, a); err != nil {
		r.Report.Warn("the wheel is in %s, but could not be cached: %v", r.Dir, err)
	}
	return a, nil
}

// withWorkspace opens the workspace of a plan, with its own log, until use returns. It returns the
// name of the builder.
func (r Runner) withWorkspace(ctx context.Context, p *Plan, use func(Workspace, io.Writer) error) (string, error) {
	builder, err := r.Builder(ctx)
	if err != nil {
		return "", err
	}
	file, err := createLog(r.Logs, p)
	if err != nil {
		return "", err
	}
	defer file.Close()
	err = func() error {
		log := r.Network.Log(file)
		space, err := builder.Open(ctx, p, Work{r.Jobs, r.NoCache, log, r.Report})
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
		// Add the log's path to the error's hint.
		log := file.Name()
		where := "full log: " + log
		if advice := fault.Hint(err); advice != "" {
			where = advice + "; " + where
		}
		return "", fault.WithHint(err, "%s", where)
	}
	return builder.Name(), nil
}

// placeWheel writes a finished wheel to the output directory.
func (r Runner) placeWheel(ctx context.Context, w StoredWheel) (wheel.Artifact, error) {
	if r.claim != nil {
		if err := r.claim(w.Manifest.Name); err != nil {
			return wheel.Artifact{}, err
		}
	}
	return Export(ctx, w, r.Dir)
}

// DefaultLogs returns the directory of the user's build logs.
func DefaultLogs() string { return filepath.Join(xdg.StateHome, "dsbuild", "logs") }

// keptLogs is the number of kept build logs, each of up to a few megabytes.
const keptLogs = 200

// createLog opens the file that keeps all output of one build, and removes the oldest of these files.
func createLog(dir string, p *Plan) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	old, _ := filepath.Glob(filepath.Join(dir, "wheel-*.log"))
	for _, log := range LeastRecentlyUsed(old, keptLogs-1) {
		_ = os.Remove(log) // the next build retries
	}
	return os.CreateTemp(dir, fmt.Sprintf("wheel-%s-*-%s.log", time.Now().UTC().Format("20060102T150405"), p.Digest[:12]))
}
