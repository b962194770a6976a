package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Job is one wheel of several: a plan under the name by which people know it.
type Job struct {
	Name string
	Plan *Plan
}

// Result is what became of a job: a wheel, or why there is none.
type Result struct {
	Job
	Artifact wheel.Artifact
	Err      error
	Engine   string // where it was built; "" if nowhere
}

// Yard is a place where builds run, several at once: a Dagger engine, or this
// machine.
type Yard struct {
	Name     string // for people: the engine's address
	Parallel int    // builds at once, at least 1
	Jobs     int    // compile jobs of a build whose plan does not say; 0: as many as cores
	// Connect gives a builder for one build at a time, and what ends it.
	Connect func(context.Context, ui.Reporter) (Builder, func() error, error)
}

// Prober is a Builder that can tell whether what it works with still answers.
type Prober interface {
	Ping(context.Context) error
}

// Farm runs many jobs over one or several yards: whichever is idle takes the
// next. Plans that are alike are built once, images that several need are made
// once on each yard, and a job that fails stops no other.
type Farm struct {
	Runner Runner // its Builder and Report are those of the yard and the job
	Yards  []Yard
	// Done, if not nil, is told of each job that was run as soon as it has ended,
	// by several goroutines.
	Done func(Result)
}

// Run returns what became of each job, in their order. When ctx ends it stops
// all and returns.
func (f Farm) Run(ctx context.Context, jobs []Job) []Result {
	w := &work{queue: newQueue(ctx, len(f.Yards)), farm: f, claims: &claims{owner: map[string]string{}}, named: len(jobs) > 1}
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
	for i, y := range f.Yards {
		at := &yard{Yard: y, index: i, making: map[string]chan struct{}{}}
		for range min(max(y.Parallel, 1), tasks) {
			all.Go(func() { w.serve(ctx, at) })
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

// yard is a Yard while jobs run there.
type yard struct {
	Yard
	index  int
	mu     sync.Mutex
	making map[string]chan struct{} // images being made, by what they are made of
}

// serve takes one job after another, over one connection.
func (w *work) serve(ctx context.Context, y *yard) {
	c := &connection{yard: y, report: w.farm.Runner.Site.Reporter(w.farm.Runner.Report)}
	defer c.close()
	for t := w.take(ctx, y.index); t != nil; t = w.take(ctx, y.index) {
		start := time.Now()
		a, err := w.build(ctx, y, c, t.result)
		a.Seconds = time.Since(start).Seconds()
		if why := c.lost(ctx, err); why != nil {
			w.lose(t, y, why)
			continue
		}
		t.result.Artifact, t.result.Err, t.result.Engine = a, err, y.Name
		if w.farm.Done != nil {
			w.farm.Done(*t.result)
		}
		w.done()
	}
}

func (w *work) build(ctx context.Context, y *yard, c *connection, result *Result) (wheel.Artifact, error) {
	r := w.farm.Runner
	if w.named {
		r.Report = ui.Prefixed(r.Report, result.Name)
	}
	r.claim = func(name string) error { return w.claims.claim(name, result.Name) }
	r.Builder = func(ctx context.Context) (Builder, error) {
		b, err := c.open(ctx)
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

// lose leaves a yard out from now on. The job it was at is tried once more,
// elsewhere.
func (w *work) lose(t *task, y *yard, why error) {
	again := w.drop(t, y.index)
	rep := w.farm.Runner.Site.Reporter(w.farm.Runner.Report)
	if again {
		rep.Warn("engine %s is lost and left out; %s goes to another: %v", y.Name, t.result.Name, why)
		return
	}
	rep.Warn("engine %s is lost and left out: %v", y.Name, why)
	t.result.Err = w.farm.Runner.Site.Error(&LostError{y.Name, why})
	w.done()
}

// LostError is a job whose engine is lost, with no other to try it on.
type LostError struct {
	Engine string
	Err    error
}

func (e *LostError) Error() string { return fmt.Sprintf("engine %s is lost: %v", e.Engine, e.Err) }
func (e *LostError) Unwrap() error { return e.Err }

// connection is one of a yard's builders, made when first needed.
type connection struct {
	*yard
	report  ui.Reporter
	builder Builder
	end     func() error
	failed  error // why there is none
}

func (c *connection) open(ctx context.Context) (Builder, error) {
	if c.builder == nil {
		c.builder, c.end, c.failed = c.Connect(ctx, c.report)
	}
	return c.builder, c.failed
}

// pingTime is how long a busy engine may take to say that it is there.
const pingTime = 30 * time.Second

// lost says why the yard is not to be used any more after a job that ended with
// err: no connection, or one that answers no longer.
func (c *connection) lost(ctx context.Context, err error) error {
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

func (c *connection) close() {
	if c.end == nil {
		return
	}
	if err := c.end(); err != nil {
		c.report.Warn("closing the session of engine %s: %v", c.Name, err)
	}
}

// claims are the names of wheels that are taken: two plans whose wheels have
// the same name cannot lie in one directory.
type claims struct {
	mu    sync.Mutex
	owner map[string]string // of a wheel's name: the job's
}

func (c *claims) claim(name, job string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner, taken := c.owner[name]; taken && owner != job {
		return &NameError{name, owner}
	}
	c.owner[name] = job
	return nil
}

// NameError is a wheel with the name of another, of another plan.
type NameError struct {
	Name, Owner string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("its wheel would be called %s, as that of %s is", e.Name, e.Owner)
}

// Hint says how both can be had.
func (e *NameError) Hint() string {
	return "build them into different directories, one after the other"
}

// errNoYard is the error of a job when all yards are lost.
var errNoYard = errors.New("not started: no engine is left")
