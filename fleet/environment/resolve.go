package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// Resolver turns a Spec into a Lock.
type Resolver struct {
	UV         string   // path of uv
	Installer  UV       // the uv that installs on nodes
	Environ    []string // environment of uv: indexes, proxies, certificates
	TorchIndex string   // base URL of torch's own indexes, such as cu126 and cu132
	Collect    *Collector
}

// Resolve resolves s for the given node types. old is the existing lock, or nil: if it has the same
// inputs, it is returned unchanged, and otherwise its versions are preferred. dir is the directory of
// the lockfile.
func (r Resolver) Resolve(ctx context.Context, s *Spec, kinds []Platform, old *Lock, dir string) (*Lock, error) {
	locals, err := openLocals(s)
	if err != nil {
		return nil, err
	}
	l := &Lock{
		Format: lockFormat, Name: s.Name, Python: s.Python, Interpreter: s.Interpreter, Folder: s.Folder,
		Dir: dir,
	}
	if l.Request, err = s.request(kinds, locals, r.Installer.Version, dir); err != nil {
		return nil, err
	}
	if old != nil && old.Request == l.Request {
		return old, nil
	}
	own, err := s.localsFor(kinds, locals)
	if err != nil {
		return nil, err
	}
	for i, k := range kinds {
		set, err := r.set(ctx, s, k, own[i], old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		if err := r.checkLocals(ctx, s, set, locals); err != nil {
			return nil, err
		}
		for i := range set.Files {
			f := &set.Files[i]
			if f.Named = f.Path != "" || s.names(f.Name); f.Path != "" {
				f.Path = relativePath(dir, f.Path)
			}
		}
		if set.Python, err = s.chooseInterpreter(k, dir); err != nil {
			return nil, err
		}
		set.Digest = set.digest(l.Python)
		l.Sets = append(l.Sets, set)
	}
	return l, l.check()
}

// Answers reports whether the lock is up to date with s. It also returns true if this is unknown, because
// DeepSpeed is still to be built or the local files are missing. Node types are not compared, because
// they may come from an inventory.
func (l *Lock) Answers(s *Spec) bool {
	if s.Build != nil {
		return true
	}
	locals, err := openLocals(s)
	if err != nil {
		return true
	}
	kinds := lists.Map(l.Sets, func(set Set) Platform { return set.Platform })
	request, err := s.request(kinds, locals, l.Sets[0].Installer.Version, l.Dir)
	return err != nil || request == l.Request
}

// request returns a digest of the inputs that determine the lock, except the state of the index. dir is
// the lockfile's directory.
func (s *Spec) request(kinds []Platform, locals []File, uv, dir string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "format %d\nname %s\npython %s\ninterpreter %s\nfolder %s\ntorch %s\nuv %s\n",
		lockFormat, s.Name, s.Python, s.Interpreter, s.Folder, s.Torch, uv)
	for _, w := range locals {
		fmt.Fprintf(h, "wheel %s %s\n", w.SHA256, relativePath(dir, w.Path))
	}
	for _, w := range s.Wanted {
		fmt.Fprintf(h, "requirement %s\n", w.Text)
	}
	for _, k := range kinds {
		fmt.Fprintf(h, "kind %s\n", k)
	}
	for _, a := range s.Archives {
		sum, _, err := wheel.HashFile(a.Text)
		if errors.Is(err, fs.ErrNotExist) {
			err = fault.WithHint(resolveErrorf("%s: %s does not exist", a.At, a.Text),
				"copy the archive there, or set interpreter: to the nodes' own Python")
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "interpreter %s %s\n", sum, relativePath(dir, a.Text))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// names reports whether s itself requires a package.
func (s *Spec) names(name string) bool {
	return name == "torch" && s.Torch != "" || slices.ContainsFunc(s.Wanted, func(w Text) bool {
		d, err := pypi.ParseDependency(w.Text)
		return err == nil && pypi.CanonPackageName(d.Name) == name
	})
}

// openLocals reads the local wheels of a Spec, in its order, with their paths on this machine. Errors have their
// positions in the file.
func openLocals(s *Spec) ([]File, error) {
	var locals []File
	var problems lineerr.List
	for _, w := range s.Wheels {
		l, err := openLocal(w.Text)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			hint := "copy the wheel there, or correct the path"
			if strings.HasPrefix(filepath.Base(w.Text), "deepspeed-") {
				hint = "build the wheel: dsbuild wheel"
			}
			problems.Add(w.At, hint, "%s does not exist", w.Text)
		case err != nil:
			problems.Add(w.At, "", "%v", err)
		}
		locals = append(locals, l)
	}
	return locals, problems.Err()
}

func openLocal(path string) (File, error) {
	name, err := wheel.ParseFileName(filepath.Base(path))
	if err != nil {
		return File{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is not a file", path)
	}
	archive, err := wheel.Open(path)
	if err != nil {
		return File{}, err
	}
	archive.Close()
	l := File{Name: pypi.CanonPackageName(name.Name), Version: name.Version, File: filepath.Base(path), Path: path}
	l.SHA256, l.Size, err = wheel.HashFile(path)
	return l, err
}

// CheckWheels reports local wheels that do not exist, and packages without a wheel for a node type, as Resolve
// does.
func (s *Spec) CheckWheels(kinds []Platform) error {
	locals, err := openLocals(s)
	if err == nil {
		_, err = s.localsFor(kinds, locals)
	}
	return err
}

// localsFor returns, for each node type, the wheel of every package that installs there. all is the result of
// openLocals.
func (s *Spec) localsFor(kinds []Platform, all []File) ([][]File, error) {
	own := make([][]File, len(kinds))
	var problems lineerr.List
	for i, k := range kinds {
		for at, l := range all {
			if _, err := choose(all[at:at+1], s.Python, k); err != nil {
				continue
			}
			if indexOf(own[i], l.Name) >= 0 {
				problems.Add(s.Wheels[at].At, "remove one of the wheels: an environment has one per package and node type",
					"duplicate wheel of %s for %s", l.Name, k)
			}
			own[i] = append(own[i], l)
		}
		for at, l := range all {
			if indexOf(all, l.Name) < at || indexOf(own[i], l.Name) >= 0 {
				continue
			}
			_, err := choose(slices.DeleteFunc(slices.Clone(all), func(f File) bool { return f.Name != l.Name }), s.Python, k)
			problems.Add(s.Wheels[at].At,
				"list a wheel of "+l.Name+" for each node type, or exclude the nodes with --limit or nodes:",
				"%s: %v", l.Name, err)
		}
	}
	return own, problems.Err()
}

// checkLocals reports the local wheels of a set whose machine code does not run on the set's nodes with its torch. all is the
// result of openLocals. Wheels from an index are not downloaded yet: a deploy compares them with the nodes.
func (r Resolver) checkLocals(ctx context.Context, s *Spec, set Set, all []File) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	var problems lineerr.List
	for at, l := range all {
		if f := set.File(l.Name); f == nil || f.Path != l.Path || wheel.IsTorchPackage(l.Name) {
			continue
		}
		facts := set.Platform.facts(s.Python)
		m, err := r.manifestOf(ctx, l, facts.Platform)
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			problems.Add(s.Wheels[at].At, fault.Hint(err), "%v", err)
			continue
		}
		if v := tables.FitTorch(m, facts, set.Torch()); !v.OK() {
			problems.Add(s.Wheels[at].At, "list a wheel of "+l.Name+" for these nodes and this torch, or another torch",
				"%s does not run on %s: %s", l.File, set.Platform, strings.Join(v.Reasons, "; "))
		}
	}
	return problems.Err()
}

// manifestOf describes a local wheel for nodes of a platform: DeepSpeed's by its manifest, if it has one.
func (r Resolver) manifestOf(ctx context.Context, l File, platform string) (wheel.Manifest, error) {
	if l.Name == "deepspeed" {
		w, _, err := wheel.Load(ctx, l.Path)
		return w.Manifest, err
	}
	return r.Collect.Sums.Manifest(ctx, l.Path, l, platform)
}

func indexOf(files []File, name string) int {
	return slices.IndexFunc(files, func(f File) bool { return f.Name == name })
}

// relativePath is path relative to dir, with slashes; path itself if that is impossible.
func relativePath(dir, path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if abs, err := filepath.Abs(dir); err == nil {
		if rel, err := filepath.Rel(abs, path); err == nil {
			path = rel
		}
	}
	return filepath.ToSlash(path)
}

// set resolves the files for one node type, with its local wheels.
func (r Resolver) set(ctx context.Context, s *Spec, k Platform, locals []File, old *Lock) (Set, error) {
	out := Set{Platform: k}
	var known []File
	if old != nil {
		if at := slices.IndexFunc(old.Sets, func(o Set) bool { return o.Machine == k.Machine }); at >= 0 {
			known = old.Sets[at].Files
		}
	}
	var err error
	if out.Files, err = r.Files(ctx, s, k, locals, known); err != nil {
		return out, err
	}
	for i, f := range out.Files {
		if f.Size == 0 { // not listed on the index
			if _, out.Files[i].Size, err = r.Collect.fetch(ctx, f); err != nil {
				return out, err
			}
		}
	}
	out.Installer, err = r.Collect.Find(ctx, "uv", r.Installer.Version, s.Python, k, r.Installer.Sums)
	return out, err
}

// Files resolves s for one node type, and returns the wheels, sorted by name. Nothing is downloaded: a Size is zero
// if the index does not list it. The versions in known are preferred.
func (r Resolver) Files(ctx context.Context, s *Spec, k Platform, locals, known []File) ([]File, error) {
	packages, err := r.runUV(ctx, s, k, locals, known)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, p := range packages {
		f, err := r.file(p, s.Python, k, locals, known)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil, resolveErrorf("no requirement applies to these nodes: the environment would be empty")
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// file selects the wheel of a resolved package that pip would select on such a node. It prefers a known wheel that differs
// only in its build tag, so that a new build of a version does not change a lock.
func (r Resolver) file(p lockedPackage, python string, k Platform, locals, known []File) (File, error) {
	if at := indexOf(locals, p.Name); at >= 0 {
		return locals[at], nil
	}
	var all []File
	for _, w := range p.Wheels {
		all = append(all, File{Name: p.Name, File: w.fileName(), SHA256: strings.ToLower(w.Hashes["sha256"]), Size: w.Size})
	}
	f, err := choose(all, python, k)
	if err != nil {
		return File{}, fmt.Errorf("%s %s: %w", p.Name, p.Version, err)
	}
	if at := indexOf(known, p.Name); at >= 0 && wheel.WithoutBuildTag(known[at].File) == wheel.WithoutBuildTag(f.File) {
		if same := slices.IndexFunc(all, func(o File) bool { return o.SHA256 == known[at].SHA256 }); same >= 0 {
			f.File, f.SHA256, f.Size = all[same].File, all[same].SHA256, all[same].Size
		}
	}
	if f.SHA256 == "" {
		return File{}, fmt.Errorf("%s: no sha256 on the index", f.File)
	}
	return f, nil
}
