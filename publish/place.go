package publish

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/minio/minio-go/v7"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
)

// openPlace finds the place's address and credentials. It may contact the place.
func (r *run) openPlace(ctx context.Context) (place, error) {
	t := r.To
	switch t.kind {
	case bucketKind:
		return r.openBucket(ctx)
	case indexKind:
		return r.openIndex(t.text, login{})
	case pypircKind:
		return r.openPypirc(t.name)
	case registryKind:
		return r.openRegistry()
	case folderKind:
		return r.openFolder()
	}
	return nil, fmt.Errorf("dsbuild cannot open %s", t)
}

// filePlace is a place that stores each file by itself.
type filePlace interface {
	// lookFile returns the state of a file.
	lookFile(ctx context.Context, f File) (state, error)
	// putFile sends a file that was absent.
	putFile(ctx context.Context, f File, sent func(int64)) error
	// access says which credentials the place takes, for a hint.
	access() string
}

// eachFile makes a place of a filePlace, with new attempts after temporary failures.
type eachFile struct {
	run *run
	filePlace
}

func (p eachFile) look(ctx context.Context, w Wheel) ([]state, error) {
	states := make([]state, len(w.Files))
	for i, f := range w.Files {
		err := p.run.try(ctx, p.access(), func(ctx context.Context, _ int) (err error) {
			states[i], err = p.lookFile(ctx, f)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return states, nil
}

func (p eachFile) put(ctx context.Context, _ Wheel, files []File, sent func(int64)) error {
	for _, f := range files {
		err := p.run.try(ctx, p.access(), func(ctx context.Context, attempt int) error {
			if attempt > 0 { // the lost answer may have been that of a success
				now, err := p.lookFile(ctx, f)
				switch {
				case err != nil:
					return err
				case now == other:
					return &ConflictError{Files: []string{f.Name}}
				case now == same:
					sent(f.Size)
					return nil
				}
			}
			return p.putFile(ctx, f, sent)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compareTaken handles a place that refused a file because another run may have published it meanwhile:
// it returns nil if the same bytes are there now, a *ConflictError for others, and refused for none.
func compareTaken(ctx context.Context, look func(context.Context, File) (state, error), f File, refused error) error {
	switch now, err := look(ctx, f); {
	case err != nil:
		return err
	case now == same:
		return nil
	case now == other:
		return &ConflictError{Files: []string{f.Name}}
	}
	return refused
}

// try calls do until it succeeds or fails for good, as package httpclient says. If a server refuses
// the credentials, the error's hint tells which ones the place takes.
func (r *run) try(ctx context.Context, access string, do func(ctx context.Context, attempt int) error) error {
	err := r.http.Try(ctx, func(ctx context.Context, attempt int) error {
		err := do(ctx, attempt)
		if code := statusOf(err); code != 0 {
			return httpclient.WithStatus(err, code)
		}
		return err
	})
	switch statusOf(err) {
	case http.StatusUnauthorized:
		return fault.WithHint(err, "the credentials are missing or wrong: %s", access)
	case http.StatusForbidden:
		return fault.WithHint(err, "the credentials may not do that: %s", access)
	case http.StatusTooManyRequests:
		return fault.WithHint(err, "run the same command again later: it sends only the missing files")
	}
	return err
}

// statusOf returns the status of the answer behind an error, also behind one of a library; 0 if there
// was none.
func statusOf(err error) int {
	if registry := new(transport.Error); errors.As(err, &registry) {
		return registry.StatusCode
	}
	if store := (minio.ErrorResponse{}); errors.As(err, &store) {
		return store.StatusCode
	}
	return httpclient.StatusOf(err)
}

// withBody opens a file and gives its body to do. If do fails, the bytes count as not sent.
func (f File) withBody(sent func(int64), do func(b *body) error) error {
	b, err := f.open(sent)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := do(b); err != nil {
		b.takeBack()
		return err
	}
	if b.read < f.Size { // the place had the bytes already
		sent(f.Size - b.read)
	}
	return nil
}
