package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
	"github.com/dsbuild/dsbuild/wheel"
)

// runMatrix plans all wheels of a file, and only where all can be had builds
// them, or prints the plans.
func runMatrix(ctx context.Context, a *app, o wheelOptions) error {
	file, err := matrix.Read(o.matrix)
	if err != nil {
		return err
	}
	tools, err := o.openPlanner(ctx, a)
	if err != nil {
		return err
	}
	defer tools.Close()
	jobs, err := tools.plans.PlanMatrix(ctx, file, func(err error) bool { return fault.ExitCode(err) == exitUsage })
	if err != nil {
		return err
	}
	if o.dryRun {
		return o.printMatrixPlans(ctx, a, jobs)
	}
	runner := o.newRunner(a, o.out)
	var done func()
	if runner.Sign, done, err = a.wheelSigner(ctx, o.sign); err != nil {
		return err
	}
	defer done()
	farm := pipeline.Farm{Runner: runner, Workers: tools.backend.Workers()}
	results := farm.Run(ctx, jobs)
	if err := printMatrix(a, o.json, results); err != nil {
		return err
	}
	return matrixFailure(ctx, results)
}

// matrixFailure returns the error of a matrix of which something failed. Its exit code is 4 if all
// failed wheels were built but do not match the request, and 1 if one could not be built.
func matrixFailure(ctx context.Context, results []pipeline.Result) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var failed []string
	code := exitWheel
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		failed = append(failed, r.Name)
		if fault.ExitCode(r.Err) != exitWheel {
			code = exitFailed
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fault.WithCode(fmt.Errorf("%d of %d wheels failed: %s", len(failed), len(results), strings.Join(failed, ", ")), code)
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

// printMatrix prints the result of each entry, for people or as one JSON document.
func printMatrix(a *app, asJSON bool, results []pipeline.Result) error {
	doc := matrixDocument{Wheels: []namedWheel{}, Failed: []failedWheel{}}
	var rows [][]string
	for _, r := range results {
		if r.Err != nil {
			doc.Failed = append(doc.Failed, failedWheel{r.Name, ui.Clean(r.Err.Error()), ui.Clean(fault.Hint(r.Err))})
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
		rows = append(rows, []string{r.Name, ui.Size(w.Size), took, w.SHA256, relativePath(w.Path)})
	}
	if asJSON {
		return ui.JSON(a.stdout, doc)
	}
	return ui.Table(a.stdout, []string{"NAME", "SIZE", "TIME", "SHA256", "WHEEL"}, rows)
}

// printMatrixPlans prints the plan of each entry.
func (o wheelOptions) printMatrixPlans(ctx context.Context, a *app, jobs []pipeline.Job) error {
	type named struct {
		Name   string `json:"name"`
		Digest string `json:"plan_digest"`
		*pipeline.Plan
	}
	plans := []named{}
	for _, j := range jobs {
		plans = append(plans, named{j.Name, j.Plan.Digest, j.Plan})
	}
	if o.json {
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
		if err := o.printPlan(ctx, a, p.Plan); err != nil {
			return err
		}
	}
	return nil
}
