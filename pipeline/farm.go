package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Job is one wheel of several: a plan, and a name for people.
type Job struct {
	Name string
	Plan *Plan
}

// Result is the outcome of a job: a wheel, or the reason why there is none.
type Result struct {
	Job
	Artifact wheel.Artifact
	Err      error
	Engine   string // where it was built; "" if nowhere
}

// Worker is a place where builds run, several at once: a Dagger engine, or this
// machine.
type Worker struct {
	Name     string // for people: the engine's address
	Parallel int    // builds at once, at least 1
	Jobs     int    // compile jobs of a build whose plan does not say; 0: as many as cores
	// Connect returns a builder for one build at a time, and a function that closes it.
	Connect func(context.Context, ui.Reporter) (Builder, func() error, error)
}

// Prober is a Builder that can check whether its engine still answers.
type Prober interface {
	Ping(context.Context) error
}

// Farm runs many jobs over one or several workers: an idle worker takes the next job. The farm
// builds equal plans once, and makes images that several jobs need once on each worker. A job
// that fails stops no other.
type Farm struct {
	Runner  Runner // its Builder and Report are those of the worker and the job
	Workers []Worker
	// Done, if not nil, is called for each job that was run as soon as it has ended, by several
	// goroutines.
	Done func(Result)
}

// Run returns the outcome of each job, in their order. When ctx ends it stops all and returns.
func (f Farm) Run(ctx context.Context, jobs []Job) []Result {
	w := &work{queue: newQueue(ctx, len(f.Workers)), farm: f, claims: &claims{owner: map[string]string{}}, named: len(jobs) > 1}
	results := make([]Result, len(jobs))
	first := map[string]int{} // of the jobs with this plan
	for i, j := range jobs {
		results[i].Job = j
		if _, twice := first[j.Plan.Digest]; !twice {
			first[j.Plan.Digest] = i
			w.waiting = append(w.waiting, &task{result: &results[i]})
		}
	}
	tasks := len(w.waiting)
	var all sync.WaitGroup
	for i, y := range f.Workers {
		at := &buildWorker{Worker: y, index: i, making: map[string]chan struct{}{}}
		for range min(max(y.Parallel, 1), tasks) {
			all.Go(func() { w.serveJobs(ctx, at) })
		}
	}
	all.Wait()
	for i, j := range jobs {
		if from := first[j.Plan.Digest]; from != i {
			results[i].Artifact, results[i].Err, results[i].Engine = results[from].Artifact, results[from].Err, results[from].Engine
			results[i].Artifact.Cached = true
		}
	}
	return results
}

// work is one run of a farm.
type work struct {
	*queue
	farm   Farm
	claims *claims
	named  bool // whether lines say which job they are about
}

// buildWorker is a Worker with the state of its running jobs.
type buildWorker struct {
	Worker
	index  int
	mu     sync.Mutex
	making map[string]chan struct{} // images being made, by their inputs
}

// serveJobs takes one job after another, over one connection.
func (w *work) serveJobs(ctx context.Context, y *buildWorker) {
	c := &connection{buildWorker: y, report: w.farm.Runner.Site.Reporter(w.farm.Runner.Report)}
	defer c.closeBuilder()
	for t := w.nextTask(ctx, y.index); t != nil; t = w.nextTask(ctx, y.index) {
		start := time.Now()
		a, err := w.buildJob(ctx, y, c, t.result)
		a.Seconds = time.Since(start).Seconds()
		if why := c.whyLost(ctx, err); why != nil {
			w.dropWorker(t, y, why)
			continue
		}
		t.result.Artifact, t.result.Err, t.result.Engine = a, err, y.Name
		if w.farm.Done != nil {
			w.farm.Done(*t.result)
		}
		w.taskDone()
	}
}

func (w *work) buildJob(ctx context.Context, y *buildWorker, c *connection, result *Result) (wheel.Artifact, error) {
	r := w.farm.Runner
	if w.named {
		r.Report = ui.Prefixed(r.Report, result.Name)
	}
	r.claim = func(name string) error { return w.claims.claimName(name, result.Name) }
	r.Builder = func(ctx context.Context) (Builder, error) {
		b, err := c.openBuilder(ctx)
		if err != nil {
			return nil, err
		}
		return &shared{b, y}, nil
	}
	p := *result.Plan
	if p.Options.Jobs == 0 {
		p.Options.Jobs = y.Jobs
	}
	a, err := r.Run(ctx, &p)
	if err != nil && ctx.Err() == nil {
		r.Site.Reporter(r.Report).Warn("failed: %v", r.Site.Error(err))
	}
	return a, err
}

// dropWorker uses a worker no longer. The farm tries its job once more, elsewhere.
func (w *work) dropWorker(t *task, y *buildWorker, why error) {
	again := w.removeWorker(t, y.index)
	rep := w.farm.Runner.Site.Reporter(w.farm.Runner.Report)
	if again {
		rep.Warn("dsbuild lost engine %s and leaves it out; %s goes to another: %v", y.Name, t.result.Name, why)
		return
	}
	rep.Warn("dsbuild lost engine %s and leaves it out: %v", y.Name, why)
	t.result.Err = w.farm.Runner.Site.Error(fmt.Errorf("dsbuild lost engine %s: %w", y.Name, why))
	w.taskDone()
}

// connection is one of a worker's builders, made when first needed.
type connection struct {
	*buildWorker
	report  ui.Reporter
	builder Builder
	end     func() error
	failed  error // why there is none
}

func (c *connection) openBuilder(ctx context.Context) (Builder, error) {
	if c.builder == nil {
		c.builder, c.end, c.failed = c.Connect(ctx, c.report)
	}
	return c.builder, c.failed
}

// pingTime bounds the answer of a busy engine.
const pingTime = 30 * time.Second

// whyLost returns why the worker can no longer be used after a job that ended with err: it has no
// connection, or it no longer answers. It returns nil if the worker is usable.
func (c *connection) whyLost(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil
	}
	if c.failed != nil {
		return c.failed
	}
	p, ok := c.builder.(Prober)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	if p.Ping(ctx) != nil {
		return err
	}
	return nil
}

func (c *connection) closeBuilder() {
	if c.end == nil {
		return
	}
	if err := c.end(); err != nil {
		c.report.Warn("closing the session of engine %s: %v", c.Name, err)
	}
}

// claims holds the names of wheels that are taken: two plans whose wheels have the same name
// cannot lie in one directory.
type claims struct {
	mu    sync.Mutex
	owner map[string]string // of a wheel's name: the job's
}

func (c *claims) claimName(name, job string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner, taken := c.owner[name]; taken && owner != job {
		return SameNameError(name, owner)
	}
	c.owner[name] = job
	return nil
}

// SameNameError returns the error of a wheel with the same name as the wheel of another plan.
func SameNameError(name, owner string) error {
	return hint.With(fmt.Errorf("its wheel would have the file name %s, the same as the wheel of %s", name, owner),
		"build them into different directories, one after the other")
}

// errNoWorker is the error of a job when all workers are lost.
var errNoWorker = errors.New("not started: no engine is left")
