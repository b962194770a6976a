package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

// gitRef is a repository and the requested tag, branch or commit.
type gitRef struct {
	url   string // as the user gave it: it may hold credentials
	ref   string // tag, branch or commit; "" for the branch of the repository's HEAD
	shown string // for people: "git+URL@REF" without credentials
}

// gitSchemes returns the allowed schemes of repositories. Others can run programs (ext::) or are
// not verified.
func gitSchemes() []string { return []string{"https", "http", "ssh", "file"} }

var (
	scpLike  = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^-:]`)
	goodRef  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+=,%#@-]*$`)
	hexRef   = regexp.MustCompile(`^[0-9a-f]{4,64}$`)
	fullHash = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	userinfo = regexp.MustCompile(`://\S*@`) // a password may hold a slash that nobody has quoted
	scpUser  = regexp.MustCompile(`^[^/@:\s]+@([^/:\s]+:)`)
)

// redactURL removes credentials from a URL or an error of git. It takes all of a URL before an @ for a
// password: it is not for text in which @REF follows a URL (see diagnostic.HideCredentials).
func redactURL(text string) string {
	text = userinfo.ReplaceAllString(text, "://")
	return diagnostic.HideCredentials(scpUser.ReplaceAllString(text, "$1"))
}

// parseGit reads URL[@REF], the text after "git+".
func parseGit(arg string) (gitRef, error) {
	g := gitRef{}
	g.url, g.ref = wheel.SplitGitRef(arg)
	scheme, _, ok := strings.Cut(arg, "://")
	g.shown = "git+" + redactURL(g.url)
	fail := func(format string, args ...any) (gitRef, error) {
		return gitRef{}, &SourceError{g.shown, fmt.Errorf(format, args...), "write git+https://HOST/PATH@REF, git+ssh://HOST/PATH@REF or git+file:///PATH@REF; REF is a tag, a branch or a commit"}
	}
	switch {
	case strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fail("a space or a control character in it")
	case strings.HasPrefix(arg, "-") || !ok && strings.Contains(arg, "::"):
		return fail("not the URL of a repository")
	case ok && !slices.Contains(gitSchemes(), scheme):
		return fail("dsbuild does not read repositories with %q", scheme)
	case !ok && !scpLike.MatchString(g.url):
		return fail("not the URL of a repository")
	case strings.ContainsAny(g.url, "#"):
		return fail("dsbuild does not understand the text after #")
	case g.url != arg && (!goodRef.MatchString(g.ref) || strings.Contains(g.ref, "..")):
		return fail("%.80q is not a tag, branch or commit", g.ref)
	}
	if ok {
		if reason := g.refuseURL(); reason != "" {
			return fail("%s", reason)
		}
	}
	if g.ref != "" {
		g.shown += "@" + g.ref
	}
	return g, nil
}

// refuseURL returns why a URL cannot be used, "" if it can. The reason never quotes the URL,
// which may hold a password.
func (g gitRef) refuseURL() string {
	u, err := url.Parse(g.url)
	if err != nil || strings.HasPrefix(u.Host, "-") || strings.Trim(u.Path, "/") == "" || u.Host == "" && u.Scheme != "file" {
		return "not the URL of a repository"
	}
	password, hasPassword := u.User.Password()
	switch web := u.Scheme == "http" || u.Scheme == "https"; {
	case strings.ContainsFunc(u.User.Username()+password, unicode.IsControl):
		return "a control character in the user's name or the password"
	case hasPassword && !web:
		return "a password in a URL of " + u.Scheme + " has no effect, and every user of this machine could read it: use a key"
	case u.RawQuery != "" && web:
		return "git puts the text after ? on a command line, which every user of this machine can read: write a token before the host, https://TOKEN@HOST/PATH"
	}
	return ""
}

// openGit fetches a commit into a repository of its own and copies its tree.
func (p project) openGit(ctx context.Context, arg, dir string) (Source, error) {
	want, err := parseGit(arg)
	if err != nil {
		return Source{}, err
	}
	t, done, err := scratchTree(dir)
	if err != nil {
		return Source{}, err
	}
	defer done()
	clone := filepath.Join(t.root.Name(), "clone")
	commit, err := want.fetchTree(ctx, clone, t.root)
	if ctx.Err() != nil {
		return Source{}, context.Cause(ctx)
	}
	if err != nil {
		return Source{}, sourceError(want.shown, err)
	}
	if err := os.RemoveAll(clone); err != nil {
		return Source{}, err
	}
	inside, err := openTree(filepath.Join(t.root.Name(), "tree"))
	if err != nil {
		return Source{}, err
	}
	defer inside.root.Close()
	if err := inside.walkFiles(); err != nil {
		return Source{}, sourceError(want.shown, err)
	}
	return p.finishSource(ctx, Source{Kind: SourceGit, Ref: want.shown, Commit: commit}, inside, dir)
}

// fetchTree fetches the commit into the new repository clone and unpacks its files into
// the folder "tree" of root.
func (g gitRef) fetchTree(ctx context.Context, clone string, root *os.Root) (commit string, err error) {
	if err := root.Mkdir("tree", 0o700); err != nil {
		return "", err
	}
	tree, err := root.OpenRoot("tree")
	if err != nil {
		return "", err
	}
	defer tree.Close()
	repo, commit, err := g.fetchCommit(ctx, clone)
	if err != nil {
		return "", err
	}
	if err := repo.refuseSubmodules(ctx, commit); err != nil {
		return "", err
	}
	// Unpack the files as the commit has them, whatever this machine does with line ends.
	err = repo.pipeGit(ctx, func(out io.Reader) error {
		return unpackTar(ctx, out, tree, func(name string) (string, error) { return name, nil })
	}, "-c", "core.autocrlf=false", "-c", "core.eol=lf", "-c", "core.attributesFile="+os.DevNull, "archive", "--format=tar", commit)
	return commit, err
}

// refuseSubmodules refuses a commit with submodules, because it is not complete by itself.
func (r repository) refuseSubmodules(ctx context.Context, commit string) error {
	out, err := r.runGit(ctx, "ls-tree", "-r", "-z", commit)
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if _, name, ok := strings.Cut(entry, "\t"); ok && strings.HasPrefix(entry, submoduleMode) {
			return hint.With(fmt.Errorf("%s is a submodule, and dsbuild does not fetch submodules", name),
				"clone it with --recurse-submodules, and give the directory")
		}
	}
	return nil
}

// fetchCommit fetches the requested commit, with only as much history as it takes to find it.
func (g gitRef) fetchCommit(ctx context.Context, clone string) (repository, string, error) {
	repo, err := newRepository(ctx, clone, g.url)
	if err != nil {
		return repo, "", err
	}
	refs, err := repo.remoteRefs(ctx, g.ref)
	if err != nil {
		if owned := g.foreignOwner(err); owned != nil {
			return repo, "", owned
		}
		return repo, "", hint.With(&unreachable{err},
			"try: git ls-remote %s; dsbuild asks for no password, but uses git's credential helpers, keys and proxies", redactURL(g.url))
	}
	name, commit := findRef(refs, g.ref)
	switch {
	case name != "":
		if _, err = repo.runGit(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", name); err == nil {
			commit, err = repo.commitOf(ctx, "FETCH_HEAD")
		}
		return repo, commit, err
	case !hexRef.MatchString(g.ref):
		return repo, "", unknownRef(g.ref, refs)
	case fullHash.MatchString(g.ref):
		if _, err = repo.runGit(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", g.ref); err == nil {
			commit, err = repo.commitOf(ctx, "FETCH_HEAD")
			return repo, commit, err
		}
	}
	return g.searchCommit(ctx, repo, refs)
}

var dubiousOwner = regexp.MustCompile(`dubious ownership in repository at '([^']+)'`)

// foreignOwner returns the error for a repository on this machine that git does not read because
// of its owner; nil if err is another one.
func (g gitRef) foreignOwner(err error) error {
	found := dubiousOwner.FindStringSubmatch(err.Error())
	if found == nil {
		return nil
	}
	allow := "git config --global --add safe.directory " + remote.Quote(found[1])
	owned := fmt.Errorf("%s belongs to another user, and git reads it only if you allow it", found[1])
	if dir, isCheckout := strings.CutSuffix(found[1], "/.git"); isCheckout {
		return hint.With(owned, "give the directory itself: %s (dsbuild reads it without its settings), or allow it: %s", dir, allow)
	}
	return hint.With(owned, "allow it: %s", allow)
}

// unreachable is a repository that may be right, but does not answer.
type unreachable struct{ err error }

func (e *unreachable) Error() string { return "the repository cannot be read: " + e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

// searchCommit finds a commit that cannot be fetched by its name: first in the history without
// any content, then in the whole repository.
func (g gitRef) searchCommit(ctx context.Context, repo repository, refs []remoteRef) (repository, string, error) {
	if commit := g.fullHash(ctx, repo.dir+".history"); commit != "" {
		if _, err := repo.runGit(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", commit); err == nil {
			return repo, commit, nil
		}
	}
	if _, err := repo.runGit(ctx, "fetch", "--quiet", "--no-tags", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); err != nil {
		return repo, "", err
	}
	commit, err := repo.commitOf(ctx, g.ref)
	if err != nil {
		err = unknownRef(g.ref, refs)
	}
	return repo, commit, err
}

// fullHash returns the hash that begins with the reference, "" if the history does not tell.
func (g gitRef) fullHash(ctx context.Context, clone string) string {
	repo, err := newRepository(ctx, clone, g.url)
	defer os.RemoveAll(clone) //nolint:errcheck // it lies in a folder that is removed
	if err != nil {
		return ""
	}
	if _, err := repo.runGit(ctx, "fetch", "--quiet", "--no-tags", "--filter=tree:0", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); err != nil {
		return ""
	}
	commit, err := repo.commitOf(ctx, g.ref)
	if err != nil {
		return ""
	}
	return commit
}

// unknownRef returns an error that names the tags most like ref, or branches if there are none.
func unknownRef(ref string, refs []remoteRef) error {
	var tags, heads []string
	for _, r := range refs {
		if tag, ok := strings.CutPrefix(r.name, "refs/tags/"); ok {
			tags = append(tags, tag)
		} else if head, ok := strings.CutPrefix(r.name, "refs/heads/"); ok {
			heads = append(heads, head)
		}
	}
	err := fmt.Errorf("it has no tag, branch or commit %s", ref)
	switch {
	case len(tags) > 0:
		return hint.With(err, "its nearest tags: %s", strings.Join(nearestNames(ref, tags), ", "))
	case len(heads) > 0:
		return hint.With(err, "it has no tags; its branches: %s", strings.Join(nearestNames(ref, heads), ", "))
	}
	return hint.With(err, "the repository is empty")
}

// nearestNames returns the few candidates that are most like word.
func nearestNames(word string, candidates []string) []string {
	const few, most = 3, 20_000
	candidates = slices.Clone(candidates[:min(len(candidates), most)])
	far := map[string]int{}
	for _, c := range candidates {
		far[c] = diagnostic.Distance(word, c[:min(len(c), 64)])
	}
	slices.SortFunc(candidates, func(a, b string) int { return cmp.Or(far[a]-far[b], strings.Compare(b, a)) })
	return candidates[:min(few, len(candidates))]
}

// remoteRef is a name that a repository gives to a commit.
type remoteRef struct{ hash, name string }

// findRef returns the full name that ref means, as git itself would choose: a tag
// before a branch.
func findRef(refs []remoteRef, ref string) (name, commit string) {
	for _, full := range []string{ref, "refs/tags/" + ref, "refs/heads/" + ref} {
		if ref == "" {
			full = "HEAD"
		}
		for _, r := range refs {
			if r.name == full {
				return r.name, r.hash
			}
		}
	}
	return "", ""
}

// repository is a git repository on this machine.
type repository struct {
	dir string
	env []string
}

// newRepository makes an empty one that knows rawURL as origin. A password of the
// URL is in a file that only this user can read, and goes to the server by git's
// own credential helper: git has the rest of the URL on command lines, which
// everyone on this machine sees.
func newRepository(ctx context.Context, dir, rawURL string) (repository, error) {
	r, err := atRepository(dir)
	if err != nil {
		return r, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	if _, err := r.runGit(ctx, "init", "--quiet", "--bare", "--template="); err != nil {
		return r, err
	}
	// Keys that ask for a passphrase, and unknown hosts, fail instead of asking;
	// a command of the user's own is left alone.
	own, _ := r.runGit(ctx, "config", "core.sshCommand") // status 1: not set
	if os.Getenv("GIT_SSH_COMMAND") == "" && os.Getenv("GIT_SSH") == "" && len(bytes.TrimSpace(own)) == 0 {
		r.env = append(r.env, "GIT_SSH_COMMAND=ssh -oBatchMode=yes -oConnectTimeout=30")
	}
	settings, credentials := originSettings(rawURL)
	if credentials != "" {
		if err := os.WriteFile(filepath.Join(dir, credentialsFile), []byte(credentials), 0o600); err != nil {
			return r, err
		}
	}
	return r, appendFile(filepath.Join(dir, "config"), settings)
}

// credentialsFile lies in a repository of newRepository, the folder that git and
// its helpers run in.
const credentialsFile = "dsbuild-credentials"

// originSettings returns git's settings for rawURL as origin, and the text of the credentials
// file, "" if the URL has no password. For ssh, the user's name is a part of the address.
func originSettings(rawURL string) (settings, credentials string) {
	origin := func(address string) string {
		return fmt.Sprintf("[remote \"origin\"]\n\turl = %s\n", configValue(address))
	}
	u, err := url.Parse(rawURL)
	if err != nil || u.User == nil || u.Scheme != "http" && u.Scheme != "https" {
		return origin(rawURL), ""
	}
	login, server := u.User, url.URL{Scheme: u.Scheme, Host: u.Host}
	u.User = nil
	settings = origin(u.String()) + fmt.Sprintf("[credential %s]\n", configValue(server.String()))
	if user := login.Username(); user != "" {
		settings += fmt.Sprintf("\tusername = %s\n", configValue(user))
	}
	if _, hasPassword := login.Password(); hasPassword {
		// The empty helper removes the user's own helpers, so that none of them stores this
		// password.
		settings += "\thelper =\n\thelper = store --file=" + credentialsFile + "\n\tuseHttpPath = false\n"
		server.User = login
		credentials = server.String() + "\n"
	}
	return settings, credentials
}

// configValue writes a value, or the name of a section, for git's configuration.
func configValue(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func appendFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// atRepository returns the repository that dir is in, if any; git must be installed.
func atRepository(dir string) (repository, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return repository{}, hint.With(errors.New("git is not installed"), "install git, or give a release or a source distribution")
	}
	return repository{dir: dir, env: gitEnv(os.Environ())}, nil
}

// gitEnv returns the environment for git. With it, git never asks the user, writes nothing to a
// checkout, uses no other repository, and runs a program for a URL only if the user has allowed
// it.
func gitEnv(environ []string) []string {
	own := []string{
		"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
		"GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES", "GIT_TRACE", "GIT_TRACE_CURL", "GIT_CURL_VERBOSE", "SSH_ASKPASS",
	}
	env := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(own, name)
	})
	if os.Getenv("GIT_ALLOW_PROTOCOL") == "" {
		env = append(env, "GIT_ALLOW_PROTOCOL="+strings.Join(gitSchemes(), ":"))
	}
	return append(env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C")
}

// submoduleMode begins git's line about a submodule.
const submoduleMode = "160000 "

// maxGitOutput bounds the output of a command of git in bytes. No honest repository reaches it.
const maxGitOutput = 256 << 20

// runGit runs git in the repository and returns its output.
func (r repository) runGit(ctx context.Context, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := r.pipeGit(ctx, func(stdout io.Reader) error {
		n, err := io.Copy(&out, io.LimitReader(stdout, maxGitOutput+1))
		if err == nil && n > maxGitOutput {
			err = fmt.Errorf("git %s prints more than %d bytes", args[0], maxGitOutput) // pipeGit ends it
		}
		return err
	}, args...)
	return out.Bytes(), err
}

// pipeGit runs git and passes its output to read. If both fail, it returns the error of git,
// because the other may follow from it.
func (r repository) pipeGit(ctx context.Context, read func(io.Reader) error, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	withHelpers(cmd)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git: %w", err)
	}
	unread := read(stdout)
	if unread != nil {
		cancel() // it may wait for a reader for ever
	}
	err = cmd.Wait()
	if unread != nil && ctx.Err() != nil {
		return unread
	}
	if err != nil {
		return fmt.Errorf("git %s: %s", gitCommand(args), gitError(stderr.String(), err))
	}
	return unread
}

// gitCommand returns the subcommand in the arguments of git.
func gitCommand(args []string) string {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-c":
			i++
		case !strings.HasPrefix(args[i], "-"):
			return args[i]
		}
	}
	return ""
}

// gitError returns git's own text about its failure.
func gitError(stderr string, err error) string {
	var lines []string
	for line := range strings.Lines(redactURL(stderr)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, strings.TrimPrefix(line, "fatal: "))
		}
	}
	if len(lines) == 0 {
		return err.Error()
	}
	text := strings.Join(lines[:min(len(lines), 4)], " ")
	return text[:min(len(text), 500)]
}

// commitOf returns the full hash of the commit that ref names here.
func (r repository) commitOf(ctx context.Context, ref string) (string, error) {
	out, err := r.runGit(ctx, "rev-parse", "--quiet", "--verify", ref+"^{commit}")
	return strings.TrimSpace(string(out)), err
}

// remoteRefs lists the names at origin: all branches and tags, and ref itself.
func (r repository) remoteRefs(ctx context.Context, ref string) ([]remoteRef, error) {
	args := []string{"ls-remote", "--quiet", "origin", "HEAD", "refs/heads/*", "refs/tags/*"}
	if strings.HasPrefix(ref, "refs/") {
		args = append(args, ref)
	}
	out, err := r.runGit(ctx, args...)
	if err != nil {
		return nil, err
	}
	var refs []remoteRef
	for line := range strings.Lines(string(out)) {
		hash, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if !strings.HasSuffix(name, "^{}") {
			refs = append(refs, remoteRef{hash, name})
		}
	}
	return refs, nil
}
