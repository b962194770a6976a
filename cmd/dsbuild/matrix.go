package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
	"github.com/dsbuild/dsbuild/wheel"
)

// refuseEntryFlags refuses flags that say what a wheel is beside a file that
// does.
func refuseEntryFlags(f *pflag.FlagSet, command string) error {
	for _, name := range matrix.Keys() {
		if f.Changed(name) {
			return usageErrorf(command, "--%s beside --matrix: what a wheel is, its file says (key %s of an entry, or of defaults)", name, name)
		}
	}
	return nil
}

// runMatrix plans all wheels of a file, and only where all can be had builds
// them, or prints the plans.
func runMatrix(ctx context.Context, a *app, o wheelOptions, command string) error {
	file, err := matrix.Read(o.matrix)
	if err != nil {
		return err
	}
	at := &place{app: a, way: o.builder, engine: o.firstEngine(), site: o.site}
	defer at.close()
	planner, err := o.planner(ctx, a, command, at)
	if err != nil {
		return err
	}
	defer planner.close()
	jobs, err := planMatrix(ctx, a, planner, file)
	if err != nil {
		return err
	}
	if o.dryRun {
		return printMatrixPlans(a, o.json, jobs)
	}
	farm := pipeline.Farm{
		Runner: pipeline.Runner{
			Store: pipeline.DefaultStore(), Dir: o.out, Logs: pipeline.DefaultLogs(), Version: a.version, Report: a.reporter, Site: o.site,
		},
		Yards: yards(a, at, o),
	}
	results := farm.Run(ctx, jobs)
	if err := printMatrix(a, o.json, results); err != nil {
		return err
	}
	return matrixFailure(ctx, results)
}

// planMatrix plans every entry. What is wrong with any of them is named before
// anything is built.
func planMatrix(ctx context.Context, a *app, p *planner, file *matrix.File) ([]pipeline.Job, error) {
	wrong := file.Mistakes()
	first := map[string]matrix.Entry{} // by plan
	var jobs []pipeline.Job
	for _, e := range file.Entries {
		named := *a
		named.reporter = ui.Prefixed(a.reporter, e.Name)
		p.app = &named
		plan, err := p.plan(ctx, entryRequest(e))
		if err != nil && chosenCode(err) != exitUsage {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
		if err != nil {
			wrong.Add(e.Position, asKeys(hint.Of(err)), "%s: %s", e.Name, asKeys(err.Error()))
			continue
		}
		if other, twice := first[plan.Digest]; twice {
			wrong.Add(e.Position, "leave one of them out", "%s is the same wheel as %s (%s)", e.Name, other.Name, other.Position)
			continue
		}
		first[plan.Digest] = e
		jobs = append(jobs, pipeline.Job{Name: e.Name, Plan: plan})
	}
	return jobs, wrong.Err()
}

// asKeys puts what is said of flags into the words of the file: "--torch 2.8.0"
// is "torch: 2.8.0" there.
func asKeys(text string) string {
	flags := regexp.MustCompile(`\B--(` + strings.Join(matrix.Keys(), "|") + `)\b:?`)
	return flags.ReplaceAllString(text, "$1:")
}

// entryRequest is what an entry asks for, as the flags would.
func entryRequest(e matrix.Entry) wheelRequest {
	var r wheelRequest
	r.flags(pflag.NewFlagSet("", pflag.ContinueOnError)) // the defaults
	r.archs, r.gpus, r.deepspeed, r.torch, r.cuda = e.Archs, e.GPUs, e.DeepSpeed, e.Torch, e.CUDA
	r.python, r.glibc, r.driver, r.base, r.keepDebug = e.Python, e.Glibc, e.Driver, e.Base, e.KeepDebug
	for _, ops := range e.Ops { // joined by commas, as in the flag
		r.ops = append(r.ops, strings.Split(ops, ",")...)
	}
	if e.CPU != "" {
		r.cpu = e.CPU
	}
	return r
}

// matrixError is a matrix of which something failed.
type matrixError struct {
	failed []string
	of     int
	code   int
}

func (e *matrixError) Error() string {
	return fmt.Sprintf("%d of %d wheels failed: %s", len(e.failed), e.of, strings.Join(e.failed, ", "))
}

// ExitCode is 4 where all that failed was built and is not what was asked; if
// anything could not be built it is 1.
func (e *matrixError) ExitCode() int { return e.code }

func matrixFailure(ctx context.Context, results []pipeline.Result) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := &matrixError{of: len(results), code: exitWheel}
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		e.failed = append(e.failed, r.Name)
		if chosenCode(r.Err) != exitWheel {
			e.code = exitFailed
		}
	}
	if len(e.failed) == 0 {
		return nil
	}
	return e
}

// matrixDocument is the JSON that dsbuild wheel --matrix prints.
type matrixDocument struct {
	Wheels []namedWheel  `json:"wheels"`
	Failed []failedWheel `json:"failed"`
}

type namedWheel struct {
	Name   string `json:"name"`
	Engine string `json:"engine,omitempty"` // where it was built
	wheel.Artifact
}

type failedWheel struct {
	Name  string `json:"name"`
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// printMatrix prints what became of each entry, for people or as one JSON
// document.
func printMatrix(a *app, asJSON bool, results []pipeline.Result) error {
	doc := matrixDocument{Wheels: []namedWheel{}, Failed: []failedWheel{}}
	var rows [][]string
	for _, r := range results {
		if r.Err != nil {
			doc.Failed = append(doc.Failed, failedWheel{r.Name, ui.Clean(r.Err.Error()), ui.Clean(hint.Of(r.Err))})
			reason, _, _ := strings.Cut(r.Err.Error(), "\n")
			rows = append(rows, []string{r.Name, "", "", "", "failed: " + reason})
			continue
		}
		w := r.Artifact
		doc.Wheels = append(doc.Wheels, namedWheel{r.Name, r.Engine, w})
		took := ui.Duration(time.Duration(w.Seconds * float64(time.Second)))
		if w.Cached {
			took = "cached"
		}
		rows = append(rows, []string{r.Name, ui.Size(w.Size), took, w.SHA256, relative(w.Path)})
	}
	if asJSON {
		return ui.JSON(a.stdout, doc)
	}
	return ui.Table(a.stdout, []string{"NAME", "SIZE", "TIME", "SHA256", "WHEEL"}, rows)
}

// printMatrixPlans prints what would be done for each entry.
func printMatrixPlans(a *app, asJSON bool, jobs []pipeline.Job) error {
	type named struct {
		Name   string `json:"name"`
		Digest string `json:"plan_digest"`
		*pipeline.Plan
	}
	plans := []named{}
	for _, j := range jobs {
		plans = append(plans, named{j.Name, j.Plan.Digest, j.Plan})
	}
	if asJSON {
		return ui.JSON(a.stdout, struct {
			Plans []named `json:"plans"`
		}{plans})
	}
	for i, p := range plans {
		gap := ""
		if i > 0 {
			gap = "\n"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s== %s\n", gap, p.Name); err != nil {
			return err
		}
		if err := p.Print(a.stdout); err != nil {
			return err
		}
	}
	return nil
}
