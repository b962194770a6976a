package publish

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/minio/minio-go/v7"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/release/index"
	"github.com/dsbuild/dsbuild/wheel"
)

// openPlace finds the place's address and credentials.
func (r *run) openPlace() (place, error) {
	switch r.To.kind {
	case bucketKind:
		return r.openBucket()
	case indexKind:
		return r.openIndex(r.To.text, login{})
	case pypircKind:
		return r.openPypirc(r.To.name)
	case registryKind:
		return r.openRegistry()
	}
	return r.openFolder()
}

// filePlace is a place that stores each file by itself.
type filePlace interface {
	// lookFile returns the state of a file.
	lookFile(ctx context.Context, f File) (state, error)
	// putFile sends a file that was absent.
	putFile(ctx context.Context, f File, sent func(int64)) error
}

// eachFile makes a place of a filePlace, with new attempts after temporary failures.
type eachFile struct {
	run *run
	filePlace
}

func (p eachFile) look(ctx context.Context, w wheelFiles) ([]state, error) {
	states := make([]state, len(w))
	for i, f := range w {
		err := p.run.try(ctx, func(ctx context.Context, _ int) (err error) {
			states[i], err = p.lookFile(ctx, f)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return states, nil
}

func (p eachFile) put(ctx context.Context, _ wheelFiles, files []File, sent func(int64)) error {
	for _, f := range files {
		err := p.run.try(ctx, func(ctx context.Context, attempt int) error {
			if attempt > 0 { // the lost answer may have been that of a success
				now, err := p.lookFile(ctx, f)
				switch {
				case err != nil:
					return err
				case now == other:
					return takenError("", f.Name)
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
// it returns nil if the same bytes are there now, the error of a taken name for others, and refused for none.
func compareTaken(ctx context.Context, p filePlace, f File, refused error) error {
	switch now, err := p.lookFile(ctx, f); {
	case err != nil:
		return err
	case now == same:
		return nil
	case now == other:
		return takenError("", f.Name)
	}
	return refused
}

// try calls do until it succeeds or fails for good, as package httpclient says. If a server refuses
// the credentials, the error's hint tells which ones the place takes.
func (r *run) try(ctx context.Context, do func(ctx context.Context, attempt int) error) error {
	err := r.http.Try(ctx, func(ctx context.Context, attempt int) error {
		err := do(ctx, attempt)
		if code := statusOf(err); code != 0 {
			return httpclient.WithStatus(err, code)
		}
		return err
	})
	switch statusOf(err) {
	case http.StatusUnauthorized:
		return fault.WithHint(err, "the credentials are missing or wrong: %s", r.access)
	case http.StatusForbidden:
		return fault.WithHint(err, "the credentials may not do that: %s", r.access)
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

// folder is a folder of this machine, or one that it mounts.
type folder struct{ dir string }

func (r *run) openFolder() (place, error) {
	dir := r.To.path
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, r.refuse("name a folder", "it is a file, and no folder")
	}
	if index.Exists(dir) {
		return nil, r.refuse("keep all wheels of the index in one folder, publish into that, and write the index again: dsbuild index "+dir+
			" --wheel FOLDER (wheels that are not in FOLDER leave the index)", "it is an index, which dsbuild index writes")
	}
	return eachFile{r, folder{dir}}, nil
}

func (p folder) lookFile(_ context.Context, f File) (state, error) {
	sum, size, err := wheel.HashRegular(filepath.Join(p.dir, f.Name))
	var link *wheel.LinkError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case errors.As(err, &link):
		return other, nil
	case err != nil:
		return absent, err
	case size != f.Size || sum != f.SHA256:
		return other, nil
	}
	return same, nil
}

func (p folder) putFile(ctx context.Context, f File, sent func(int64)) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	err := f.withBody(sent, func(b *body) error {
		return atomicfile.Create(filepath.Join(p.dir, f.Name), wheel.NewContextReader(ctx, b), 0o644)
	})
	if errors.Is(err, fs.ErrExist) {
		return compareTaken(ctx, p, f, err)
	}
	return err
}
