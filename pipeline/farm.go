package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
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
// builds equal plans once, and makes the images of one plan at a time on each worker: the next plan
// finds there what it shares with them. A job that fails stops no other.
type Farm struct {
	Runner  Runner // its Builder and Report are those of the worker and the job
	Workers []Worker
	// Done, if not nil, is called for each job that was run as soon as it has ended, by several
	// goroutines.
	Done func(Result)
}

// Run returns the outcome of each job, in their order. When ctx ends it stops all and returns. A worker
// that is lost is left out, and what it was at is tried once more on another.
func (f Farm) Run(ctx context.Context, jobs []Job) []Result {
	w := &work{farm: f, named: len(jobs) > 1}
	results := make([]Result, len(jobs))
	first := map[string]int{} // of the jobs with this plan
	var tasks []*Result
	for i, j := range jobs {
		results[i].Job = j
		if _, twice := first[j.Plan.Digest]; !twice {
			first[j.Plan.Digest] = i
			tasks = append(tasks, &results[i])
		}
	}
	// Distribute tasks to workers. A task of a lost worker is tried once more; if no worker is
	// left, the tasks keep the error of the loss, or get one that says so.
	waiting := make(chan *Result, len(tasks))
	var undone, running sync.WaitGroup
	undone.Add(len(tasks))
	for _, t := range tasks {
		waiting <- t
	}
	for _, y := range w.farm.Workers {
		lost, images := new(atomic.Bool), make(chan struct{}, 1)
		for range min(max(y.Parallel, 1), len(tasks)) {
			c := connection{Worker: y, lost: lost, images: images, report: w.farm.Runner.Site.Reporter(w.farm.Runner.Report)}
			running.Go(func() { w.serve(ctx, c, waiting, &undone) })
		}
	}
	go func() {
		undone.Wait()
		close(waiting)
	}()
	running.Wait()
	for len(waiting) > 0 {
		t := <-waiting
		switch {
		case ctx.Err() != nil:
			t.Err = context.Cause(ctx)
		case t.Err == nil:
			t.Err = errNoWorker
		}
		undone.Done()
	}
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
	farm  Farm
	named bool     // whether lines say which job they are about
	names sync.Map // of wheels, with their jobs: wheels of one name cannot lie in one directory
}

// serve takes one task after another, over one connection.
func (w *work) serve(ctx context.Context, c connection, waiting chan *Result, undone *sync.WaitGroup) {
	defer c.closeBuilder()
	for ctx.Err() == nil && !c.lost.Load() {
		var t *Result
		select {
		case t = <-waiting:
		case <-ctx.Done():
		}
		if t == nil {
			return
		}
		if c.lost.Load() { // since this one began to wait
			waiting <- t
			return
		}
		start := time.Now()
		a, err := w.buildJob(ctx, &c, t)
		a.Seconds = time.Since(start).Seconds()
		if why := c.whyLost(ctx, err); why != nil {
			c.lost.Store(true)
			c.report.Warn("dsbuild lost engine %s and leaves it out: %v", c.Name, why)
			again := t.Err == nil
			t.Err = w.farm.Runner.Site.Error(fmt.Errorf("dsbuild lost engine %s: %w", c.Name, why))
			if again {
				waiting <- t
			} else {
				undone.Done()
			}
			return
		}
		t.Artifact, t.Err, t.Engine = a, err, c.Name
		if w.farm.Done != nil {
			w.farm.Done(*t)
		}
		undone.Done()
	}
}

func (w *work) buildJob(ctx context.Context, c *connection, result *Result) (wheel.Artifact, error) {
	r := w.farm.Runner
	if w.named {
		r.Report = ui.Prefixed(r.Report, result.Name)
	}
	r.claim = func(name string) error {
		if owner, taken := w.names.LoadOrStore(name, result.Name); taken && owner != result.Name {
			return SameNameError(name, fmt.Sprint(owner))
		}
		return nil
	}
	r.Builder, r.images = c.openBuilder, c.images
	p := *result.Plan
	p.Options.Jobs = cmp.Or(p.Options.Jobs, c.Jobs)
	a, err := r.Run(ctx, &p)
	if err != nil && ctx.Err() == nil {
		r.Site.Reporter(r.Report).Warn("failed: %v", r.Site.Error(err))
	}
	return a, err
}

// connection is one of a worker's builders, made when first needed.
type connection struct {
	Worker
	lost   *atomic.Bool  // of all connections of this worker
	images chan struct{} // likewise: holds one while a plan's images are made
	report ui.Reporter

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

// PingTime bounds the answer of a busy engine.
const PingTime = 30 * time.Second

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
	ctx, cancel := context.WithTimeout(ctx, PingTime)
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

// SameNameError returns the error of a wheel with the same name as the wheel of another plan.
func SameNameError(name, owner string) error {
	return fault.WithHint(fmt.Errorf("its wheel would have the file name %s, the same as the wheel of %s", name, owner),
		"build them into different directories, one after the other")
}

// errNoWorker is the error of a job when all workers are lost.
var errNoWorker = errors.New("not started: no engine is left")
