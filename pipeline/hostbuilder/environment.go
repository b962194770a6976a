package hostbuilder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/filelock"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Bounds on the caches. An environment has 6 GB, most of it links into the downloads.
const (
	keepEnvironments = 4
	keepDownloads    = 40 << 30 // bytes
)

// entry holds a toolchain's environments. The name of its directory is a digest of everything
// that determines their content.
type entry struct {
	dir string
	of  pipeline.Environment
}

func (e entry) path(name string) string { return filepath.Join(e.dir, name) }

// The parts of an entry.
const (
	scriptsDir   = "scripts"
	runtimeEnv   = "runtime"
	toolchainEnv = "toolchain"
	cudaDir      = "cuda"
	completeMark = "complete"
)

// isComplete reports whether the environments were made to the end.
func (e entry) isComplete() bool {
	_, err := os.Stat(e.path(completeMark))
	return err == nil
}

// entryOf returns the entry of a part's environment.
func (b *Builder) entryOf(of pipeline.Environment) (entry, error) {
	text, err := json.Marshal(struct {
		Args, Context map[string]string
		Base          string
	}{of.Args, of.Context, b.Base().Digest})
	if err != nil {
		return entry{}, err
	}
	sum := sha256.Sum256(text)
	return entry{filepath.Join(b.environmentsDir(), hex.EncodeToString(sum[:8])), of}, nil
}

func (b *Builder) environmentsDir() string { return filepath.Join(b.opt.Dir, "environments") }

// prepareEnvironments takes or makes the environments of the plan; the run holds them
// until it is closed.
func (r *run) prepareEnvironments(ctx context.Context) error {
	if err := os.MkdirAll(r.environmentsDir(), 0o700); err != nil {
		return err
	}
	images := append([]pipeline.Image{pipeline.Toolchain}, slices.Sorted(maps.Keys(r.plan.Environments))...)
	now := time.Now()
	for _, image := range images {
		e, err := r.entryOf(r.plan.Environment(image))
		if err != nil {
			return err
		}
		r.entries[image] = e
		_ = os.Chtimes(e.dir, now, now) // only the order of pruning hangs on it
	}
	for _, image := range images {
		if e := r.entries[image]; !e.isComplete() {
			r.pruneEnvironments()
			if err := r.checkNvcc(ctx, e); err != nil {
				return err
			}
		}
	}
	unlock, err := filelock.Take(ctx, r.downloadsDir()+".lock", r.waiting(true, "to remove old downloads"))
	if err != nil {
		return err
	}
	r.closers = append(r.closers, unlock)
	for _, image := range images {
		if err := r.prepareEnvironment(ctx, r.entries[image]); err != nil {
			return err
		}
	}
	return nil
}

// checkNvcc returns an error if an entry needs nvcc for CUDA 12 and nowhere offers it for download: a site may have
// only Python's package indexes, and the environment takes minutes until it needs nvcc.
func (r *run) checkNvcc(ctx context.Context, e entry) error {
	if e.of.Toolchain.CUDASource != compat.Nvcc12 {
		return nil
	}
	script := filepath.Join(r.dir, "nvcc.py")
	if err := os.WriteFile(script, []byte(e.of.Context["nvcc.py"]), 0o600); err != nil {
		return err
	}
	var said strings.Builder
	v := cleanEnvironment(r.opt.Environ).addSiteVariables(r.opt.Environ)
	v.setAll(map[string]string{"DSBUILD_DOWNLOADS": filepath.Join(r.opt.Dir, "downloads"), "DSBUILD_SITE": r.siteFile()})
	run := `. "$DSBUILD_SITE"; exec "$0" "$1" check`
	err := process{argv: []string{"sh", "-c", run, r.python, script}, dir: r.dir, env: v.environ(), stdout: &said, stderr: &said}.run(ctx)
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.plan.NvccError(errors.New(strings.TrimPrefix(strings.TrimSpace(said.String()), "error: ")))
}

// prepareEnvironment takes or makes the environments of an entry.
func (r *run) prepareEnvironment(ctx context.Context, e entry) error {
	lock := e.dir + ".lock"
	const why = "to create the same environment"
	for {
		unlock, err := filelock.Take(ctx, lock, r.waiting(true, why))
		if err != nil {
			return err
		}
		if e.isComplete() {
			r.closers = append(r.closers, unlock)
			return nil
		}
		unlock()
		if unlock, err = filelock.Take(ctx, lock, r.waiting(false, why)); err != nil {
			return err
		}
		err = r.makeEnvironments(ctx, e)
		unlock()
		if err != nil {
			return err
		}
	}
}

// makeEnvironments makes both environments of an entry, or none if one fails. The caller holds
// the entry's lock. Another build may have made them while this one waited.
func (r *run) makeEnvironments(ctx context.Context, e entry) (err error) {
	if e.isComplete() {
		return nil
	}
	if err := os.RemoveAll(e.dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(e.dir) // without the mark it counts for nothing
		}
	}()
	if err := writeFiles(e.path(scriptsDir), e.of.Context); err != nil {
		return err
	}
	if err := r.installUV(ctx, e); err != nil {
		return err
	}
	tc := e.of.Toolchain
	title := fmt.Sprintf("Python %s with torch %s", tc.Python, tc.Torch)
	err = r.reportStep(ctx, string(pipeline.Runtime), title, func(ctx context.Context, out output) error {
		for _, name := range []string{"torch.sh", "runtime.sh", "ops.sh"} {
			if err := r.runScript(ctx, out, e, runtimeEnv, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	title = fmt.Sprintf("tools and CUDA %s (%s)", tc.Toolkit, tc.CUDASource)
	err = r.reportStep(ctx, string(pipeline.Toolchain), title, func(ctx context.Context, out output) error {
		if err := linkTree(ctx, e.path(runtimeEnv), e.path(toolchainEnv)); err != nil {
			return err
		}
		for _, what := range []string{"toolkit", "ops"} {
			if err := r.runScript(ctx, out, e, toolchainEnv, "build.sh", what); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.WriteFile(e.path(completeMark), nil, 0o600)
}

// runScript runs one of the images' scripts on one of the entry's environments.
func (r *run) runScript(ctx context.Context, out output, e entry, env, name string, args ...string) error {
	v := cleanEnvironment(r.opt.Environ).addSiteVariables(r.opt.Environ).setAll(e.of.Args).setAll(r.placeVariables(e, env))
	v.setAll(map[string]string{
		"PYTHON": r.python, "TMPDIR": r.scratch,
		"UV_CACHE_DIR": r.downloadsDir(), "UV_LINK_MODE": "hardlink",
		"DSBUILD_SITE": r.siteFile(), "DSBUILD_DOWNLOADS": filepath.Join(r.opt.Dir, "downloads"),
	})
	argv := append([]string{"sh", filepath.Join(e.path(scriptsDir), name)}, args...)
	return out.run(ctx, process{argv: argv, dir: r.scratch, env: v.environ()})
}

func (b *Builder) downloadsDir() string { return filepath.Join(b.opt.Dir, "uv-cache") }

// placeVariables are the variables that an image sets for its programs: the places of the
// environment and of CUDA, and with --env the target environment.
func (r *run) placeVariables(e entry, env string) variables {
	dir := e.path(env)
	if filepath.IsAbs(env) {
		dir = env
	}
	path := []string{
		filepath.Join(dir, "bin"), r.bin, filepath.Join(r.uvDir(), "bin"), cleanEnvironment(r.opt.Environ)["PATH"],
	}
	v := variables{
		"DSBUILD_ENV": dir, "VIRTUAL_ENV": dir, "PYTHONNOUSERSITE": "1",
		"PATH": strings.Join(path, ":"),
	}
	if env == toolchainEnv {
		cuda := e.of.Args["CUDA_HOME"]
		switch e.of.Toolchain.CUDASource {
		case compat.CUDA13, compat.CUDA12, compat.Nvcc12:
			cuda = e.path(cudaDir) // the packages'
		}
		v["CUDA_HOME"], v["DSBUILD_CUDA"] = cuda, cuda
	}
	if r.opt.Env != nil {
		// No step writes there, not even compiled modules.
		v["DSBUILD_BESIDE"], v["PYTHONDONTWRITEBYTECODE"] = strings.Join(r.opt.Env.Sites, ":"), "1"
		v["DSBUILD_PYTHON"] = e.of.Toolchain.Python
	}
	return v
}

func (b *Builder) uvDir() string {
	return filepath.Join(b.opt.Dir, "uv-"+dockerfiles.UVVersion())
}

// installUV installs uv if PATH has no fitting version.
func (r *run) installUV(ctx context.Context, e entry) error {
	dir := r.uvDir()
	if r.fittingUV(ctx) {
		return nil
	}
	unlock, err := filelock.Take(ctx, dir+".lock", r.waiting(false, "to install uv"))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, completeMark)); err == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	python, found := r.uvInstaller()
	if !found {
		return missing(part{"uv " + dockerfiles.UVVersion() + " or newer", "install uv, python3-venv or python3-pip"})
	}
	title := "uv " + dockerfiles.UVVersion() + ", to create environments"
	err = r.reportStep(ctx, "uv", title, func(ctx context.Context, out output) error {
		v := cleanEnvironment(r.opt.Environ).addSiteVariables(r.opt.Environ)
		v.setAll(map[string]string{"PYTHON": python.Path, "TMPDIR": r.scratch, "DSBUILD_SITE": r.siteFile()})
		argv := []string{"sh", filepath.Join(e.path(scriptsDir), "uv.sh"), dir}
		return out.run(ctx, process{argv: argv, dir: r.scratch, env: v.environ()})
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	return os.WriteFile(filepath.Join(dir, completeMark), nil, 0o600)
}

// fittingUV reports whether PATH has a uv no older than the pinned one.
func (r *run) fittingUV(ctx context.Context) bool {
	var out strings.Builder
	env := cleanEnvironment(r.opt.Environ)
	err := process{
		argv: []string{"uv", "--version"}, dir: "/", env: env.environ(),
		stdout: &out, stderr: new(strings.Builder),
	}.run(ctx)
	fields := strings.Fields(out.String())
	return err == nil && len(fields) >= 2 && fields[0] == "uv" &&
		wheel.CompareVersions(fields[1], dockerfiles.UVVersion()) >= 0
}

// pruneEnvironments makes room for one more environment: it removes those unused for the longest
// time, and the downloads if they are too large. It keeps locked ones.
func (r *run) pruneEnvironments() {
	var dirs []string
	locks, _ := fs.Glob(os.DirFS(r.environmentsDir()), "*.lock") // the pattern is right
	for _, lock := range locks {
		dir := filepath.Join(r.environmentsDir(), strings.TrimSuffix(lock, ".lock"))
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range pipeline.LeastRecentlyUsed(dirs, keepEnvironments-1) {
		r.removeUnused(dir)
	}
	var size int64
	_ = filepath.WalkDir(r.downloadsDir(), func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // unreadable files are ignored
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	if size > keepDownloads {
		r.removeUnused(r.downloadsDir())
	}
}

// waiting returns the options of a lock that another build may hold: the user is told once what the build waits for.
func (r *run) waiting(shared bool, why string) filelock.Options {
	return filelock.Options{Shared: shared, Wait: buildWait, Waiting: func(holder string) {
		r.Report.Note("waiting for another build %s: %s", why, holder)
	}}
}

// removeUnused removes a directory unless a build holds its lock.
func (r *run) removeUnused(dir string) {
	unlock, err := filelock.Take(context.Background(), dir+".lock", filelock.Options{})
	if err != nil {
		return
	}
	defer unlock()
	if err := os.RemoveAll(dir); err != nil {
		r.Report.Warn("cannot remove %s of earlier builds: %v", dir, err)
	}
}

// linkTree makes dst a copy of the tree src, with hard links to its files if the file system has
// them. A folder named in whole becomes one symbolic link.
func linkTree(ctx context.Context, src, dst string, whole ...string) error {
	return filepath.WalkDir(src, func(path string, e fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		switch {
		case e.IsDir() && slices.Contains(whole, e.Name()):
			if err := os.Symlink(path, to); err != nil {
				return err
			}
			return fs.SkipDir
		case e.IsDir():
			return os.Mkdir(to, 0o755)
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, to)
		}
		if os.Link(path, to) == nil {
			return nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
		if err != nil {
			return err
		}
		_, err = out.ReadFrom(in)
		return errors.Join(err, out.Close())
	})
}

// writeFiles writes files by name into a new directory.
func writeFiles(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(files[name]), 0o600); err != nil {
			return err
		}
	}
	return nil
}
