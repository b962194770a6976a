package publish

import (
	"context"
	"fmt"
	"net/http"

	"github.com/dsbuild/dsbuild/internal/hint"
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
	case githubKind:
		return r.openGitHub(ctx)
	case gitlabKind:
		return r.openGitLab(ctx)
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
		err := p.run.retry(ctx, func(int) (err error) {
			states[i], err = p.lookFile(ctx, f)
			return err
		})
		if err != nil {
			return nil, withAccessHint(err, p.access())
		}
	}
	return states, nil
}

func (p eachFile) put(ctx context.Context, _ Wheel, files []File, sent func(int64)) error {
	for _, f := range files {
		err := p.run.retry(ctx, func(attempt int) error {
			if attempt > 0 { // the lost answer may have been that of a success
				if done, err := p.arrived(ctx, f); err != nil || done {
					if done {
						sent(f.Size)
					}
					return err
				}
			}
			return p.putFile(ctx, f, sent)
		})
		if err != nil {
			return withAccessHint(err, p.access())
		}
	}
	return nil
}

// arrived reports whether an attempt that failed has sent the whole file after all. If others
// have put another file there, that is a *ConflictError.
func (p eachFile) arrived(ctx context.Context, f File) (bool, error) {
	switch now, err := p.lookFile(ctx, f); {
	case err != nil:
		return false, err
	case now == other:
		return false, &ConflictError{[]string{f.Name}}
	default:
		return now == same, nil
	}
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
		return &ConflictError{[]string{f.Name}}
	}
	return refused
}

// withAccessHint tells of the credentials if a server refuses them.
func withAccessHint(err error, access string) error {
	switch statusOf(err) {
	case http.StatusUnauthorized:
		return hint.With(err, "the credentials are missing or wrong: %s", access)
	case http.StatusForbidden:
		return hint.With(err, "the credentials may not do that: %s", access)
	case http.StatusTooManyRequests:
		return hint.With(err, "run the same command again later: it sends only the missing files")
	}
	return err
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
