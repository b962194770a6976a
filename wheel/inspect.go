package wheel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/wheel/elf"
)

// Inspect reads the contents of the wheel at path. It reads every
// ELF file inside as a stream, whatever built the wheel.
func Inspect(ctx context.Context, path string) (Contents, error) {
	a, err := Open(path)
	if err != nil {
		return Contents{}, err
	}
	defer a.Close()
	return a.Inspect(ctx)
}

// Inspect reads the contents of the wheel.
func (a *Archive) Inspect(ctx context.Context) (Contents, error) {
	meta, err := a.Metadata()
	if err != nil {
		return Contents{}, err
	}
	if _, err := a.WheelFile(); err != nil {
		return Contents{}, err
	}
	c := Contents{
		Name: meta.Name, Version: meta.Version, Build: a.file.Build,
		Tags:     a.file.Tags, // installers use these, not WHEEL's
		Requires: append([]string{}, meta.RequiresDist...),
	}
	if c.Extensions, err = a.extensions(ctx); err != nil {
		return Contents{}, err
	}
	c.Ops = c.opNames()
	for _, m := range a.members { // DeepSpeed's wheels for Windows
		if c.IsDeepSpeed() && strings.HasPrefix(m.Name, "deepspeed/") && strings.HasSuffix(m.Name, ".pyd") {
			c.Ops = append(c.Ops, Extension{Path: m.Name}.Op())
		}
	}
	slices.Sort(c.Ops)
	c.Python = pythonOf(c.Tags)
	if modules := c.modulesPython(); modules != "" && c.Python != "" && !slices.ContainsFunc(c.Tags, func(tag string) bool {
		return strings.HasPrefix(tag, "cp"+strings.ReplaceAll(modules, ".", "")+"-") || strings.Contains(tag, "-abi3-")
	}) {
		c.Python = modules // the tags are wrong
	}
	version := c.Version
	if addsLocal(a.file.Version, version) {
		version = a.file.Version
	}
	isTorch := sameName(c.Name, "torch")
	if !isTorch {
		c.TorchABI = c.torchABI()
	}
	c.Variants = c.findVariants()
	if c.Torch, c.CUDA = c.boundVersions(version); isTorch {
		c.Torch = Minor(c.Version)
	}
	if m := lowerBound.FindStringSubmatch(meta.RequiresPython); m != nil && c.TorchABI.IsStable() && c.Python == "" {
		c.Python = m[1] + "+"
	}
	if err := c.readInstalled(a); err != nil {
		return Contents{}, a.damagedError(err)
	}
	return c, nil
}

// maxNames limits the total size of library and directory names in a wheel's ELF files, in bytes.
// The ELF reader limits each file.
const maxNames = 64 << 20

// maxAtOnce limits the number of files that are read in parallel: a hostile file can need 200 MB
// for tables, and a large machine has many cores.
const maxAtOnce = 8

// extensions reads the wheel's ELF files in parallel.
func (a *Archive) extensions(ctx context.Context) ([]Extension, error) {
	found := make([]*Extension, len(a.members))
	var names atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), maxAtOnce))
	for i, m := range a.members {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			e, err := a.extension(ctx, m)
			if err == nil && e != nil && names.Add(e.names()) > maxNames {
				err = fmt.Errorf("the libraries and directories named up to here take more than %d bytes", maxNames)
			}
			switch {
			case err == nil:
				found[i] = e
				return nil
			case ctx.Err() != nil:
				return context.Cause(ctx) // err is only a consequence of the interruption
			}
			return a.damagedError(fmt.Errorf("%s: %w", m.Name, err))
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	extensions := []Extension{}
	for _, e := range found {
		if e != nil {
			extensions = append(extensions, *e)
		}
	}
	askLibraries(extensions)
	slices.SortFunc(extensions, func(a, b Extension) int { return strings.Compare(a.Path, b.Path) })
	return extensions, nil
}

// names returns the size of the names in e, in bytes.
func (e *Extension) names() int64 {
	n := 0
	for _, s := range slices.Concat(e.Needs, e.RPath) {
		n += len(s) + 16 // for the slice header
	}
	return int64(n)
}

// extension reads one member. It returns nil if the member is not an ELF file.
func (a *Archive) extension(ctx context.Context, m Member) (*Extension, error) {
	r, err := a.Open(m.Name)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	n, err := io.ReadFull(r, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if err = errors.Join(err, r.Close()); err != nil || !elf.IsELF(head[:n]) {
		return nil, err
	}
	var s sections
	defer s.close()
	open := func() (io.ReadCloser, error) {
		r, err := a.Open(m.Name)
		return struct {
			io.Reader
			io.Closer
		}{contextReader{ctx, r}, r}, err
	}
	object, err := elf.Read(open, m.Size, s.sinkFor)
	if err != nil {
		return nil, err
	}
	return s.extension(m, object), nil
}

// contextReader is a reader that fails when ctx ends.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one read of one file
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
