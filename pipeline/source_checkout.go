package pipeline

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // git's names of files
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// checkout is the state of a work tree. A checkout's settings may name programs for nearly every action of
// git, so git only lists names and hashes, which runs no program. The files are compared in Go.
type checkout struct {
	commit string   // "" before the first
	dirty  bool     // it differs from the commit
	files  []string // tracked ones and new ones, but none that is ignored

	env []string // of git, with settings of dsbuild's own
}

// openCheckout reads the state of the work tree that contains dir, without writing to it. It returns
// nil if git does not track dir. scratch is the caller's private directory.
func openCheckout(ctx context.Context, dir, scratch string, environ []string) (*checkout, error) {
	top := dir // or the nearest folder above that has a .git; git need not be installed where there is none
	for _, err := os.Lstat(filepath.Join(top, ".git")); err != nil; _, err = os.Lstat(filepath.Join(top, ".git")) {
		if top == filepath.Dir(top) {
			return nil, nil
		}
		top = filepath.Dir(top)
	}
	if err := needGit(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkoutLimit, fmt.Errorf("git did not list the files of %s within %s", top, checkoutLimit))
	defer cancel()
	// Of the user's settings, only core.excludesFile applies. GIT_DIR is a directory without a repository.
	user := repository{scratch, append(gitEnv(environ, userVariables), "GIT_DIR="+scratch)}
	ignored, _ := user.runGit(ctx, "config", "--type=path", "--get", "core.excludesFile") // status 1: not set
	if name := strings.TrimSpace(string(ignored)); name != "" {
		if err := rejectPipe(name); err != nil {
			return nil, err
		}
	}
	global := filepath.Join(scratch, ".gitsettings")
	// git rejects a checkout of another user, unless safe.directory lists it.
	if err := os.WriteFile(global, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return nil, err
	}
	defer os.Remove(global) //nolint:errcheck // in a directory that the caller removes
	c := &checkout{env: append(gitEnv(environ, noVariables),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+global, "GIT_ALLOW_PROTOCOL=file", "GIT_CONFIG_COUNT=5")}
	for i, setting := range [][2]string{ // these override the checkout's
		{"core.fsmonitor", "false"},
		{"core.untrackedCache", "false"},
		{"core.hooksPath", os.DevNull},
		{"core.bare", "false"},
		{"core.excludesFile", strings.TrimSpace(string(ignored))},
	} {
		c.env = append(c.env,
			fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, setting[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, setting[1]))
	}
	r := c.repository(top, dir)
	if err := rejectPipes(top, dir); err != nil {
		return nil, err
	}
	if top != dir {
		// Part of a larger repository, or only inside one, or below something with a .git.
		tracked, err := r.runGit(ctx, "ls-files", "-z", "--", "setup.py", "pyproject.toml")
		if err != nil || len(tracked) == 0 {
			return nil, context.Cause(ctx)
		}
	}
	var err error
	c.commit, err = c.addWorkTree(ctx, r, "", 0)
	return c, err
}

// repository returns the repository of the work tree at top, for git to work in dir.
func (c *checkout) repository(top, dir string) repository {
	env := append(c.env[:len(c.env):len(c.env)], "GIT_DIR="+filepath.Join(top, ".git"), "GIT_WORK_TREE="+top)
	return repository{dir, env}
}

// maxNested bounds the nesting of repositories.
const maxNested = 16

// submoduleMode is the mode of a submodule in a commit.
const submoduleMode = "160000"

// addWorkTree adds the files of a work tree and of the repositories in it, sets dirty if anything differs
// from the commit, and returns the commit.
func (c *checkout) addWorkTree(ctx context.Context, r repository, prefix string, depth int) (commit string, err error) {
	if depth > maxNested {
		return "", fmt.Errorf("%s: repositories are nested more than %d levels deep", prefix, maxNested)
	}
	if _, err := r.runGit(ctx, "rev-parse", "--git-dir"); err != nil {
		return "", err
	}
	committed := map[string]string{} // mode and hash
	add := func(mode, sum, name string) { committed[name] = mode + " " + sum }
	if commit, err = r.commitOf(ctx, "HEAD"); err != nil {
		commit, c.dirty = "", true // it has none yet
	} else if err := r.list(ctx, add, "ls-tree", "-r", "-z", commit); err != nil {
		return "", err
	}
	modes, names := map[string]string{}, []string(nil) // of the index; the mode of new files is ""
	err = r.list(ctx, func(mode, _, name string) {
		if _, twice := modes[name]; !twice {
			modes[name], names = mode, append(names, name)
		}
	}, "ls-files", "--stage", "-z")
	if err != nil {
		return "", err
	}
	others, err := r.runGit(ctx, "ls-files", "-z", "--others", "--exclude-standard")
	if err != nil {
		return "", err
	}
	names = append(names, strings.FieldsFunc(string(others), func(r rune) bool { return r == 0 })...)
	for name := range committed {
		_, tracked := modes[name]
		c.dirty = c.dirty || !tracked
	}
	for _, name := range names {
		path := filepath.Join(r.dir, name)
		info, err := os.Lstat(path)
		switch is := ""; {
		case modes[name] == submoduleMode || strings.HasSuffix(name, "/"):
			name = strings.TrimSuffix(name, "/")
			if _, err := os.Lstat(filepath.Join(path, ".git")); err != nil {
				return "", fault.WithHint(fmt.Errorf("submodule %s is not checked out", prefix+name),
					"git submodule update --init --recursive")
			}
			if err = rejectPipesOfGit(filepath.Join(path, ".git")); err != nil {
				return "", err
			}
			if is, err = c.addWorkTree(ctx, c.repository(path, path), prefix+name+"/", depth+1); err != nil {
				return "", err
			}
			c.dirty = c.dirty || committed[name] != submoduleMode+" "+is
		case err != nil || info.IsDir(): // deleted, or replaced by a folder, whose files are listed
			c.dirty = true
		default:
			c.files = append(c.files, prefix+name)
			c.dirty = c.dirty || info.Mode().Type()&^fs.ModeSymlink != 0 // selectFiles rejects a pipe, which would block
			if !c.dirty {
				is, err = blobOf(path, info, len(commit))
				c.dirty = err != nil || is != committed[name]
			}
		}
	}
	return commit, nil
}

// checkoutLimit limits the time of git for a checkout, which reads only local files.
const checkoutLimit = 5 * time.Minute

// rejectPipes rejects a work tree in which a file that git reads is a pipe or a device, because git would hang. top has
// the .git; dir is top or a directory in it.
func rejectPipes(top, dir string) error {
	for at := dir; at != top; {
		at = filepath.Dir(at)
		for _, name := range readByGit() {
			if err := rejectPipe(filepath.Join(at, name)); err != nil {
				return err
			}
		}
	}
	if err := rejectPipesOfGit(filepath.Join(top, ".git")); err != nil {
		return err
	}
	seen := 0
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch seen++; {
		case err != nil: // git says what it cannot read
			return fs.SkipDir
		case seen > maxTreeFiles:
			return fs.SkipAll
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir() && path != dir:
			if _, err := os.Lstat(filepath.Join(path, "pyvenv.cfg")); err == nil {
				return fs.SkipDir
			}
		case slices.Contains(readByGit(), d.Name()):
			return rejectPipe(path)
		}
		return nil
	})
}

// readByGit are the files that git reads in every folder of a work tree.
func readByGit() []string { return []string{".git", ".gitignore", ".gitattributes", ".gitmodules"} }

// rejectPipesOfGit is rejectPipes for git's own folder, or the file that names it, except the many objects.
func rejectPipesOfGit(dir string) error {
	if err := rejectPipe(dir); err != nil {
		return err
	}
	if to, ok := strings.CutPrefix(lineOf(dir), "gitdir: "); ok {
		dir = from(filepath.Dir(dir), to)
	}
	dirs := []string{dir}
	if common := lineOf(filepath.Join(dir, "commondir")); common != "" { // of a work tree that git worktree made
		dirs = append(dirs, from(dir, common))
	}
	for _, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil, d.IsDir() && slices.Contains([]string{"modules", "lfs", "logs"}, d.Name()),
				d.IsDir() && filepath.Base(filepath.Dir(path)) == "objects" && d.Name() != "info":
				return fs.SkipDir
			case d.IsDir():
				return nil
			}
			return rejectPipe(path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lineOf returns the line in a small file. It returns "" if there is no such file.
func lineOf(path string) string {
	f, err := wheel.OpenFile(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxTreeName)) //nolint:errcheck // git says what it cannot read
	return strings.TrimSpace(string(text))
}

// from returns the path to, which may be relative to dir.
func from(dir, to string) string {
	if filepath.IsAbs(to) {
		return to
	}
	return filepath.Join(dir, to)
}

// rejectPipe rejects a path that exists and leads to no regular file.
func rejectPipe(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fault.WithHint(fmt.Errorf("%s is not a regular file, and git would wait for it", path), "remove it")
	}
	return nil
}

// list calls add for each line of ls-tree (MODE TYPE HASH, a tab and the name) or ls-files (MODE HASH STAGE).
func (r repository) list(ctx context.Context, add func(mode, last, name string), args ...string) error {
	out, err := r.runGit(ctx, args...)
	for line := range bytes.SplitSeq(out, []byte{0}) {
		what, name, ok := strings.Cut(string(line), "\t")
		if fields := strings.Fields(what); ok && len(fields) == 3 {
			add(fields[0], fields[2], name)
		}
	}
	return err
}

// blobOf returns the mode and the hash that git would commit a file with, if it changed no byte. digits is
// the length of the repository's hashes.
func blobOf(path string, info fs.FileInfo, digits int) (string, error) {
	var content io.Reader
	mode, size := "100644", info.Size()
	if info.Mode().Type() == fs.ModeSymlink {
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		mode, size, content = "120000", int64(len(to)), strings.NewReader(to)
	} else {
		f, err := wheel.OpenFile(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		content = f
	}
	if info.Mode().IsRegular() && info.Mode()&0o100 != 0 {
		mode = "100755"
	}
	var h hash.Hash = sha1.New() //nolint:gosec // git's
	if digits == 2*sha256.Size {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", size)
	_, err := io.Copy(h, content)
	return mode + " " + hex.EncodeToString(h.Sum(nil)), err
}
