package publish

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

// folder is a folder of this machine, or one that it mounts.
type folder struct{ dir string }

func (r *run) openFolder() (place, error) {
	dir := r.To.path
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, &TargetError{r.To.text, "it is a file, and no folder", "name a folder"}
	}
	if index.Exists(dir) {
		return &indexFolder{r, dir}, nil
	}
	return eachFile{r, folder{dir}}, nil
}

func (p folder) access() string { return "the folder must be writable" }

func (p folder) lookFile(_ context.Context, f File) (state, error) {
	return lookAt(filepath.Join(p.dir, f.Name), f)
}

// lookAt compares a file at a path.
func lookAt(path string, f File) (state, error) {
	sum, size, err := wheel.HashRegular(path)
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
	if errors.Is(err, fs.ErrExist) { // somebody else published it meanwhile
		now, err := p.lookFile(ctx, f)
		if err == nil && now != same {
			err = &ConflictError{Files: []string{f.Name}}
		}
		return err
	}
	return err
}

// indexFolder is a folder with an index that dsbuild index wrote. Package index adds the wheels.
type indexFolder struct {
	run *run
	dir string
}

func (p *indexFolder) look(_ context.Context, w Wheel) ([]state, error) {
	states := make([]state, len(w.Files))
	if w.Manifest == nil {
		return nil, &wheel.FileError{Path: w.main().Path, Err: wheel.ErrNoManifest}
	}
	at, err := index.Folder(*w.Manifest)
	if err != nil {
		return nil, err
	}
	for i, f := range w.Files {
		if states[i], err = lookAt(filepath.Join(p.dir, filepath.FromSlash(at), f.Name), f); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// put sends nothing: finish adds all wheels at once, the files before the pages.
func (p *indexFolder) put(_ context.Context, _ Wheel, files []File, sent func(int64)) error {
	for _, f := range files {
		sent(f.Size)
	}
	return nil
}

func (p *indexFolder) finish(ctx context.Context, wheels []Wheel) (*Pages, error) {
	opt := index.Options{Dir: p.dir, GPUs: p.run.GPUs}
	for _, w := range wheels {
		opt.Wheels = append(opt.Wheels, w.main().Path)
	}
	sum, err := index.Add(ctx, opt)
	return &Pages{sum.Written, sum.Removed}, err
}
