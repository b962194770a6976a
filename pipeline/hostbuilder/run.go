package hostbuilder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/internal/filelock"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// run is one run of a plan; it is a pipeline.Workspace. Its own files are in two directories that
// no other user can enter: dir, on the file system of the environments, and scratch, in TMPDIR.
type run struct {
	*Builder
	pipeline.Work
	plan *pipeline.Plan

	dir     string
	scratch string
	bin     string                   // programs of this run
	python  string                   // the interpreter to make environments with
	entries map[pipeline.Image]entry // of Toolchain, which has the environment of Runtime too, and of further parts
	outputs map[string]string        // directories of the steps' outputs
	mu      sync.Mutex               // for outputs
	closers []func()                 // in the order in which they came
}

// openDirs makes the run's own directories and has the environments made.
func (r *run) openDirs(ctx context.Context) error {
	python := r.plan.Toolchain().Python
	at := slices.IndexFunc(r.host.Interpreters, func(i pipeline.Interpreter) bool { return i.Minor() == python })
	if at < 0 {
		return missing(part{"Python " + python, "module load python/" + python + ", or --env PYTHON"})
	}
	r.python = r.host.Interpreters[at].Path
	err := r.ownDir(ctx)
	if err != nil {
		return err
	}
	if tmp := parseEnviron(r.opt.Environ)["TMPDIR"]; tmp != "" {
		own, err := scratch.New(tmp)
		if err != nil {
			return fmt.Errorf("TMPDIR: %w", err)
		}
		r.closers = append(r.closers, func() { r.warnIfLeft(own.Path, own.Close()) })
		if r.scratch, err = filepath.Abs(own.Path); err != nil {
			return err
		}
	} else if r.scratch, err = r.makeDir("tmp"); err != nil {
		return err
	}
	// It holds passwords.
	if err := os.WriteFile(r.siteFile(), []byte(r.opt.Network.Script()), 0o600); err != nil {
		return err
	}
	if err := r.linkCompilers(); err != nil {
		return err
	}
	return r.prepareEnvironments(ctx)
}

// siteFile returns the file from which scripts read the settings of the site.
func (r *run) siteFile() string { return filepath.Join(r.dir, "site") }

// ownDir makes the run's directory and locks it for as long as the run lives. It removes the
// directories of runs that were killed. It is removed with the run.
func (r *run) ownDir(ctx context.Context) error {
	unlock, err := filelock.Take(ctx, filepath.Join(r.opt.Dir, "runs.lock"), filelock.Options{Wait: buildWait})
	if err != nil {
		return err
	}
	defer unlock()
	left, _ := fs.Glob(os.DirFS(r.opt.Dir), runPrefix+"*/"+lockName) // the pattern is right
	for _, lock := range left {
		lock = filepath.Join(r.opt.Dir, lock)
		if unlock, err := filelock.Take(ctx, lock, filelock.Options{}); err == nil {
			_ = scratch.RemoveAll(filepath.Dir(lock)) // the next run retries
			unlock()
		}
	}
	dir, err := os.MkdirTemp(r.opt.Dir, runPrefix) // mode 0700: no other user can enter it
	if err != nil {
		return err
	}
	r.closers = append(r.closers, func() { r.warnIfLeft(dir, scratch.RemoveAll(dir)) })
	if r.dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	held, err := filelock.Take(ctx, filepath.Join(r.dir, lockName), filelock.Options{})
	if err == nil {
		r.closers = append(r.closers, held)
	}
	return err
}

// buildWait is how long a build waits for another build on this machine.
const buildWait = 3 * time.Hour

// Names in the builder's directory and in a run's.
const (
	runPrefix = "run-"
	lockName  = "lock"
)

// warnIfLeft warns about a directory that could not be removed, with the reason.
func (r *run) warnIfLeft(dir string, err error) {
	if err != nil {
		r.Report.Warn("cannot remove %s: %v", dir, err)
	}
}

// makeDir makes a directory of the run.
func (r *run) makeDir(elem ...string) (string, error) {
	dir := filepath.Join(append([]string{r.dir}, elem...)...)
	return dir, os.MkdirAll(dir, 0o700)
}

// linkCompilers puts wrappers for the plan's gcc on PATH, under the versioned names that the steps
// use. The gcc of an environment module has only its plain name.
func (r *run) linkCompilers() error {
	var err error
	if r.bin, err = r.makeDir("bin"); err != nil {
		return err
	}
	major := r.plan.Toolchain().GCC
	if major == "" {
		return nil
	}
	for _, c := range r.host.Compilers {
		if c.Major() != major || !c.Complete() {
			continue
		}
		for name, program := range map[string]string{"gcc-" + major: c.CC, "g++-" + major: c.CXX} {
			// A link is not enough: some compilers look for their parts next to it.
			text := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", program)
			if err := os.WriteFile(filepath.Join(r.bin, name), []byte(text), 0o700); err != nil {
				return err
			}
		}
		return nil
	}
	return missing(part{"gcc and g++ " + major, "module load gcc/" + major + ", or install g++-" + major})
}

// Close removes all files of the run.
func (r *run) Close() error {
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	r.closers = nil
	return nil
}

// Run runs steps of the plan in parallel and keeps their output directories.
func (r *run) Run(ctx context.Context, steps ...pipeline.Step) error {
	all, during := errgroup.WithContext(ctx)
	for _, s := range steps {
		all.Go(func() error {
			return r.reportStep(during, s.Name, s.Title, func(ctx context.Context, out output) error {
				return r.runStep(ctx, s, out)
			})
		})
	}
	if err := all.Wait(); ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

func (r *run) runStep(ctx context.Context, s pipeline.Step, out output) error {
	at, remove, err := r.makeStepDirs(s)
	defer remove()
	r.mu.Lock()
	r.outputs[s.Name] = at.Out
	inputs := maps.Clone(r.outputs)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	e, further := r.entries[s.Image]
	if !further {
		e = r.entries[pipeline.Toolchain]
	}
	env := toolchainEnv
	if s.Image == pipeline.Runtime {
		// A step in the runtime image gets its own environment, so that the next step does not see
		// the packages it installs. Headers, half of the files, are one symbolic link: a hard link
		// would change their times, by which cached objects recognise them.
		env = filepath.Join(r.dir, s.Name, "env")
		if err := linkTree(ctx, e.path(runtimeEnv), env, "include"); err != nil {
			return err
		}
	}
	for _, in := range s.Inputs {
		if err := os.Symlink(inputs[in], filepath.Join(at.In, in)); err != nil {
			return err
		}
	}
	v, err := r.stepEnv(s, at, e, env)
	if err != nil {
		return err
	}
	return out.run(ctx, process{argv: s.Command(at.Tools), dir: at.Work, env: v.environ()})
}

// makeStepDirs makes the directories of a step, with its scripts. remove removes all of them except
// its output.
func (r *run) makeStepDirs(s pipeline.Step) (at pipeline.Places, remove func(), err error) {
	root, work := filepath.Join(r.dir, s.Name), filepath.Join(r.scratch, "work-"+s.Name)
	at = pipeline.Places{
		Tools: filepath.Join(root, "tools"), In: filepath.Join(root, "in"), Out: filepath.Join(r.dir, "out", s.Name),
		Work: work, Cache: filepath.Join(r.opt.Dir, "objects"),
	}
	remove = func() {
		_ = scratch.RemoveAll(root) // the end of the run removes the rest
		_ = scratch.RemoveAll(work)
	}
	for _, dir := range []string{at.In, at.Out, at.Work, at.Cache, filepath.Join(root, "home")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return at, remove, err
		}
	}
	files := map[string]string{}
	for _, name := range s.AllScripts() {
		files[name] = r.plan.Scripts[name]
	}
	return at, remove, writeFiles(at.Tools, files)
}

// stepEnv returns the environment of a step. It is clean, and only its paths differ from those in
// an image.
func (r *run) stepEnv(s pipeline.Step, at pipeline.Places, e entry, env string) (variables, error) {
	v := cleanEnvironment(r.opt.Environ)
	if s.Network || s.Compile {
		v["DSBUILD_SITE"] = r.siteFile()
	}
	if s.Network {
		v.addSiteVariables(r.opt.Environ)
	} else {
		// Libraries keep caches and settings in the home.
		v["HOME"] = filepath.Join(filepath.Dir(at.Tools), "home")
	}
	tmp := filepath.Join(at.Work, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	v.setAll(r.placeVariables(e, env)).setAll(at.Env(s)).setAll(s.Env)
	v.setAll(map[string]string{"TMPDIR": tmp, "UV_CACHE_DIR": r.downloadsDir(), "UV_LINK_MODE": "hardlink"})
	if slices.Contains(s.AllScripts(), "strip.py") { // it lists the packages
		v["DSBUILD_PROGRAMS"] = strings.Join(r.programs(e, env), ":")
	}
	if s.Compile {
		n := r.Jobs
		switch {
		case n > 0:
		case s.Script == pipeline.CompileScript: // it counts memory itself, job by job
			n = runtime.GOMAXPROCS(0)
		default:
			n = pipeline.CompileJobs()
		}
		v["MAX_JOBS"] = strconv.Itoa(n)
	}
	if r.NoCache && !s.Network {
		v["CCACHE_RECACHE"] = "1"
	}
	return v, nil
}

// programs lists this machine's programs that build. The wheel's SBOM lists the packages that contain
// them, and these packages' dependencies.
func (r *run) programs(e entry, env string) []string {
	v := r.placeVariables(e, env)
	all := []string{r.python}
	for _, c := range r.host.Compilers {
		if c.Major() == r.plan.Toolchain().GCC && c.Complete() {
			all = append(all, c.CC, c.CXX)
		}
	}
	for _, name := range []string{"gcc", "g++", "as", "ld", "strip", "nvcc", "patch"} {
		if path, err := lookPath(name, v.environ()); err == nil {
			all = append(all, path)
		}
	}
	return all
}

// Export copies the output of a step to dir.
func (r *run) Export(_ context.Context, step, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(r.outputs[step])); err != nil {
		return fmt.Errorf("export of step %s: %w", step, err)
	}
	return nil
}

// Import makes dir the output of a step.
func (r *run) Import(step, dir string) error {
	dir, err := filepath.Abs(dir)
	r.outputs[step] = dir
	return err
}

// output receives the output of a step's programs.
type output struct {
	stdout, stderr *stream
}

// run runs a program and writes its output to o.
func (o output) run(ctx context.Context, p process) error {
	p.stdout, p.stderr = o.stdout, o.stderr
	return p.run(ctx)
}

// reportStep runs one step and reports it: it shows and logs the step's lines, takes its time,
// and explains its failure.
func (r *run) reportStep(ctx context.Context, name, title string, do func(context.Context, output) error) error {
	shown := r.Report.Step(name + ": " + title)
	fmt.Fprintf(r.Log, "== %s: %s\n", name, title)
	out := output{&stream{log: r.Log, step: shown}, &stream{log: r.Log, step: shown}}
	err := do(ctx, out)
	out.stdout.flushLine()
	out.stderr.flushLine()
	switch {
	case ctx.Err() != nil:
		shown.End(ui.Failed, "interrupted")
		return context.Cause(ctx)
	case err != nil:
		shown.End(ui.Failed, "")
		tail := ""
		var exit *exec.ExitError
		ran := errors.As(err, &exit)
		if ran {
			err = errors.New(strings.Replace(exit.String(), "exit status", "exit code", 1))
			tail = pipeline.FailureLines(out.stdout.keptText(), out.stderr.keptText())
		}
		fmt.Fprintln(r.Log, err)
		return pipeline.StepFailed(name, err, ran, tail)
	}
	shown.End(ui.Done, "")
	return nil
}
