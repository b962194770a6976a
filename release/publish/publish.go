// Package publish puts finished wheels, and the files beside them, where others get them: a
// folder, S3-compatible storage, a package index that takes twine's uploads, an OCI registry.
//
// A run first verifies all wheels, then asks the place which files it has, and sends nothing if
// one of them has other bytes there. Each place stores a file whole or not at all, so a run that
// was cut off is finished by the next one, which sends only the missing files.
package publish

import (
	"cmp"
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
	Home      string              // with .pypirc, .aws; "": the user's
	Transport http.RoundTripper   // gets the policy of package httpclient; nil: http.DefaultTransport

	// Progress starts a display of so many bytes; nil: none.
	Progress func(total int64) Progress
	// Warn tells the user of something that is no error; nil: nobody.
	Warn func(format string, args ...any)
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
}

// Result describes one file after a run.
type Result struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Status Status `json:"status"`
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

// takenError is the error of names that other bytes have at the place; try is its hint, "" that of other wheels.
func takenError(try string, names ...string) error {
	try = cmp.Or(try, "dsbuild never replaces a published file: build the wheel under another version, or remove the other file yourself")
	return fault.New(fault.Wheel, try, "other files have these names there: %s", strings.Join(names, "; "))
}

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
	look(ctx context.Context, w wheelFiles) ([]state, error)
	// put sends files of a wheel that were absent, and reports bytes as they are sent.
	put(ctx context.Context, w wheelFiles, files []File, sent func(int64)) error
}

// Run publishes the wheels.
func Run(ctx context.Context, opt Options) (Summary, error) {
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
	sum := Summary{To: opt.To.String(), DryRun: opt.DryRun, Files: []Result{}}
	err := r.publish(ctx, &sum)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if httpclient.ConnectionFailed(err) && statusOf(err) == 0 { // such an error names only an address
		try := "check the address, the network and HTTPS_PROXY, and run the same command again: it sends only the missing files"
		if foreign := new(tls.CertificateVerificationError); errors.As(err, &foreign) {
			try = "if an authority of your own has signed the server's certificate, name it with --ca"
		}
		err = fault.WithHint(fmt.Errorf("publishing to %s: %w", r.To, err), "%s", try)
	}
	return sum, r.secrets.hide(err)
}

// run is one run: its options with defaults, and the secrets that it read.
type run struct {
	Options
	http    *httpclient.Transport
	secrets *secrets
	access  string // which credentials the place takes, for a hint
}

// refuse returns the error of a place that cannot be used; without a hint it lists the forms of places.
func (r *run) refuse(try, format string, args ...any) error {
	return targetError(r.To.text, try, format, args...)
}

// publish does the work of Run and fills the summary.
func (r *run) publish(ctx context.Context, sum *Summary) error {
	wheels, err := readWheels(ctx, r.Wheels)
	if err != nil {
		return err
	}
	p, err := r.openPlace()
	if err != nil {
		return err
	}
	states := make([][]state, len(wheels))
	err = r.eachWheel(ctx, wheels, func(ctx context.Context, i int) (err error) {
		states[i], err = p.look(ctx, wheels[i])
		return err
	})
	if err != nil {
		return err
	}
	var taken []string
	for i, w := range wheels {
		for j, f := range w {
			if states[i][j] == other {
				taken = append(taken, f.Name)
			}
		}
	}
	if len(taken) > 0 {
		try := ""
		if r.To.Index() {
			try = "an index may keep the beginning of an upload that was cut off: then remove the file there, and publish again; " +
				"otherwise build the wheel under another version"
		}
		return takenError(try, taken...)
	}
	sum.Files = results(wheels, states, Absent)
	if r.DryRun {
		return nil
	}
	if err := r.send(ctx, p, wheels, states); err != nil {
		return err
	}
	sum.Files = results(wheels, states, Sent)
	return nil
}

// send sends the absent files.
func (r *run) send(ctx context.Context, p place, wheels []wheelFiles, states [][]state) error {
	missing := make([][]File, len(wheels))
	total := int64(0)
	for i, w := range wheels {
		for j, f := range w {
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
func (r *run) eachWheel(ctx context.Context, wheels []wheelFiles, do func(ctx context.Context, i int) error) error {
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
				return fmt.Errorf("%s: %w", w.main().Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// results lists all files; those that were absent get the status sent.
func results(wheels []wheelFiles, states [][]state, sent Status) []Result {
	all := []Result{}
	for i, w := range wheels {
		for j, f := range w {
			status := map[state]Status{absent: sent, same: Present, unsupported: Left}[states[i][j]]
			all = append(all, Result{f.Name, f.SHA256, f.Size, status})
		}
	}
	return all
}
