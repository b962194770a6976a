package hostbuilder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// run is one plan being run; it is a pipeline.Workspace. All it has of its own
// lies in two directories that no other user can enter: dir, on the file system
// of the environments, and scratch, where TMPDIR is.
type run struct {
	*Builder
	plan *pipeline.Plan
	log  io.Writer
	rep  ui.Reporter

	dir     string
	scratch string
	bin     string // programs of this run
	python  string // the interpreter to make environments with
	entry   entry
	outputs map[string]string // directories of the steps' outputs
	begun   map[string]*ahead // steps that wait for their inputs
	tidying sync.WaitGroup    // what is done while the next step runs
	closers []func()          // in the order in which they came
}

// open makes the run's own directories and has the environments made.
func (r *run) open(ctx context.Context) error {
	var err error
	if r.python, err = r.interpreter(r.plan.Toolchain.Python); err != nil {
		return err
	}
	if err := r.ownDir(ctx); err != nil {
		return err
	}
	if tmp := read(r.opt.Environ)["TMPDIR"]; tmp != "" {
		own, err := scratch.New(tmp)
		if err != nil {
			return fmt.Errorf("TMPDIR: %w", err)
		}
		r.closers = append(r.closers, func() { r.closed(own.Path, own.Close()) })
		if r.scratch, err = filepath.Abs(own.Path); err != nil {
			return err
		}
	} else if r.scratch, err = r.made("tmp"); err != nil {
		return err
	}
	// It holds passwords.
	if err := os.WriteFile(r.site(), []byte(r.opt.Site.Script()), 0o600); err != nil {
		return err
	}
	if err := r.compilers(); err != nil {
		return err
	}
	return r.environments(ctx)
}

// site is the file that scripts read the settings of the site from.
func (r *run) site() string { return filepath.Join(r.dir, "site") }

// ownDir makes the run's directory, locked for as long as the run lives, and
// removes those of runs that were ended with no chance to tidy up.
func (r *run) ownDir(ctx context.Context) error {
	unlock, err := waitLock(ctx, filepath.Join(r.opt.Dir, "runs.lock"), alone, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	left, _ := filepath.Glob(filepath.Join(r.opt.Dir, runPrefix+"*", lockName))
	for _, lock := range left {
		if unlock, err := tryLock(lock, alone); err == nil {
			_ = scratch.RemoveAll(filepath.Dir(lock)) // the next run tries again
			unlock()
		}
	}
	if r.dir, err = r.private(r.opt.Dir, runPrefix); err != nil {
		return err
	}
	held, err := tryLock(filepath.Join(r.dir, lockName), alone)
	if err == nil {
		r.closers = append(r.closers, held)
	}
	return err
}

// Names in the builder's directory and in a run's.
const (
	runPrefix = "run-"
	lockName  = "lock"
)

// private makes a directory that ends with the run and that nobody else enters.
func (r *run) private(parent, prefix string) (string, error) {
	dir, err := os.MkdirTemp(parent, prefix) // mode 0700
	if err != nil {
		return "", err
	}
	r.closers = append(r.closers, func() { r.closed(dir, scratch.RemoveAll(dir)) })
	return filepath.Abs(dir)
}

// closed says of a directory that should be gone why it is not.
func (r *run) closed(dir string, err error) {
	if err != nil {
		r.rep.Warn("%s stays: %v", dir, err)
	}
}

// made makes a directory of the run.
func (r *run) made(elem ...string) (string, error) {
	dir := filepath.Join(append([]string{r.dir}, elem...)...)
	return dir, os.MkdirAll(dir, 0o700)
}

// compilers puts the gcc that the plan calls for on PATH, under the name by
// which the steps know it, where it is the plain gcc: a module's has no other.
func (r *run) compilers() error {
	var err error
	if r.bin, err = r.made("bin"); err != nil {
		return err
	}
	major := r.plan.Toolchain.GCC
	if major == "" {
		return nil
	}
	for _, c := range r.ground.Compilers {
		if c.Major() != major || !c.Complete() {
			continue
		}
		for name, program := range map[string]string{"gcc-" + major: c.CC, "g++-" + major: c.CXX} {
			// A link would not do: some compilers look for their parts beside it.
			text := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", program)
			if err := os.WriteFile(filepath.Join(r.bin, name), []byte(text), 0o700); err != nil {
				return err
			}
		}
		return nil
	}
	return &MissingError{Parts: []Part{{What: "gcc and g++ " + major, Try: "module load gcc/" + major + ", or install g++-" + major}}}
}

// Close removes all that is the run's own.
func (r *run) Close() error {
	for _, a := range r.begun {
		a.stop()
	}
	r.tidying.Wait()
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	r.closers = nil
	return nil
}

// Run runs one step of the plan and keeps its output directory.
func (r *run) Run(ctx context.Context, s pipeline.Step) error {
	key := ""
	if s.Repeats() {
		var err error
		if key, err = r.stepKey(s); err != nil {
			return fmt.Errorf("step %s: %w", s.Name, err)
		}
		if out := r.outDir(s); (s.Network || !r.plan.Options.NoCache) && r.takeStep(ctx, key, out) {
			shown := r.rep.Step(s.Name + ": " + s.Title)
			fmt.Fprintf(r.log, "== %s: %s\nfrom an earlier build\n", s.Name, s.Title)
			shown.End(ui.Cached, "")
			r.outputs[s.Name] = out
			return nil
		}
	}
	r.startAhead(ctx, s)
	return r.watch(ctx, s.Name, s.Title, func(ctx context.Context, out output) error {
		at, err := r.do(ctx, s, out)
		if err != nil {
			return err
		}
		r.outputs[s.Name] = at.Out
		if s.Repeats() {
			r.tidying.Go(func() {
				if err := r.keepStep(ctx, key, at.Out); err != nil && ctx.Err() == nil {
					r.rep.Warn("what step %s has made is not kept: %v", s.Name, err)
				}
			})
		}
		return nil
	})
}

// do runs the program of a step, and returns where its places were.
func (r *run) do(ctx context.Context, s pipeline.Step, out output) (pipeline.Places, error) {
	if a := r.begun[s.Name]; a != nil {
		return r.finish(a, s, out)
	}
	j, err := r.lay(ctx, s)
	defer r.tidying.Go(j.done)
	if err == nil {
		err = r.link(s, j.at)
	}
	if err == nil {
		err = out.run(ctx, j.program)
	}
	return j.at, err
}

// lay makes all that a step needs but its inputs.
func (r *run) lay(ctx context.Context, s pipeline.Step) (job, error) {
	at, done, err := r.stepPlaces(s)
	j := job{at: at, done: done}
	if err != nil {
		return j, err
	}
	env := toolchainEnv
	if s.Image == pipeline.Runtime {
		// What a step installs there must not be there for the next. Headers, half of
		// its files, are not its business: another link to one changes its times, by
		// which the objects know that it is the same.
		env = filepath.Join(r.dir, s.Name, "env")
		if err := linkTree(ctx, r.entry.path(runtimeEnv), env, "include"); err != nil {
			return j, err
		}
	}
	v, err := r.stepEnv(s, at, env)
	j.program = process{argv: s.Command(at.Tools), dir: at.Work, env: v.environ()}
	return j, err
}

// link puts the outputs of other steps where a step looks for them.
func (r *run) link(s pipeline.Step, at pipeline.Places) error {
	for _, in := range s.Inputs {
		if err := os.Symlink(r.outputs[in], filepath.Join(at.In, in)); err != nil {
			return err
		}
	}
	return nil
}

// outDir is where a step's output goes.
func (r *run) outDir(s pipeline.Step) string { return filepath.Join(r.dir, "out", s.Name) }

// stepPlaces makes the places of a step, with its scripts. done removes all of them
// but its output.
func (r *run) stepPlaces(s pipeline.Step) (at pipeline.Places, done func(), err error) {
	root, work := filepath.Join(r.dir, s.Name), filepath.Join(r.scratch, "work-"+s.Name)
	at = pipeline.Places{
		Tools: filepath.Join(root, "tools"), In: filepath.Join(root, "in"), Out: r.outDir(s),
		Work: work, Cache: filepath.Join(r.opt.Dir, "objects"),
	}
	done = func() {
		_ = scratch.RemoveAll(root) // what stays goes with the run
		_ = scratch.RemoveAll(work)
	}
	for _, dir := range []string{at.In, at.Out, at.Work, at.Cache, filepath.Join(root, "home")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return at, done, err
		}
	}
	files := map[string]string{}
	for _, name := range s.AllScripts() {
		files[name] = r.plan.Scripts[name]
	}
	return at, done, writeFiles(at.Tools, files)
}

// stepEnv is the environment of a step: clean, and the same as in an image but
// for the places.
func (r *run) stepEnv(s pipeline.Step, at pipeline.Places, env string) (variables, error) {
	v := clean(r.opt.Environ)
	if s.Network || s.Compile {
		v["DSBUILD_SITE"] = r.site()
	}
	if s.Network {
		v.site(r.opt.Environ)
	} else {
		// Libraries keep caches and settings in the home.
		v["HOME"] = filepath.Join(filepath.Dir(at.Tools), "home")
	}
	tmp := filepath.Join(at.Work, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	v.set(r.places(env)).set(at.Env(s)).set(s.Env)
	v.set(map[string]string{"TMPDIR": tmp, "UV_CACHE_DIR": r.downloads(), "UV_LINK_MODE": "hardlink"})
	if s.Compile {
		n := r.plan.Options.Jobs
		switch {
		case n > 0:
		case s.Name == pipeline.CompileStep: // it counts memory itself, job by job
			n = runtime.GOMAXPROCS(0)
		default:
			n = jobs()
		}
		v["MAX_JOBS"] = strconv.Itoa(n)
	}
	if r.plan.Options.NoCache && !s.Network {
		v["CCACHE_RECACHE"] = "1"
	}
	return v, nil
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

// Import takes dir for the output of a step.
func (r *run) Import(step, dir string) error {
	dir, err := filepath.Abs(dir)
	r.outputs[step] = dir
	return err
}

// output is where what a step's programs print goes.
type output struct {
	stdout, stderr *stream
}

// run runs a program with its output there.
func (o output) run(ctx context.Context, p process) error {
	p.stdout, p.stderr = o.stdout, o.stderr
	return p.run(ctx)
}

// watch runs one step under the eyes of the reporter: its lines are shown and
// kept, its time taken, and its failure explained.
func (r *run) watch(ctx context.Context, name, title string, do func(context.Context, output) error) error {
	shown := r.rep.Step(name + ": " + title)
	fmt.Fprintf(r.log, "== %s: %s\n", name, title)
	out := output{&stream{log: r.log, step: shown}, &stream{log: r.log, step: shown}}
	err := do(ctx, out)
	out.stdout.end()
	out.stderr.end()
	switch {
	case ctx.Err() != nil:
		shown.End(ui.Failed, "interrupted")
		return context.Cause(ctx)
	case err != nil:
		shown.End(ui.Failed, "")
		return r.explain(name, err, out)
	}
	shown.End(ui.Done, "")
	return nil
}

// explain turns the failure of a program into its exit code and the lines that
// say why.
func (r *run) explain(step string, err error, out output) error {
	failed := &pipeline.StepError{Step: step, Err: err}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		failed.Err = errors.New(strings.Replace(exit.String(), "exit status", "exit code", 1))
		failed.Tail = pipeline.Cause(out.stdout.kept(), out.stderr.kept())
	}
	fmt.Fprintln(r.log, failed.Err)
	return failed
}
