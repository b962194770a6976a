package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// checkout is the state of a work tree.
type checkout struct {
	commit string // "" before the first
	dirty  bool
	files  []string // tracked ones and new ones, but none that is ignored
	// scratch is a private folder for the borrowed repositories.
	scratch string
}

// openCheckout reads the state of the work tree that dir is, or is a part of; nil if git does not
// track dir. It writes nothing there, and runs no program that the repository names. scratch is a
// private folder of the caller's.
func openCheckout(ctx context.Context, dir, scratch string) (*checkout, error) {
	top := topOfWorkTree(dir)
	if top == "" {
		return nil, nil
	}
	scratch, err := os.MkdirTemp(scratch, ".git-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // it lies in a folder that the caller removes
	c := &checkout{scratch: scratch}
	r, err := c.cleanRepository(ctx, top)
	switch {
	case errors.Is(err, errNotRepository) && top != dir:
		return nil, nil // dir only lies below something with a .git
	case err != nil:
		return nil, err
	}
	r.dir = dir
	if top != dir {
		// Part of a larger repository, or only lying in one.
		if tracked, err := r.runGit(ctx, "ls-files", "-z", "--", "setup.py", "pyproject.toml"); err != nil || len(tracked) == 0 {
			return nil, err
		}
	}
	c.commit, err = r.commitOf(ctx, "HEAD")
	if err != nil && ctx.Err() == nil {
		c.commit = "" // no commit yet
	}
	return c, c.addWorkTree(ctx, r, "", 0)
}

// topOfWorkTree returns dir or the nearest folder above that has a .git; "" if there is none, and
// git need not be installed.
func topOfWorkTree(dir string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			return ""
		}
		dir = above
	}
}

// maxNested bounds how deep repositories may lie in each other.
const maxNested = 16

// addWorkTree adds the files of a work tree and of the repositories in it, and notes whether
// anything differs from the commit. git itself does not look into the inner repositories, because
// it would use their settings.
func (c *checkout) addWorkTree(ctx context.Context, r repository, prefix string, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("%s: repositories are nested more than %d levels deep", prefix, maxNested)
	}
	status, err := r.runGit(ctx, "status", "--porcelain", "-z", "--untracked-files=normal", "--no-renames", "--ignore-submodules=all", "--", ".")
	if err != nil {
		return err
	}
	c.dirty = c.dirty || len(status) > 0
	out, err := r.runGit(ctx, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(out), "\x00") {
		info, err := os.Lstat(filepath.Join(r.dir, name))
		switch {
		case name == "":
			continue
		case err == nil && info.IsDir():
			if err := c.readNested(ctx, r, strings.TrimSuffix(name, "/"), prefix, depth); err != nil {
				return err
			}
		default:
			c.files = append(c.files, prefix+name)
		}
	}
	return nil
}

// readNested adds a repository that lies in another one, as a submodule or not.
func (c *checkout) readNested(ctx context.Context, outer repository, name, prefix string, depth int) error {
	dir := filepath.Join(outer.dir, name)
	// MODE HASH STAGE, a tab and the name; nothing if git does not track it.
	wanted, err := outer.runGit(ctx, "ls-files", "--stage", "-z", "--", ":(literal)"+name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, ".git")); err != nil {
		if len(wanted) > 0 && !strings.HasPrefix(string(wanted), submoduleMode) {
			return nil // a tracked file that was replaced by a folder, whose files are listed
		}
		return hint.With(fmt.Errorf("%s: a submodule that is not checked out", prefix+name), "git submodule update --init --recursive")
	}
	inner, err := c.cleanRepository(ctx, dir)
	if err != nil {
		return err
	}
	commit, _ := inner.commitOf(ctx, "HEAD") // "" before the first
	if fields := strings.Fields(string(wanted)); len(fields) > 1 && fields[1] != commit {
		c.dirty = true
	}
	return c.addWorkTree(ctx, inner, prefix+name+"/", depth+1)
}

var errNotRepository = errors.New("not a git repository")

// cleanRepository makes a repository with the objects, the index and HEAD of the one whose work
// tree is at top, but with dsbuild's own settings, hooks and attributes. A checkout's settings
// may name programs for nearly every action of git; this way git never reads them.
func (c *checkout) cleanRepository(ctx context.Context, top string) (repository, error) {
	dir, err := os.MkdirTemp(c.scratch, "borrowed-")
	if err != nil {
		return repository{}, err
	}
	r, err := atRepository(dir)
	if err != nil {
		return r, err
	}
	from, err := findGitDirs(top)
	if err != nil {
		return r, err
	}
	settings, err := r.inertSettings(ctx, filepath.Join(from.common, "config"))
	if err != nil {
		return r, err
	}
	for name, text := range map[string]string{"config": settings, "info/attributes": "* -filter\n"} {
		if err := writeNew(filepath.Join(dir, name), text); err != nil {
			return r, err
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "refs"), 0o700), from.copyInto(dir)); err != nil {
		return r, err
	}
	r.dir = top
	r.env = append(r.env, "GIT_DIR="+dir, "GIT_WORK_TREE="+top, "GIT_OBJECT_DIRECTORY="+filepath.Join(from.common, "objects"))
	return r, nil
}

// inertSettings returns a git configuration with only those settings of the configuration file
// that determine how git compares files and names objects. Reading the file runs nothing and
// follows no include.
func (r repository) inertSettings(ctx context.Context, file string) (string, error) {
	settings := "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tfsmonitor = false\n\tuntrackedCache = false\n\thooksPath = " + configValue(os.DevNull) + "\n"
	if err := regularFile(file); errors.Is(err, fs.ErrNotExist) {
		return settings, nil
	} else if err != nil {
		return "", err
	}
	// GIT_DIR: git looks for no repository, and so at no other settings.
	here := repository{dir: r.dir, env: append(r.env[:len(r.env):len(r.env)], "GIT_DIR="+r.dir)}
	out, err := here.runGit(ctx, "config", "--file", file, "--no-includes", "--null", "--list")
	if err != nil {
		return "", err
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		name, value, _ := strings.Cut(entry, "\n")
		switch name {
		case "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol", "extensions.objectformat":
			section, key, _ := strings.Cut(name, ".")
			settings += fmt.Sprintf("[%s]\n\t%s = %s\n", section, key, configValue(strings.ReplaceAll(value, "\n", " ")))
		case "extensions.refstorage":
			if value != "files" {
				return "", fmt.Errorf("the repository stores its references as %s: dsbuild reads only files", value)
			}
		}
	}
	return settings, nil
}

// gitDirs are the folders of a repository: of one work tree, and of all of them.
type gitDirs struct{ own, common string }

// findGitDirs finds the folders of the repository whose work tree is at top. It follows the files
// that point to them.
func findGitDirs(top string) (gitDirs, error) {
	own := filepath.Join(top, ".git")
	if info, err := os.Stat(own); err == nil && !info.IsDir() {
		text, err := readPointer(own)
		to, ok := strings.CutPrefix(text, "gitdir: ")
		if err != nil || !ok {
			return gitDirs{}, fmt.Errorf("%s: %w: .git leads nowhere", top, errNotRepository)
		}
		own = resolveFrom(top, to)
	}
	dirs := gitDirs{own, own}
	if to, err := readPointer(filepath.Join(own, "commondir")); err == nil {
		dirs.common = resolveFrom(own, to)
	}
	objects, err := os.Stat(filepath.Join(dirs.common, "objects"))
	if err != nil || !objects.IsDir() || regularFile(filepath.Join(own, "HEAD")) != nil {
		return gitDirs{}, fmt.Errorf("%s: %w: .git has no HEAD, or no objects", top, errNotRepository)
	}
	return dirs, nil
}

// resolveFrom returns the path to, taken relative to dir if it is relative.
func resolveFrom(dir, to string) string {
	if filepath.IsAbs(to) {
		return filepath.Clean(to)
	}
	return filepath.Join(dir, to)
}

// copyInto copies the files of a repository that git reads beside objects and settings: HEAD with
// the branch that it names, the index, and the ignore rules.
func (d gitDirs) copyInto(dir string) error {
	copies := map[string]string{ // name: in which folder
		"HEAD": d.own, "index": d.own, "packed-refs": d.common, "shallow": d.common, "info/exclude": d.common,
	}
	shared, _ := fs.Glob(os.DirFS(d.own), "sharedindex.*") // the pattern is right
	for _, file := range shared {
		copies[file] = d.own
	}
	const maxLinks = 5 // as git has it
	pointer := filepath.Join(d.own, "HEAD")
	for range maxLinks {
		text, err := readPointer(pointer)
		name, isLink := strings.CutPrefix(text, "ref: ")
		if err != nil || !isLink || !strings.HasPrefix(name, "refs/") || !filepath.IsLocal(name) {
			break
		}
		copies[name] = d.common
		pointer = filepath.Join(d.common, name)
	}
	for name, from := range copies {
		if err := copyRegular(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// regularFile refuses everything but regular files: opening a pipe would wait for ever.
func regularFile(file string) error {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a file: %v", file, info.Mode().Type())
	}
	return err
}

// readPointer reads a short file of one line.
func readPointer(file string) (string, error) {
	if err := regularFile(file); err != nil {
		return "", err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	return strings.TrimSpace(string(text)), err
}

// copyRegular copies a file, and does nothing if it does not exist.
func copyRegular(from, to string) error {
	if err := regularFile(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// writeNew writes a file, and the folder that it lies in.
func writeNew(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}
