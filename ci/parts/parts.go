// Package parts runs long work in parts, each of which can run alone. It prepares the needs of a
// part, does the work and writes the result into a document of the checkout.
package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Part is a piece of the work.
type Part struct {
	Name  string
	About string // one line for a person
	Needs []Need // prepared in this order
	// Do does the work and returns the part's section of the document. If it fails, the section
	// is printed.
	Do func(ctx context.Context) (section string, err error)
}

// Need is a requirement of parts. If several parts have the same need, the first prepares it.
// Get returns a remark about it.
type Need struct {
	Title string
	Get   func(ctx context.Context, step ui.Step) (remark string, err error)
}

// Program is a command that runs parts.
type Program struct {
	Name string // for messages
	// Document gets the results. Its order is that of Parts.
	Document Document
	Parts    []Part
	Limit    time.Duration // the limit of each part; 0 means none
	// Dir is a folder in the user's cache. It is locked, because two runs at once would disturb
	// each other's measurements.
	Dir string
	// Begin is called before each part, with the log of that part.
	Begin func(r ui.Reporter, log *os.File) error
}

// Run runs the named parts in the order of the list, or all, in the checkout in the current
// folder, and returns the exit code. If a part fails, it goes on with the next.
func (p Program) Run(ctx context.Context, names []string, w io.Writer) int {
	chosen, err := p.choose(names)
	if err != nil {
		fmt.Fprintf(w, "%s: %v\n", p.Name, err)
		return 2
	}
	err = p.runParts(ctx, chosen, w)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(w, "interrupted")
		return 130
	case err != nil:
		ui.PrintError(w, err)
		return 1
	}
	return 0
}

// choose returns the named parts in the order of the list, or all.
func (p Program) choose(names []string) ([]Part, error) {
	known := p.names()
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no part %q; parts: %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return p.Parts, nil
	}
	return slices.DeleteFunc(slices.Clone(p.Parts), func(part Part) bool { return !slices.Contains(names, part.Name) }), nil
}

func (p Program) names() []string {
	var names []string
	for _, part := range p.Parts {
		names = append(names, part.Name)
	}
	return names
}

func (p Program) runParts(ctx context.Context, chosen []Part, w io.Writer) error {
	logs := filepath.Join(p.Dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	lock := flock.New(filepath.Join(p.Dir, "lock"))
	switch held, err := lock.TryLock(); {
	case err != nil:
		return err
	case !held:
		return fmt.Errorf("another %s runs: it holds %s", p.Name, lock.Path())
	}
	defer lock.Close()
	console := ui.New(w, ui.FromEnvironment(w))
	defer console.Close()
	r := run{Program: p, ui: console, logs: logs, got: map[string]bool{}}
	r.Document.Order = p.names()
	var failed error
	for _, part := range chosen {
		if err := r.runPart(ctx, part); err != nil {
			failed = errors.Join(failed, fmt.Errorf("part %s: %w", part.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// run is one run of a program.
type run struct {
	Program
	ui   ui.Reporter
	logs string
	got  map[string]bool // the needs that are prepared, by title
}

// runPart runs one part. It first makes sure that the document has a place for the results,
// before the part takes an hour to produce them.
func (r run) runPart(ctx context.Context, part Part) error {
	if err := r.Document.Check(); err != nil {
		return err
	}
	from, err := originNow(ctx, r.Document.File)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(r.logs, part.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	r.ui.Note("part %s: %s; the whole log: %s", part.Name, part.About, log.Name())
	limited := ctx
	if r.Limit > 0 {
		var cancel func()
		limited, cancel = context.WithTimeoutCause(ctx, r.Limit, fmt.Errorf("not done within %s", r.Limit))
		defer cancel()
	}
	begin := time.Now()
	if err := r.prepare(limited, part, log); err != nil {
		return endReason(limited, err)
	}
	prepared := time.Since(begin)
	section, err := part.Do(limited)
	if err != nil {
		if section != "" && limited.Err() == nil {
			r.ui.Note("%s", section)
		}
		return endReason(limited, err)
	}
	from.close(ctx)
	took := ui.Duration(time.Since(begin))
	head := fmt.Sprintf("### %s\n\n%s; %s, of which %s were preparation.\n\n", part.Name, from, took, ui.Duration(prepared))
	if err := r.Document.Save(part.Name, head+section); err != nil {
		return err
	}
	r.ui.Note("part %s: done in %s, results in %s", part.Name, took, r.Document.File)
	return nil
}

// prepare prepares all needs of a part.
func (r run) prepare(ctx context.Context, part Part, log *os.File) error {
	if err := r.Begin(r.ui, log); err != nil {
		return err
	}
	for _, n := range part.Needs {
		if r.got[n.Title] {
			continue
		}
		step := r.ui.Step(n.Title)
		remark, err := n.Get(ctx, step)
		if err != nil {
			step.End(ui.Failed, "")
			return fmt.Errorf("%s: %w", n.Title, err)
		}
		step.End(ui.Done, remark)
		r.got[n.Title] = true
	}
	return nil
}

// endReason returns the reason why ctx ended, if err is a consequence of that.
func endReason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
