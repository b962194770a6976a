package pipeline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// checkout is the state of a work tree. dsbuild reads it with mirrors of its repositories: a checkout's
// settings may name programs for nearly every action of git, and git never acts by them here.
type checkout struct {
	commit string   // "" before the first
	dirty  bool     // it differs from the commit
	files  []string // tracked ones and new ones, but none that is ignored

	scratch string   // a private folder for the mirrors
	env     []string // of git, with settings of dsbuild's own
}

// openCheckout reads the state of the work tree that dir is, or is a part of; nil if git does not
// track dir. It writes nothing there, and runs no program that the repository names. scratch is a
// private folder of the caller's.
func openCheckout(ctx context.Context, dir, scratch string, environ []string) (*checkout, error) {
	top := topOfWorkTree(dir)
	if top == "" {
		return nil, nil
	}
	c := &checkout{}
	var err error
	if c.scratch, err = os.MkdirTemp(scratch, ".git-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(c.scratch) //nolint:errcheck // it lies in a folder that the caller removes
	if err := c.chooseSettings(ctx, environ); err != nil {
		return nil, err
	}
	r, commit, err := c.mirror(ctx, top)
	switch {
	case err != nil && top != dir && strings.Contains(err.Error(), "does not exist"):
		return nil, nil // dir only lies below something with a .git
	case err != nil:
		return nil, err
	}
	r.dir, c.commit = dir, commit
	if top != dir {
		// Part of a larger repository, or only lying in one.
		if tracked, err := r.runGit(ctx, "ls-files", "-z", "--", "setup.py", "pyproject.toml"); err != nil || len(tracked) == 0 {
			return nil, err
		}
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

// chooseSettings replaces git's settings of the user and of the machine, which may name programs relative
// to the folder that git works in. Of these it keeps the names of ignored files.
func (c *checkout) chooseSettings(ctx context.Context, environ []string) error {
	if err := needGit(); err != nil {
		return err
	}
	// GIT_DIR: the folder is no repository, and git looks for none.
	user := repository{c.scratch, append(gitEnv(environ, userVariables), "GIT_DIR="+c.scratch)}
	ignored, _ := user.runGit(ctx, "config", "--type=path", "--get", "core.excludesFile") // status 1: not set
	settings := "[core]\n\tfsmonitor = false\n\tuntrackedCache = false\n\thooksPath = " + configValue(os.DevNull) + "\n"
	if file := strings.TrimSpace(string(ignored)); file != "" {
		settings += "\texcludesFile = " + configValue(file) + "\n"
	}
	// For the repository that a mirror is made of: it may belong to another user, and send trees without files.
	settings += "[safe]\n\tdirectory = *\n[uploadpack]\n\tallowFilter = true\n"
	file := filepath.Join(c.scratch, "settings")
	c.env = append(gitEnv(environ, noVariables), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+file, "GIT_ALLOW_PROTOCOL=file")
	return writeNew(file, settings)
}

// mirror makes a repository of dsbuild's own that has the last commit of the one whose work tree is at top,
// with names and hashes of its files, in its index, too. git works in the other one only to send the commit,
// for which it runs no program but its own.
func (c *checkout) mirror(ctx context.Context, top string) (r repository, commit string, err error) {
	dir, err := os.MkdirTemp(c.scratch, "mirror-")
	if err != nil {
		return r, "", err
	}
	there := repository{top, c.env}
	_, err = there.runGit(ctx, "clone", "--quiet", "--bare", "--no-local", "--depth=1", "--filter=blob:none", "--template=", filepath.Join(top, ".git"), dir)
	if err != nil {
		return r, "", err
	}
	place, err := there.runGit(ctx, "rev-parse", "--git-path", "info/exclude")
	if err != nil {
		return r, "", err
	}
	ignored, err := readIgnored(resolveFrom(top, strings.TrimSuffix(string(place), "\n")))
	if err != nil {
		return r, "", err
	}
	for name, text := range map[string]string{"info/attributes": "* -filter\n", "info/exclude": ignored} {
		if err := writeNew(filepath.Join(dir, name), text); err != nil {
			return r, "", err
		}
	}
	r = repository{top, append(slices.Clone(c.env), "GIT_DIR="+dir, "GIT_WORK_TREE="+top)}
	commit, err = r.commitOf(ctx, "HEAD")
	if err != nil && ctx.Err() == nil {
		return r, "", nil // it has none yet
	}
	_, err = r.runGit(ctx, "read-tree", "HEAD")
	return r, commit, err
}

// readIgnored returns the content of a file of ignored names, "" if there is none.
func readIgnored(file string) (string, error) {
	// Opening a pipe would wait for ever.
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return "", nil //nolint:nilerr // as for git itself
	}
	text, err := os.ReadFile(file)
	return string(text), err
}

// resolveFrom returns the path to, taken relative to dir if it is relative.
func resolveFrom(dir, to string) string {
	if filepath.IsAbs(to) {
		return to
	}
	return filepath.Join(dir, to)
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
		return fault.WithHint(fmt.Errorf("%s: a submodule that is not checked out", prefix+name), "git submodule update --init --recursive")
	}
	inner, commit, err := c.mirror(ctx, dir)
	if err != nil {
		return err
	}
	if fields := strings.Fields(string(wanted)); len(fields) > 1 && fields[1] != commit {
		c.dirty = true
	}
	return c.addWorkTree(ctx, inner, prefix+name+"/", depth+1)
}
