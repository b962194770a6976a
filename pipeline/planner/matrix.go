package planner

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
	"github.com/dsbuild/dsbuild/wheel"
)

// PlanMatrix plans every entry of a file. It names all mistakes of all entries
// before anything is built; isMistake tells those from failures to plan.
func (p *Planner) PlanMatrix(ctx context.Context, file *matrix.File, isMistake func(error) bool) ([]pipeline.Job, error) {
	mistakes := file.Mistakes()
	first := map[string]matrix.Entry{} // by plan
	var jobs []pipeline.Job
	for _, e := range file.Entries {
		if AddMistakes(mistakes, p.tables, e) {
			continue
		}
		plan, err := p.ReportingAs(e.Name).Plan(ctx, EntryRequest(e))
		if err != nil && !isMistake(err) {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
		if err != nil {
			mistakes.Add(e.Position, flagsAsKeys(fault.Hint(err)), "%s: %s", e.Name, flagsAsKeys(err.Error()))
			continue
		}
		if other, twice := first[plan.Digest]; twice {
			hint := "remove one of them"
			if e.ABI == "" && plan.Toolchain.ABI == wheel.StableABI {
				hint += ": one wheel serves every torch from " + compat.StableTorch + " on and every Python; or give abi: torch"
			}
			mistakes.Add(e.Position, hint, "%s is the same wheel as %s (%s)", e.Name, other.Name, other.Position)
			continue
		}
		first[plan.Digest] = e
		jobs = append(jobs, pipeline.Job{Name: e.Name, Plan: plan})
	}
	return jobs, mistakes.Err()
}

// flagsAsKeys replaces names of flags by the keys of the file: "--torch 2.8.0" is
// "torch: 2.8.0" there.
func flagsAsKeys(text string) string {
	flags := regexp.MustCompile(`\B--(` + strings.Join(matrix.Keys(), "|") + `)\b:?`)
	return flags.ReplaceAllString(text, "$1:")
}

// EntryRequest is the request that an entry of a matrix makes.
func EntryRequest(e matrix.Entry) Request {
	r := Request{
		Archs: e.Archs, GPUs: e.GPUs, DeepSpeed: e.DeepSpeed, Torch: e.Torch, CUDA: e.CUDA, Python: e.Python, Machine: e.Machine, CPU: e.CPU,
		Glibc: e.Glibc, Driver: e.Driver, ABI: e.ABI, Base: e.Base, KeepDebug: e.KeepDebug,
	}
	for _, ops := range e.Ops { // joined by commas, as in the flag
		r.Ops = append(r.Ops, strings.Split(ops, ",")...)
	}
	return r
}
