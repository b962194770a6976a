// Package publish puts finished wheels, and the files beside them, where others get them: a
// folder, S3-compatible storage, a package index that takes twine's uploads, an OCI registry.
//
// A run first verifies all wheels, then asks the place which files it has, and sends nothing if
// one of them has other bytes there. Each place stores a file whole or not at all, so a run that
// was cut off is finished by the next one, which sends only the missing files.
package publish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
)

// Options are the inputs of a run.
type Options struct {
	Wheels   []string // files; those beside a wheel travel with it
	To       Target
	CheckURL string // the simple index that lists the files of an index for uploads; "": unknown
	Parallel int    // wheels at once
	DryRun   bool   // look, and send nothing

	Getenv    func(string) string // nil: os.Getenv
	Home      string              // with .pypirc, .netrc, .aws; "": the user's
	Transport http.RoundTripper   // gets the policy of package httpclient; nil: http.DefaultTransport

	// Progress starts a display of so many bytes; nil: none.
	Progress func(total int64) Progress
	// Warn tells the user of something that is no error; nil: nobody.
	Warn func(format string, args ...any)
	// GPUs names the GPUs of a compute capability on an index's page; nil: without names.
	GPUs func(capability string) []string
}

// Progress shows the bytes that were sent.
type Progress interface {
	Add(n int64) // negative: they must be sent again
	Close()
}

// Status is the state of a file after a run.
type Status string

// The states of a file.
const (
	Present Status = "present" // it was there already, with the same bytes
	Sent    Status = "sent"
	Absent  Status = "absent" // a dry run would send it
	Left    Status = "left"   // the place takes wheels only
)

// Summary describes a run.
type Summary struct {
	To     string   `json:"to"`
	DryRun bool     `json:"dry_run"`
	Files  []Result `json:"files"`
	Pages  *Pages   `json:"pages"` // null: the place has no index of dsbuild's
}

// Result describes one file after a run.
type Result struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Status Status `json:"status"`
}

// Pages counts the files of the index that a run changed.
type Pages struct {
	Written int `json:"written"`
	Removed int `json:"removed"`
}

// Count returns how many files have a status, and their bytes.
func (s Summary) Count(status Status) (files int, bytes int64) {
	for _, f := range s.Files {
		if f.Status == status {
			files++
			bytes += f.Size
		}
	}
	return files, bytes
}

// ConflictError lists files whose name is taken by other bytes at the place.
type ConflictError struct {
	Files []string
	try   string // the hint; "": that of other wheels
}

func (e *ConflictError) Error() string {
	return "other files have these names there: " + strings.Join(e.Files, "; ")
}

// Hint suggests the next step.
func (e *ConflictError) Hint() string {
	if e.try != "" {
		return e.try
	}
	return "dsbuild never replaces a published file: build the wheel under another version, or remove the other file yourself"
}

// ExitCode returns 4: the place refuses the wheel.
func (e *ConflictError) ExitCode() int { return 4 }

// state compares a file with the one of its name at a place.
type state int

const (
	absent      state = iota
	same              // the same bytes
	other             // other bytes
	unsupported       // the place does not take such files
)

// place is where wheels go. It stores each file whole or not at all, and replaces none.
type place interface {
	// look returns the state of each file of a wheel.
	look(ctx context.Context, w Wheel) ([]state, error)
	// put sends files of a wheel that were absent, and reports bytes as they are sent.
	put(ctx context.Context, w Wheel, files []File, sent func(int64)) error
}

// finisher is a place with pages that list its files. They are written after the files.
type finisher interface {
	finish(ctx context.Context, wheels []Wheel) (*Pages, error)
}

// Run publishes the wheels.
func Run(ctx context.Context, opt Options) (Summary, error) {
	r := newRun(opt)
	sum := Summary{To: opt.To.String(), DryRun: opt.DryRun, Files: []Result{}}
	err := r.publish(ctx, &sum)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return sum, r.secrets.hide(r.explain(err))
}

// explain names the place in an error of the network, which names only an address, and says what to
// check.
func (r *run) explain(err error) error {
	try := "check the address, the network and HTTPS_PROXY, and run the same command again: it sends only the missing files"
	if foreign := new(tls.CertificateVerificationError); errors.As(err, &foreign) {
		try = "if an authority of your own has signed the server's certificate, name it with --ca"
	}
	if httpclient.ConnectionFailed(err) && statusOf(err) == 0 {
		return fault.WithHint(fmt.Errorf("publishing to %s: %w", r.To, err), "%s", try)
	}
	return err
}

// run is one run: its options with defaults, and the secrets that it read.
type run struct {
	Options
	http    *httpclient.Transport
	secrets *secrets
}

func newRun(opt Options) *run {
	if opt.Getenv == nil {
		opt.Getenv = os.Getenv
	}
	if opt.Home == "" {
		opt.Home, _ = os.UserHomeDir() // none: no files of credentials
	}
	if opt.Transport == nil {
		opt.Transport = http.DefaultTransport
	}
	if opt.Warn == nil {
		opt.Warn = func(string, ...any) {}
	}
	opt.Parallel = max(opt.Parallel, 1)
	r := &run{Options: opt, http: httpclient.New(opt.Transport), secrets: &secrets{}}
	r.http.Warn = opt.Warn
	return r
}

// publish does the work of Run and fills the summary.
func (r *run) publish(ctx context.Context, sum *Summary) error {
	wheels, err := readWheels(ctx, r.Wheels)
	if err != nil {
		return err
	}
	p, err := r.openPlace(ctx)
	if err != nil {
		return err
	}
	states, err := r.survey(ctx, p, wheels)
	if err != nil {
		return err
	}
	if err := refuseOthers(wheels, states); err != nil {
		if r.To.Index() {
			err.try = "an index may keep the beginning of an upload that was cut off: then remove the file there, and publish again; " +
				"otherwise build the wheel under another version"
		}
		return err
	}
	sum.Files = results(wheels, states, Absent)
	if r.DryRun {
		return nil
	}
	if err := r.send(ctx, p, wheels, states); err != nil {
		return err
	}
	if f, ok := p.(finisher); ok {
		if sum.Pages, err = f.finish(ctx, wheels); err != nil {
			return err
		}
	}
	sum.Files = results(wheels, states, Sent)
	return nil
}

// survey asks the place for the state of every file.
func (r *run) survey(ctx context.Context, p place, wheels []Wheel) ([][]state, error) {
	states := make([][]state, len(wheels))
	err := r.eachWheel(ctx, wheels, func(ctx context.Context, i int) error {
		var err error
		states[i], err = p.look(ctx, wheels[i])
		return err
	})
	return states, err
}

// refuseOthers returns a *ConflictError if a name is taken.
func refuseOthers(wheels []Wheel, states [][]state) *ConflictError {
	var taken []string
	for i, w := range wheels {
		for j, f := range w.Files {
			if states[i][j] == other {
				taken = append(taken, f.Name)
			}
		}
	}
	if len(taken) > 0 {
		return &ConflictError{Files: taken}
	}
	return nil
}

// send sends the absent files.
func (r *run) send(ctx context.Context, p place, wheels []Wheel, states [][]state) error {
	missing := make([][]File, len(wheels))
	total := int64(0)
	for i, w := range wheels {
		for j, f := range w.Files {
			if states[i][j] == absent {
				missing[i] = append(missing[i], f)
				total += f.Size
			}
		}
	}
	if total == 0 {
		return nil
	}
	sent := func(int64) {}
	if r.Progress != nil {
		bar := r.Progress(total)
		defer bar.Close()
		sent = bar.Add
	}
	return r.eachWheel(ctx, wheels, func(ctx context.Context, i int) error {
		if len(missing[i]) == 0 {
			return nil
		}
		return p.put(ctx, wheels[i], missing[i], sent)
	})
}

// eachWheel calls do for the wheels, several at once. The first error ends the others.
func (r *run) eachWheel(ctx context.Context, wheels []Wheel, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.Parallel)
	var failed atomic.Bool
	for i, w := range wheels {
		group.Go(func() error {
			if failed.Load() || ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := do(ctx, i); err != nil {
				failed.Store(true)
				if taken := new(ConflictError); errors.As(err, &taken) {
					return err
				}
				return fmt.Errorf("%s: %w", w.Name(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// results lists all files; those that were absent get the status sent.
func results(wheels []Wheel, states [][]state, sent Status) []Result {
	all := []Result{}
	for i, w := range wheels {
		for j, f := range w.Files {
			status := map[state]Status{absent: sent, same: Present, unsupported: Left}[states[i][j]]
			all = append(all, Result{f.Name, f.SHA256, f.Size, status})
		}
	}
	return all
}
